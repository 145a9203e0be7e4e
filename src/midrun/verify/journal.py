"""`check_journal`: every promise that a journal alone can show to be broken.

One pass. A record goes to the subjects that have an arm for its kind, then into the books, then
into the fold. Where an entry breaks a promise that has a name, the fold's plain "cannot stand
here" about the same entry is left out.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from midrun.core.entries import KINDS, Entry, Record
from midrun.core.head import Head
from midrun.core.ids import RunId
from midrun.verify.asks import Asks
from midrun.verify.calls import Calls
from midrun.verify.controls import Controls
from midrun.verify.ends import Ends
from midrun.verify.folding import Folding, Numbers
from midrun.verify.frames import Frames
from midrun.verify.ledger import Ledger
from midrun.verify.money import Money
from midrun.verify.ownership import Ownership
from midrun.verify.problems import Problem, Watch
from midrun.verify.starts import Starts
from midrun.verify.undo import Undoing

ALWAYS: Final[tuple[type[Watch], ...]] = (Numbers, Ownership, Ends)
"""The subjects that every record concerns."""

SUBJECTS: Final[tuple[type[Watch], ...]] = (
    *ALWAYS,
    Starts,
    Calls,
    Controls,
    Asks,
    Undoing,
    Frames,
    Money,
)

ROUTES: Final[Mapping[type[Entry], tuple[int, ...]]] = {
    kind: tuple(
        number
        for number, subject in enumerate(SUBJECTS)
        if subject in ALWAYS or kind in subject.ARMS
    )
    for kind in KINDS
}

UNNAMED: Final = RunId("run_unnamed")


def check_journal(
    records: Iterable[Record], *, run: RunId = UNNAMED, head: Head | None = None
) -> tuple[Problem, ...]:
    """Return what is wrong with a journal, in the order of its entries; nothing if it is sound.

    `head`, if given, is what the store keeps beside the last of these records.
    """
    found: list[Problem] = []
    ledger = Ledger()
    subjects = [subject(ledger, found) for subject in SUBJECTS]
    folding = Folding(ledger, found, run)
    for record in records:
        for number in ROUTES[type(record.entry)]:
            subjects[number].see(record)
        ledger.note(record)
        folding.see(record)
    for subject in (*subjects, folding):
        subject.end()
    if head is not None:
        folding.compare(head)
    return _in_order(found)


def _in_order(found: list[Problem]) -> tuple[Problem, ...]:
    if not found:
        return ()
    named = {problem.seq for problem in found if problem.invariant != "I2"}
    kept = [p for p in found if p.invariant != "I2" or p.seq not in named]
    return tuple(sorted(kept, key=lambda problem: problem.seq))
