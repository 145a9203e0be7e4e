"""Check the numbering, and compare the folded state with the ledger (I1, I2, I7, I26)."""

from midrun.core.entries import Entry, LateResult, Record
from midrun.core.evolve import evolve
from midrun.core.ids import RunId
from midrun.core.run_head import Head, build_head
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import JournalCorrupt
from midrun.verify.checks import JournalCheck, Problem
from midrun.verify.ledger import Ledger

FOLD_ERRORS = (
    JournalCorrupt,
    AssertionError,
    AttributeError,
    LookupError,
    StopIteration,
    TypeError,
    ValueError,
)
"""Exceptions that `evolve` may raise on entries that contradict each other."""


class NumberingCheck(JournalCheck):
    """Checks that the entries are numbered from 1 without gaps (I1)."""

    HANDLES_ALL = True

    _last_seq = 0

    def check_record(self, record: Record, _: Entry) -> None:
        """Check the number of the next record."""
        if record.seq != self._last_seq + 1:
            text = f"Entry {record.seq} follows entry {self._last_seq}."
            self.report("I1", record.seq, text)
        self._last_seq = record.seq


class FoldCheck(JournalCheck):
    """Folds the journal until an entry cannot be folded; compares the state with the ledger.

    It comes last for each record, so its ledger already contains the record.
    """

    def __init__(self, ledger: Ledger, problems: list[Problem], run: RunId) -> None:
        super().__init__(ledger, problems)
        self.state = State(run=run)
        self._failed = False
        self._last_seq = 0

    def check_record(self, record: Record, entry: Entry) -> None:
        """Fold the next record."""
        if self._failed:
            return
        self._last_seq = record.seq
        try:
            self.state = evolve(self.state, entry, record.at)
        except FOLD_ERRORS as problem:
            # The state is undefined from here on, so the rest of the journal is not folded.
            self._failed = True
            text = f"{type(entry).__name__} is not possible here: {problem}"
            self.report("I2", record.seq, text)
            return
        if isinstance(entry, LateResult):
            self._check_late_result(record, entry)

    def _check_late_result(self, record: Record, entry: LateResult) -> None:
        """Check that a late result ended its call only if the ledger agrees (I7)."""
        call, in_ledger = self.state.find_call(entry.call), self.ledger.calls.get(entry.call)
        if call is None or in_ledger is None:
            return
        if call.stage == "done" and in_ledger.stage != "done":
            text = f"A late result of attempt {entry.attempt} of {in_ledger} ended it."
            self.report("I7", record.seq, text)

    def check_end(self) -> None:
        """Compare the folded state with the ledger, which was filled without it."""
        if self._failed or not self._last_seq:
            return
        state, ledger = self.state, self.ledger
        if state.phase is Phase.WAITING and not ledger.open_asks:
            # Only an answer wakes a waiting run, so this one would wait for ever.
            self.report("I26", self._last_seq, "The run waits, but no ask is open.")
        from_state: tuple[object, ...] = (
            state.epoch,
            state.is_leased,
            {f"c{number}" for number in state.in_flight},
            {f"a{number}" for number in state.open_asks},
            len(state.calls),
        )
        from_ledger = (
            ledger.epoch,
            ledger.has_lease,
            set(ledger.calls_in_flight),
            set(ledger.open_asks),
            len(ledger.calls),
        )
        names = ("the epoch", "the lease", "calls in flight", "open asks", "the calls")
        for name, in_state, in_ledger in zip(names, from_state, from_ledger, strict=True):
            if in_state != in_ledger:
                text = f"The fold has {in_state} for {name}, the entries say {in_ledger}."
                self.report("I2", self._last_seq, text)

    def compare_with_fold(self, head: Head | None, state: State | None) -> None:
        """Compare the stored head and a given state with the fold."""
        if self._failed or not self._last_seq:
            return
        if head is not None and head != build_head(self.state):
            text = f"The stored head is {head}, but the journal gives {build_head(self.state)}."
            self.report("I2", self._last_seq, text)
        if state is not None and state != self.state:
            text = "Folding the journal gives another state than the one given with it."
            self.report("I2", self._last_seq, text)
