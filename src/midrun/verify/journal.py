"""`check_journal`: every promise that a journal alone can show to be broken.

One pass. A record goes to the subjects that have an arm for its kind, then into the books, then
into the fold. Where an entry breaks a promise that has a name, the fold's plain "cannot stand
here" about the same entry is left out.
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
    """Return which subjects look at entries of `kind`, in order, and with which arm."""
    looks = (
        (number, look)
        for number, subject in enumerate(SUBJECTS)
        for look in (
            subject.look if subject.CONCERNS_ALL else None,
            subject.ARMS.get(kind),
        )
    )
    return tuple((number, look) for number, look in looks if look is not None)


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
    """Return what is wrong with a journal, in the order of its entries; nothing if it is sound.

    The records must end where an append ended. `head` is what the store keeps beside the last
    of them, `state` what somebody thinks they mean; both are held against the fold, if given.
    """
    found: list[Problem] = []
    ledger = Ledger()
    subjects = [subject(ledger, found) for subject in SUBJECTS]
    folding = Folding(ledger, found, run if state is None else state.run)
    for record in records:
        entry = record.entry
        for number, look in ROUTES[type(entry)]:
            look(subjects[number], record, entry)
        ledger.note(record)
        folding.look(record, entry)
    for subject in (*subjects, folding):
        subject.end()
    folding.compare(head, state)
    return _in_order(found)


def _in_order(found: list[Problem]) -> tuple[Problem, ...]:
    if not found:
        return ()
    named = {problem.seq for problem in found if problem.invariant != "I2"}
    kept = [p for p in found if p.invariant != "I2" or p.seq not in named]
    return tuple(sorted(kept, key=lambda problem: problem.seq))
