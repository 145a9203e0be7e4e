"""A bounded dictionary that drops the least recently used items."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class LruDict(Generic[K, V]):
    """A cache of at most `max_items` items with a total weight of at most `max_weight`.

    An item that is heavier than `max_weight` is not cached. Iteration begins with the item that
    would be dropped next.
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

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | None = None) -> V | D | None:
        """Return the value of `key` and mark it as used, or `default`."""
        found = self._items.get(key)
        if found is None:
            return default
        self._items.move_to_end(key)
        return found[0]

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the items without marking them as used."""
        return ((key, value) for key, (value, _) in self._items.items())

    def put(self, key: K, value: V, weight: int = 0) -> None:
        """Cache `value`, and drop the oldest items until both bounds hold."""
        replaced = self._items.pop(key, None)
        if replaced is not None:
            self.weight -= replaced[1]
        if self._max_weight is not None and weight > self._max_weight:
            return
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
