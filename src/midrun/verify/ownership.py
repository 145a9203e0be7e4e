"""Ownership: one driver at a time, older ones fenced off, orphans closed (I6, I7, I8)."""

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

# Attempts: a run rests for what ended its drivers only if enough of them ended (I41).
#
# That such a call is not made again is no rule for a journal: those of before may have it made
# again for as long as it takes, and are as true as ever. The simulator looks at it.


class Attempts(Watch):
    """Watches how many drivers of the run did not give their lease back."""

    __slots__ = ("_lost",)

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._lost = 0  # since a person let the run go on

    def leased(self, *_: object) -> None:
        """A driver has the run; the last one may not have given it back."""
        self._lost += self.ledger.leased

    def let_go_on(self, *_: object) -> None:
        """A person has read what was; it counts from here."""
        self._lost = 0

    def failed(self, record: Record, entry: RunFailed) -> None:
        """A run does not rest for deaths that were none."""
        if entry.code == DIED and self._lost < DEATHS:
            text = f"The run failed of drivers that died, but only {self._lost} had."
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
"""What only the holder of the lease writes. Everything else may also come from a control."""


class Ownership(Watch):
    """Sees every record: each one has a writer."""

    CONCERNS_ALL = True

    __slots__ = ("_evidence", "_orphans", "_taken")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._orphans: set[tuple[str, str]] = set()
        self._taken = 0  # where the lease was taken that must close the orphans
        self._evidence: set[str] = set()  # calls that a late result has settled

    def look(self, record: Record, entry: Entry) -> None:
        """Look at who wrote the record, and whether they could."""
        if self._orphans:
            self._orphan(record)
        epoch, books, kind = record.epoch, self.ledger, type(entry)
        if epoch == books.epoch if epoch is not None else kind not in DRIVERS:
            if kind in DRIVERS and not books.leased:
                text = f"{kind.__name__} was written after the lease had been given back."
                self.report("I6", record.seq, text)
        elif kind is not LeaseTaken and kind is not LateResult:
            self._foreign(record)

    def end(self) -> None:
        """The last batch must have been complete."""
        self._left_behind()

    def lease_taken(self, record: Record, entry: LeaseTaken) -> None:
        """A driver takes the run, and with it whatever was in flight."""
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
        """Close one orphan, or find that some were left behind."""
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
        """An older epoch brings evidence."""
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
        """An ask is closed by evidence only if there is some."""
        ask = self.ledger.asks.get(entry.ask) if entry.why == "evidence" else None
        if ask is not None and ask.call not in self._evidence:
            self.report(
                "I7",
                record.seq,
                f"{entry.ask} was closed by evidence, but no late result was of the attempt "
                f"of {ask.call} that nobody knew about.",
            )

    def _foreign(self, record: Record) -> None:
        epoch, current, what = record.epoch, self.ledger.epoch, type(record.entry).__name__
        if epoch is None:
            text = f"{what} was written without the lease, which only its holder may do."
            self.report("I6", record.seq, text)
        elif epoch < current:
            text = f"A driver of epoch {epoch} wrote {what}, but the run is at {current}."
            self.report("I7", record.seq, text)
        else:
            text = f"{what} was written under epoch {epoch}, which nobody has taken."
            self.report("I6", record.seq, text)

    ARMS = arms({LeaseTaken: lease_taken, LateResult: late, AskClosed: ask_closed})
