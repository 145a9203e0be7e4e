"""Ends: what is said to be over is over (I5, I26)."""

from typing import Final

from midrun.core.entries import (
    AnswerGiven,
    CallDone,
    CallStarted,
    CancelRequested,
    CapRaised,
    EndReached,
    Entry,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedBack,
    LateResult,
    LeaseTaken,
    MessageTaken,
    PersonWrote,
    Record,
    RedirectApplied,
    RequestNoted,
    ResidueAccepted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunHalted,
    RunImported,
    RunLifted,
    RunPaused,
    RunWaiting,
    StoodDown,
    UndoDone,
    UndoFailed,
    UndoGaveUp,
    UndoRetried,
    UndoStarted,
    UndoUnknown,
)
from midrun.verify.checks import Problem, Watch, arms
from midrun.verify.ledger import Ledger

NOTES: Final = frozenset({LateResult, RequestNoted, ResidueAccepted, RunImported})
"""What may follow the end of any run: evidence, notes, and an import with its family.

And that its parent takes it back: a cancel of everything, by the parent and nobody else.
"""

REMAINS: Final = NOTES | {UndoRetried}
"""What may follow a cancelled run: also what an operator does about the residue."""

AGAIN: Final = REMAINS | {
    CapRaised,
    LeaseTaken,
    RunCancelled,
    RunHalted,
    RunLifted,
    StoodDown,
    UndoDone,
    UndoFailed,
    UndoGaveUp,
    UndoStarted,
    UndoUnknown,
}
"""What trying the residue again may bring."""


class Ends(Watch):
    """Watches that nothing is in flight when a run says so, and that an end is one."""

    CONCERNS_ALL = True

    __slots__ = ("_answer", "_first", "_may_follow")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._first = ""  # how the run ended, the first time
        self._may_follow: frozenset[type] | None = None  # None while it has not
        self._answer = False  # the agent has said what it would end with

    def look(self, record: Record, entry: Entry) -> None:
        """Look at what follows an end before anything else."""
        if self._may_follow is None:
            return
        kind = type(entry)
        taken_back = isinstance(entry, CancelRequested) and self._by_parent(entry)
        if kind not in self._may_follow and not taken_back:
            text = f"{kind.__name__} came after the run had been {self._first}."
            self.report("I5", record.seq, text)
        elif kind is UndoRetried or taken_back:
            self._may_follow = AGAIN

    def _by_parent(self, entry: CancelRequested) -> bool:
        spec = self.ledger.spec
        parent = spec.parent if spec is not None else None
        return parent is not None and entry.by == f"run:{parent.run}" and entry.undo == "all"

    def completed(self, record: Record, _: RunCompleted) -> None:
        """The run has reached its end."""
        self._idle(record, "I26", "completed")
        self._first = self._first or "completed"
        self._may_follow = NOTES

    def cancelled(self, record: Record, _: RunCancelled) -> None:
        """The run is over, and so is everything that it began."""
        self._idle(record, "I28", "cancelled")
        self._first = self._first or "cancelled"
        self._may_follow = REMAINS

    def rested(self, record: Record, entry: RunPaused | RunFailed) -> None:
        """Nothing runs and nothing is spent."""
        self._idle(record, "I26", "paused" if isinstance(entry, RunPaused) else "failed")

    def waiting(self, record: Record, _: RunWaiting) -> None:
        """That, and somebody is asked something that the run cannot go on without."""
        self._idle(record, "I26", "waiting")
        asks = self.ledger.open_asks.values()
        if not asks:
            self.report("I26", record.seq, "The run waits, but nobody is asked anything.")
        elif not self._answer and not any(ask.entry.blocking for ask in asks):
            names = ", ".join(self.ledger.open_asks)
            text = f"The run waits for {names}, which it could go on without."
            self.report("I26", record.seq, text)

    def _idle(self, record: Record, invariant: str, phase: str) -> None:
        books = self.ledger
        for made in books.flying.values():
            text = f"The run is said to be {phase} while {made} is in flight."
            self.report(invariant, record.seq, text)
        if books.undoing is not None:
            call, action = books.undoing
            text = f"The run is said to be {phase} while the {action} of {call} is in flight."
            self.report(invariant, record.seq, text)

    def done(self, _: Record, entry: CallDone) -> None:
        """A reply that asks for no calls is an answer."""
        if entry.reply is not None:
            self._answer = not entry.reply.uses

    def answer(self, *_: object) -> None:
        """There is an answer."""
        self._answer = True

    def started(self, _: Record, entry: CallStarted) -> None:
        """The agent thinks again."""
        if entry.call_kind == "model":
            self._answer = False

    def reopened(self, *_: object) -> None:
        """There is something new to think about."""
        self._answer = False

    ARMS = arms(
        {
            RunCompleted: completed,
            RunCancelled: cancelled,
            RunPaused: rested,
            RunFailed: rested,
            RunWaiting: waiting,
            CallDone: done,
            AnswerGiven: answer,
            EndReached: answer,
            PersonWrote: answer,
            CallStarted: started,
        },
        dict.fromkeys(
            (
                RedirectApplied,
                MessageTaken,
                FramePushed,
                FrameResumed,
                FrameReconstructed,
                HandedBack,
            ),
            reopened,
        ),
    )
