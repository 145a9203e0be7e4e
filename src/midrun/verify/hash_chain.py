"""Check the hash chain: the stored bytes are the bytes that were written (I4, I42).

`h(k) = chain(h(k - 1), line k)`. The chain alone cannot show that its last lines were removed.
For that, compare it with a head that was kept elsewhere; every receipt and feed item has one.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from midrun.core.entries import Record, RunImported
from midrun.verify.checks import Problem

HashT = TypeVar("HashT")


def check_chain(
    lines: Iterable[tuple[bytes, HashT]],
    *,
    chain: Callable[[HashT, bytes], HashT],
    first_hash: HashT,
    head: tuple[int, HashT] | None = None,
) -> tuple[Problem, ...]:
    """Return the first problem of the stored lines, given with their stored hashes.

    It names the first line that was changed, removed, inserted or moved. The lines after it
    cannot be judged, because their hashes depend on it. `first_hash` is the hash before the
    first line; `head` is a seq and the hash that was kept for it.
    """
    before, count = first_hash, 0
    for count, (line, stored) in enumerate(lines, start=1):
        before = chain(before, line)
        # `before` is computed from the lines alone, so a forged stored hash does not help.
        if stored != before:
            text = f"Line {count} is not the line that was written as {count}."
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
    first_hash: bytes,
) -> tuple[Problem, ...]:
    """Return a problem for each import that does not name the hash of the lines before it.

    `lines` and `records` are the whole journal. `chain` and `first_hash` are those of a store
    without a key, as in the checkpoint. So a head that was kept by the store of origin can be
    compared with the one in the import.
    """
    problems: list[Problem] = []
    link = first_hash
    for line, record in zip(lines, records, strict=True):
        if isinstance(record.entry, RunImported) and record.entry.head != link.hex():
            text = f"The import names the head {record.entry.head}, not that of the lines."
            problems.append(Problem(invariant="I42", seq=record.seq, text=text))
        link = chain(link, line)
    return tuple(problems)
