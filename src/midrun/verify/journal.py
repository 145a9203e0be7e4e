"""`check_journal`: check all invariants that can be decided from the journal alone.

The journal is read once. Each record goes to the checks that handle its kind
(`HANDLERS_BY_KIND`), then into the ledger, then into the fold. The fold rejects most wrong
entries too, but only with a general message (I2). If a check has named the broken invariant,
that message is left out.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from midrun.core.entries import ENTRY_TYPES, Entry, Record, RunImported
from midrun.core.ids import RunId
from midrun.core.run_head import Head
from midrun.core.state import State
from midrun.verify.calls import AttemptCheck, StartCheck
from midrun.verify.caps import CapCheck
from midrun.verify.checks import JournalCheck, Problem, RecordHandler
from midrun.verify.conversation import ConversationCheck
from midrun.verify.ledger import Ledger
from midrun.verify.ownership import LostWorkerCheck, OwnershipCheck
from midrun.verify.replay import FoldCheck, NumberingCheck
from midrun.verify.requests import AskCheck, ControlCheck
from midrun.verify.terminal_phases import EndCheck
from midrun.verify.undo import UndoCheck

# Check the hash chain: the stored bytes are the bytes that were written (I4, I42).
#
# `h(k) = chain(h(k - 1), line k)`. The chain alone cannot show that its last lines were
# removed. For that, compare it with a head that was kept elsewhere; every receipt and feed item
# has one.

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


CHECKS: Final[tuple[type[JournalCheck], ...]] = (
    NumberingCheck,
    OwnershipCheck,
    EndCheck,
    StartCheck,
    AttemptCheck,
    LostWorkerCheck,
    ControlCheck,
    AskCheck,
    UndoCheck,
    ConversationCheck,
    CapCheck,
)


def _find_handlers(kind: type[Entry]) -> tuple[tuple[int, RecordHandler], ...]:
    """Return the handlers for entries of `kind`, each with the index of its check."""
    handlers = (
        (number, handler)
        for number, check in enumerate(CHECKS)
        for handler in (
            check.check_record if check.HANDLES_ALL else None,
            check.HANDLERS.get(kind),
        )
    )
    return tuple((number, handler) for number, handler in handlers if handler is not None)


# Computed once at import: verifying long journals spends its time on this dispatch.
HANDLERS_BY_KIND: Final[Mapping[type[Entry], tuple[tuple[int, RecordHandler], ...]]] = {
    kind: _find_handlers(kind) for kind in ENTRY_TYPES
}

UNNAMED_RUN: Final = RunId("run_unnamed")


def check_journal(
    records: Iterable[Record],
    *,
    run: RunId = UNNAMED_RUN,
    head: Head | None = None,
    state: State | None = None,
) -> tuple[Problem, ...]:
    """Return the problems of a journal, in the order of its entries; () if it is sound.

    The records must end where an append ended: some invariants hold only between appends.
    `head` is the head that the store keeps for the last record, and `state` a state that should
    result from the records. If given, both are compared with the fold.
    """
    problems: list[Problem] = []
    ledger = Ledger()
    checks = [check(ledger, problems) for check in CHECKS]
    folding = FoldCheck(ledger, problems, run if state is None else state.run)
    for record in records:
        entry = record.entry
        for number, handler in HANDLERS_BY_KIND[type(entry)]:
            handler(checks[number], record, entry)
        ledger.apply(record)
        folding.check_record(record, entry)
    for check in (*checks, folding):
        check.check_end()
    folding.compare_with_fold(head, state)
    return _sort_problems(problems)


def _sort_problems(found: list[Problem]) -> tuple[Problem, ...]:
    if not found:
        return ()
    # Drop the fold's general problem (I2) where a check has named the broken invariant.
    named = {problem.seq for problem in found if problem.invariant != "I2"}
    remaining = [p for p in found if p.invariant != "I2" or p.seq not in named]
    return tuple(sorted(remaining, key=lambda problem: problem.seq))
