"""A bounded dictionary that drops the least recently used items."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruDict(Generic[K, V]):
    """A cache of at most `max_items` items with a total weight of at most `max_weight`.

    An item that is heavier than `max_weight` evicts all others and is then dropped itself.
    """

    def __init__(self, *, max_items: int, max_weight: int | None = None) -> None:
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._max_items = max_items
        self._max_weight = max_weight
        self.weight = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: K) -> bool:
        return key in self._items

    def get(self, key: K) -> V | None:
        """Return the value of `key` and mark it as used; None if it is not cached."""
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int = 0) -> None:
        """Cache `value`, and drop the oldest items until both bounds hold."""
        self.pop(key)
        self._items[key] = value, weight
        self.weight += weight
        while len(self._items) > self._max_items or (
            self._max_weight is not None and self.weight > self._max_weight
        ):
            _, (_, dropped) = self._items.popitem(last=False)
            self.weight -= dropped

    def pop(self, key: K) -> V | None:
        """Drop `key` and return its value; None if it is not cached."""
        found = self._items.pop(key, None)
        if found is None:
            return None
        self.weight -= found[1]
        return found[0]
