"""The chain: whether the stored bytes are the bytes that were written (I4).

`h(k) = chain(h(k - 1), line k)`. A chain alone cannot show that its tail was cut off; a head
that somebody kept (every receipt and every feed item carries one) can.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from midrun.verify.problems import Problem

H = TypeVar("H")


def check_chain(
    lines: Iterable[tuple[bytes, H]],
    *,
    chain: Callable[[H, bytes], H],
    first: H,
    head: tuple[int, H] | None = None,
) -> tuple[Problem, ...]:
    """Return what is wrong with the stored lines, given with their stored hashes, in order.

    The problem names the first line that was changed, is missing, was inserted or stands in
    the wrong place; nothing can be said about those after it. `first` is the hash before the
    first line, `head` a seq with the hash that it had when somebody kept it.
    """
    before, count = first, 0
    for count, (line, stored) in enumerate(lines, start=1):
        before = chain(before, line)
        if stored != before:
            text = f"Line {count} is not the one that was written as {count}."
            return (Problem(invariant="I4", seq=count, text=text),)
        if head is not None and count == head[0] and stored != head[1]:
            text = f"The journal up to {count} was rewritten: it had another head there."
            return (Problem(invariant="I4", seq=count, text=text),)
    if head is not None and count < head[0]:
        text = f"The journal ends at {count}, but it once had {head[0]} lines."
        return (Problem(invariant="I4", seq=count + 1, text=text),)
    return ()
