"""`check_journal`: check all invariants that can be decided from the journal alone.

The journal is read once. Each record goes to the checks that handle its kind
(`HANDLERS_BY_KIND`), then into the ledger, then into the fold. The fold rejects most wrong
entries too, but only with a general message (I2). If a check has named the broken invariant,
that message is left out.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from midrun.core.entries import KINDS, Entry, Record
from midrun.core.ids import RunId
from midrun.core.run_head import Head
from midrun.core.state import State
from midrun.verify.asks import Asks
from midrun.verify.calls import Calls, Starts
from midrun.verify.caps import Money
from midrun.verify.checks import Arm, Problem, Watch
from midrun.verify.controls import Controls
from midrun.verify.conversation import Frames
from midrun.verify.ledger import Ledger
from midrun.verify.ownership import Attempts, Ownership
from midrun.verify.replay import Folding, Numbers
from midrun.verify.terminal_phases import Ends
from midrun.verify.undo import Undoing

SUBJECTS: Final[tuple[type[Watch], ...]] = (
    Numbers,
    Ownership,
    Ends,
    Starts,
    Calls,
    Attempts,
    Controls,
    Asks,
    Undoing,
    Frames,
    Money,
)


def _route(kind: type[Entry]) -> tuple[tuple[int, Arm], ...]:
    """Return the handlers for entries of `kind`, each with the index of its check."""
    handlers = (
        (number, handler)
        for number, check in enumerate(SUBJECTS)
        for handler in (
            check.look if check.CONCERNS_ALL else None,
            check.ARMS.get(kind),
        )
    )
    return tuple((number, handler) for number, handler in handlers if handler is not None)


# Computed once at import: verifying long journals spends its time on this dispatch.
ROUTES: Final[Mapping[type[Entry], tuple[tuple[int, Arm], ...]]] = {
    kind: _route(kind) for kind in KINDS
}

UNNAMED: Final = RunId("run_unnamed")


def check_journal(
    records: Iterable[Record],
    *,
    run: RunId = UNNAMED,
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
    checks = [check(ledger, problems) for check in SUBJECTS]
    folding = Folding(ledger, problems, run if state is None else state.run)
    for record in records:
        entry = record.entry
        for number, handler in ROUTES[type(entry)]:
            handler(checks[number], record, entry)
        ledger.note(record)
        folding.look(record, entry)
    for check in (*checks, folding):
        check.end()
    folding.compare(head, state)
    return _in_order(problems)


def _in_order(found: list[Problem]) -> tuple[Problem, ...]:
    if not found:
        return ()
    # Drop the fold's general problem (I2) where a check has named the broken invariant.
    named = {problem.seq for problem in found if problem.invariant != "I2"}
    remaining = [p for p in found if p.invariant != "I2" or p.seq not in named]
    return tuple(sorted(remaining, key=lambda problem: problem.seq))
