"""Check ends and rests: nothing in flight, nothing after the end (I5, I26, I28)."""

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
"""Entries that may follow the end of any run: late results, notes, and an import.

One more is possible: the parent run may cancel an ended child with `undo="all"`.
"""

REMAINS: Final = NOTES | {UndoRetried}
"""Entries that may follow the end of a cancelled run: an operator may retry its undos."""

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
"""Entries that may follow once the undos of an ended run are retried."""


class Ends(Watch):
    """Checks that nothing is in flight when a run rests or ends, and nothing follows an end."""

    CONCERNS_ALL = True

    __slots__ = ("_answer", "_first", "_may_follow")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._first = ""  # the first end of the run: "completed" or "cancelled"
        self._may_follow: frozenset[type] | None = None  # None while the run has not ended
        self._answer = False  # the agent has given its final answer

    def look(self, record: Record, entry: Entry) -> None:
        """Check that the record may follow the end of the run."""
        if self._may_follow is None:
            return
        kind = type(entry)
        taken_back = isinstance(entry, CancelRequested) and self._by_parent(entry)
        if kind not in self._may_follow and not taken_back:
            text = f"{kind.__name__} came after the run had been {self._first}."
            self.report("I5", record.seq, text)
        elif kind is UndoRetried or taken_back:
            # The run is cleaned up once more. Its next `RunCancelled` closes it again.
            self._may_follow = AGAIN

    def _by_parent(self, entry: CancelRequested) -> bool:
        spec = self.ledger.spec
        parent = spec.parent if spec is not None else None
        return parent is not None and entry.by == f"run:{parent.run}" and entry.undo == "all"

    def completed(self, record: Record, _: RunCompleted) -> None:
        """Check that nothing is in flight, and record the end."""
        self._idle(record, "I26", "completed")
        self._first = self._first or "completed"
        self._may_follow = NOTES

    def cancelled(self, record: Record, _: RunCancelled) -> None:
        """Check that nothing is in flight, and record the end by a cancel."""
        self._idle(record, "I28", "cancelled")
        self._first = self._first or "cancelled"
        self._may_follow = REMAINS

    def rested(self, record: Record, entry: RunPaused | RunFailed) -> None:
        """Check that nothing is in flight when the run is paused or failed."""
        self._idle(record, "I26", "paused" if isinstance(entry, RunPaused) else "failed")

    def waiting(self, record: Record, _: RunWaiting) -> None:
        """Check that nothing is in flight, and that an open ask blocks the run.

        Asks that do not block the agent are still waited for once it has given its answer.
        """
        self._idle(record, "I26", "waiting")
        asks = self.ledger.open_asks.values()
        if not asks:
            self.report("I26", record.seq, "The run waits, but no ask is open.")
        elif not self._answer and not any(ask.entry.blocking for ask in asks):
            names = ", ".join(self.ledger.open_asks)
            text = f"The run waits for {names}, although none of them blocks it."
            self.report("I26", record.seq, text)

    def _idle(self, record: Record, invariant: str, phase: str) -> None:
        books = self.ledger
        for made in books.flying.values():
            text = f"The run is {phase} while {made} is in flight."
            self.report(invariant, record.seq, text)
        if books.undoing is not None:
            call, action = books.undoing
            text = f"The run is {phase} while the {action} of {call} is in flight."
            self.report(invariant, record.seq, text)

    def done(self, _: Record, entry: CallDone) -> None:
        """Record whether a reply is an answer: it requests no calls."""
        if entry.reply is not None:
            self._answer = not entry.reply.uses

    def answer(self, *_: object) -> None:
        """Record that there is an answer."""
        self._answer = True

    def started(self, _: Record, entry: CallStarted) -> None:
        """Forget the answer when the next model call starts."""
        if entry.call_kind == "model":
            self._answer = False

    def reopened(self, *_: object) -> None:
        """Forget the answer because the agent has new input."""
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
