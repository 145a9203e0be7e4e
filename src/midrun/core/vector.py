"""A persistent vector: `append` and `replace` copy one leaf and share all others.

The messages and calls of a run only grow, and `evolve` must cost the same at entry 10,000 as at
entry 10. As in Clojure, items are in leaves of 32, at the bottom of a tree whose nodes have up
to 32 children. The last leaf (`_tail`) is kept beside the tree: most reads and all appends go
there. A full tail is pushed into the tree, which gets a new root when it is full.

`_shift` is 5 times the depth of the tree; `index >> _shift` is the child of the root to follow.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")

_LEAF_BITS = 5
_LEAF_WIDTH = 1 << _LEAF_BITS
_LEAF_MASK = _LEAF_WIDTH - 1


class Vector(Generic[T]):
    """An immutable sequence with cheap `append` and `replace`.

    `size` is its length; `len` would be a call, and the hot paths of the core ask for it often.
    """

    __slots__ = ("_root", "_shift", "_tail", "_tail_at", "size")

    def __init__(self, items: Iterable[T] = ()) -> None:
        """Build the tree from its leaves upwards. A snapshot is loaded this way."""
        flat = tuple(items)
        # The tail is never empty unless the vector is: 64 items are one leaf and a full tail.
        tail = (len(flat) - 1) >> _LEAF_BITS << _LEAF_BITS if flat else 0
        self.size = len(flat)
        self._tail: tuple[T, ...] = flat[tail:]
        self._tail_at = tail
        self._shift = _LEAF_BITS
        nodes: tuple[object, ...] = tuple(
            flat[at : at + _LEAF_WIDTH] for at in range(0, tail, _LEAF_WIDTH)
        )
        # Group nodes by 32 until one level fits into the root.
        while len(nodes) > _LEAF_WIDTH:
            nodes = tuple(
                nodes[at : at + _LEAF_WIDTH] for at in range(0, len(nodes), _LEAF_WIDTH)
            )
            self._shift += _LEAF_BITS
        self._root = nodes

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[T]:
        # A generator over the items would be resumed for each of them, this one for each leaf.
        return chain.from_iterable(
            self._get_leaf(start) for start in range(0, self.size, _LEAF_WIDTH)
        )

    def __getitem__(self, index: int) -> T:
        newest = index - self._tail_at
        if newest >= 0:  # nearly all reads are of the newest items
            return self._tail[newest]
        if index < 0:
            index += self.size
            if index < 0:
                raise IndexError(index)
        return self._get_leaf(index)[index & _LEAF_MASK]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vector) and len(self) == len(other) and list(self) == list(other)
        )

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Vector({list(self)!r})"

    def count_shared(self, other: "Vector[T]") -> int:
        """Count the first items that are the same objects in both; compares whole leaves."""
        size, first = min(self.size, other.size), 0
        shift, root, tail_at = other._shift, other._root, other._tail_at  # noqa: SLF001 - its own class
        if self._shift == shift:  # skip the children that both roots share
            for child, others_child in zip(self._root, root, strict=False):
                if child is not others_child:
                    break
                first += 1 << shift
            # The last child may have fewer leaves; the leaf after them is the tail.
            first = min(first, self._tail_at, tail_at)
        for start in range(first, size, _LEAF_WIDTH):
            mine, others = self._get_leaf(start), other._get_leaf(start)  # noqa: SLF001 - its own class
            # The same leaf object has the same items. The last leaf may be longer in one of the
            # two, so it is compared item by item.
            if mine is others and start + _LEAF_WIDTH <= size:
                continue
            for at, (one, two) in enumerate(zip(mine, others, strict=False)):
                if one is not two:
                    return start + at
        return size

    def append(self, item: T) -> "Vector[T]":
        """Return a vector with `item` after all others."""
        if len(self._tail) < _LEAF_WIDTH:  # as `_copy_with`, without the call
            made: Vector[T] = Vector.__new__(Vector)
            made.size, made._tail_at = self.size + 1, self._tail_at
            made._shift, made._root = self._shift, self._root
            made._tail = (*self._tail, item)
            return made
        # The tail is full. The tree is full, too, if it has no free place for one more leaf:
        # then the old root becomes the first child of a new one.
        # A tree of depth d has room for 32 to the power of d leaves, which is `1 << _shift`.
        # The left side counts the leaves with the tail, which is the one to be pushed.
        full = self.size >> _LEAF_BITS > 1 << self._shift
        root = (self._root,) if full else self._root
        shift = self._shift + _LEAF_BITS if full else self._shift
        root = _push_leaf(root, shift, self.size - 1, self._tail)
        return self._copy_with(self.size + 1, shift, root, (item,))

    def replace(self, index: int, item: T) -> "Vector[T]":
        """Return a vector in which `index` holds `item`."""
        if index >= self._tail_at:  # as `_copy_with`, without the call
            at = index & _LEAF_MASK
            made: Vector[T] = Vector.__new__(Vector)
            made.size, made._tail_at = self.size, self._tail_at
            made._shift, made._root = self._shift, self._root
            made._tail = (*self._tail[:at], item, *self._tail[at + 1 :])
            return made
        root = _replace_item(self._root, self._shift, index, item)
        return self._copy_with(self.size, self._shift, root, self._tail)

    def _get_leaf(self, index: int) -> tuple[T, ...]:
        if index >= self._tail_at:
            return self._tail
        node = self._root
        for level in range(self._shift, 0, -_LEAF_BITS):
            node = node[(index >> level) & _LEAF_MASK]  # type: ignore[assignment]  # inner nodes hold nodes
        return node  # type: ignore[return-value]  # leaves hold items

    def _copy_with(
        self, size: int, shift: int, root: tuple[object, ...], tail: tuple[T, ...]
    ) -> "Vector[T]":
        made: Vector[T] = Vector.__new__(Vector)
        made.size, made._shift = size, shift
        made._root, made._tail = root, tail
        made._tail_at = size - len(tail)
        return made


def _push_leaf(
    node: tuple[object, ...], level: int, index: int, leaf: tuple[object, ...]
) -> tuple[object, ...]:
    # `index` is that of the last item of the leaf: its bits name the path to the new leaf.
    at = (index >> level) & _LEAF_MASK
    if level == _LEAF_BITS:  # the children of this node are leaves
        return (*node[:at], leaf)
    child = node[at] if at < len(node) else ()
    return (*node[:at], _push_leaf(child, level - _LEAF_BITS, index, leaf))  # type: ignore[arg-type]  # a node


def _replace_item(
    node: tuple[object, ...], level: int, index: int, item: object
) -> tuple[object, ...]:
    at = (index >> level) & _LEAF_MASK
    if level == 0:
        return (*node[:at], item, *node[at + 1 :])
    child = _replace_item(node[at], level - _LEAF_BITS, index, item)  # type: ignore[arg-type]  # a node
    return (*node[:at], child, *node[at + 1 :])
