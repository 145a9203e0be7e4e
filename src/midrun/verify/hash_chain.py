"""The chain: whether the stored bytes are the bytes that were written (I4, I42).

`h(k) = chain(h(k - 1), line k)`. A chain alone cannot show that its tail was cut off; a head
that somebody kept (every receipt and every feed item carries one) can.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from midrun.core.entries import Record, RunImported
from midrun.verify.checks import Problem

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


def check_imports(
    lines: Iterable[bytes],
    records: Iterable[Record],
    *,
    chain: Callable[[bytes, bytes], bytes],
    first: bytes,
) -> tuple[Problem, ...]:
    """Return the imports that do not name the hash of the lines before them.

    `lines` and `records` are the whole journal. `chain` and `first` are those of a store
    without a key, as the checkpoint had them, so a head that was kept where the run came from
    can be compared with the one in the import.
    """
    found: list[Problem] = []
    link = first
    for line, record in zip(lines, records, strict=True):
        if isinstance(record.entry, RunImported) and record.entry.head != link.hex():
            text = f"The import names the head {record.entry.head}, not that of the lines."
            found.append(Problem(invariant="I42", seq=record.seq, text=text))
        link = chain(link, line)
    return tuple(found)
