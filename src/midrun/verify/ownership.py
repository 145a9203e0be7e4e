"""Check ownership: one lease holder, older ones fenced, orphans closed (I6 to I8, I41)."""

from typing import Final

from midrun.core.entries import (
    AnswerGiven,
    AskClosed,
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    EndReached,
    Entry,
    FramePushed,
    HistoryCondensed,
    LateResult,
    LeaseTaken,
    MessageTaken,
    PlanMade,
    ProgressSaved,
    Record,
    RedirectApplied,
    RunCompleted,
    RunFailed,
    RunResumed,
    StoodDown,
    TakenOver,
    UndoDone,
    UndoFailed,
    UndoGaveUp,
    UndoStarted,
    UndoUnknown,
    VerdictGiven,
)
from midrun.core.retries import DEATHS, DIED
from midrun.verify.checks import Problem, Watch, arms
from midrun.verify.ledger import Ledger

# Attempts: a run fails because its workers died only if enough of them died (I41).
#
# That the suspected call is not made again after that cannot be checked here: journals of older
# versions did repeat it, and are still valid. The simulator checks it.


class Attempts(Watch):
    """Counts the workers that did not give their lease back."""

    __slots__ = ("_lost",)

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._lost = 0  # since an operator last let the run go on

    def leased(self, *_: object) -> None:
        """Count a lost worker if the lease was taken while another one was held."""
        # The ledger still has the previous lease. If that one was not given back, its worker
        # died or was fenced.
        self._lost += self.ledger.leased

    def let_go_on(self, *_: object) -> None:
        """Restart the count, because an operator let the run go on."""
        self._lost = 0

    def failed(self, record: Record, entry: RunFailed) -> None:
        """Check that enough workers died before the run failed for that reason."""
        if entry.code == DIED and self._lost < DEATHS:
            text = f"The run failed because workers died, but only {self._lost} had."
            self.report("I41", record.seq, text)

    ARMS = arms(
        {LeaseTaken: leased, RunFailed: failed},
        dict.fromkeys((RunResumed, TakenOver), let_go_on),
    )


DRIVERS: Final = frozenset(
    {
        AnswerGiven,
        AskOpened,
        CallAborted,
        CallDone,
        CallFailed,
        CallStarted,
        EndReached,
        FramePushed,
        HistoryCondensed,
        MessageTaken,
        PlanMade,
        ProgressSaved,
        RedirectApplied,
        RunCompleted,
        RunFailed,
        StoodDown,
        UndoDone,
        UndoFailed,
        UndoGaveUp,
        UndoStarted,
        VerdictGiven,
    }
)
"""Entries that only the lease holder may write. All others may also come from a control."""


class Ownership(Watch):
    """Checks for every record that its writer was allowed to write it."""

    CONCERNS_ALL = True

    __slots__ = ("_evidence", "_orphans", "_taken")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._orphans: set[tuple[str, str]] = set()  # left in flight by the previous worker
        self._taken = 0  # seq of the `LeaseTaken` whose append must close the orphans
        self._evidence: set[str] = set()  # calls that a late result has settled

    def look(self, record: Record, entry: Entry) -> None:
        """Check the epoch of a record, and that orphans are closed first."""
        if self._orphans:
            self._orphan(record)
        epoch, books, kind = record.epoch, self.ledger, type(entry)
        # Two writers are right: the current lease holder, and a control, which has no epoch and
        # writes none of `LEASE_HOLDER_KINDS`. `LeaseTaken` and `LateResult` have rules of their
        # own.
        if epoch == books.epoch if epoch is not None else kind not in DRIVERS:
            if kind in DRIVERS and not books.leased:
                text = f"{kind.__name__} was written after the lease had been given back."
                self.report("I6", record.seq, text)
        elif kind is not LeaseTaken and kind is not LateResult:
            self._foreign(record)

    def end(self) -> None:
        """Check that the last append closed all orphans."""
        self._left_behind()

    def lease_taken(self, record: Record, entry: LeaseTaken) -> None:
        """Check that the epoch grows; remember the calls in flight as orphans."""
        books = self.ledger
        if entry.epoch <= books.epoch or record.epoch not in {None, entry.epoch}:
            self.report(
                "I6",
                record.seq,
                f"The lease was taken with epoch {entry.epoch}, written under {record.epoch}, "
                f"when the run was at epoch {books.epoch} already.",
            )
        self._taken = record.seq
        self._orphans = {(call, "call") for call in books.flying}
        if books.undoing is not None:
            self._orphans.add(books.undoing)

    def _orphan(self, record: Record) -> None:
        """Expect the record to close an orphan; report the remaining ones if it does not.

        The append that takes the lease also closes every call in flight as unknown. So the
        records right after `LeaseTaken` must be those, with nothing in between.
        """
        entry = record.entry
        if isinstance(entry, CallUnknown):
            closed = (str(entry.call), "call")
        elif isinstance(entry, UndoUnknown):
            closed = (entry.call, entry.action)
        else:
            closed = ("", "")
        if closed in self._orphans:
            self._orphans.discard(closed)
        else:
            self._left_behind()

    def _left_behind(self) -> None:
        for call, what in sorted(self._orphans):
            of_call = "in flight" if what == "call" else f"being cleaned up ({what})"
            self.report(
                "I8",
                self._taken,
                f"The lease was taken while {call} was {of_call}, "
                "and the same append did not close it as unknown.",
            )
        self._orphans = set()

    def late(self, record: Record, entry: LateResult) -> None:
        """Check the epoch of a late result, and remember the call that it settles."""
        if entry.epoch > self.ledger.epoch:
            self.report(
                "I7",
                record.seq,
                f"A late result of {entry.call} claims epoch {entry.epoch}, "
                f"which the run has not reached: it is at {self.ledger.epoch}.",
            )
        if self.ledger.settles(entry):
            self._evidence.add(entry.call)

    def ask_closed(self, record: Record, entry: AskClosed) -> None:
        """Check that an ask that was closed by evidence has a late result."""
        ask = self.ledger.asks.get(entry.ask) if entry.why == "evidence" else None
        if ask is not None and ask.call not in self._evidence:
            self.report(
                "I7",
                record.seq,
                f"{entry.ask} was closed by evidence, but no late result belongs to the "
                f"unknown attempt of {ask.call}.",
            )

    def _foreign(self, record: Record) -> None:
        epoch, current, what = record.epoch, self.ledger.epoch, type(record.entry).__name__
        if epoch is None:
            text = f"{what} was written without the lease, which only its holder may do."
            self.report("I6", record.seq, text)
        elif epoch < current:
            text = f"A worker of epoch {epoch} wrote {what}, but the run is at {current}."
            self.report("I7", record.seq, text)
        else:
            text = f"{what} was written under epoch {epoch}, which was never taken."
            self.report("I6", record.seq, text)

    ARMS = arms({LeaseTaken: lease_taken, LateResult: late, AskClosed: ask_closed})
