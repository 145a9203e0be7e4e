"""Check ends and rests: nothing in flight, nothing after the end (I5, I26, I28)."""

from typing import Final

from midrun.core import entries as e
from midrun.verify.checks import JournalCheck, merge_handlers

KINDS_AFTER_ANY_END: Final = frozenset(
    {e.LateResult, e.RequestNoted, e.ResidueAccepted, e.RunImported}
)
"""Entries that may follow the end of any run: late results, notes, and an import.

One more is possible: the parent run may cancel an ended child with `undo="all"`.
"""

KINDS_AFTER_CANCEL: Final = KINDS_AFTER_ANY_END | {e.UndoRetried}
"""Entries that may follow the end of a cancelled run: an operator may retry its undos."""

KINDS_DURING_UNDO_RETRY: Final = KINDS_AFTER_CANCEL | {
    e.CapRaised,
    e.LeaseTaken,
    e.RunCancelled,
    e.RunHalted,
    e.RunLifted,
    e.LeaseReleased,
    e.UndoDone,
    e.UndoFailed,
    e.UndoGaveUp,
    e.UndoStarted,
    e.UndoUnknown,
}
"""Entries that may follow once the undos of an ended run are retried."""


class EndCheck(JournalCheck):
    """Checks that nothing is in flight when a run rests or ends, and nothing follows an end."""

    HANDLES_ALL = True

    _first_end = ""  # the first end of the run: "completed" or "cancelled"
    _allowed_kinds: frozenset[type] | None = None  # None while the run has not ended
    _has_answer = False  # the agent has given its final answer

    def check_record(self, record: e.Record, entry: e.Entry) -> None:
        """Check that the record may follow the end of the run."""
        if self._allowed_kinds is None:
            return
        kind = type(entry)
        taken_back = isinstance(entry, e.CancelRequested) and self._is_by_parent(entry)
        if kind not in self._allowed_kinds and not taken_back:
            text = f"{kind.__name__} came after the run had been {self._first_end}."
            self.report("I5", record.seq, text)
        elif kind is e.UndoRetried or taken_back:
            # The run is cleaned up once more. Its next `RunCancelled` closes it again.
            self._allowed_kinds = KINDS_DURING_UNDO_RETRY

    def _is_by_parent(self, entry: e.CancelRequested) -> bool:
        spec = self.ledger.started_entry
        parent = spec.parent if spec is not None else None
        return parent is not None and entry.by == f"run:{parent.run}" and entry.undo == "all"

    def check_run_completed(self, record: e.Record, _: e.RunCompleted) -> None:
        """Check that nothing is in flight, and record the end."""
        self._check_nothing_in_flight(record, "I26", "completed")
        self._first_end = self._first_end or "completed"
        self._allowed_kinds = KINDS_AFTER_ANY_END

    def check_run_cancelled(self, record: e.Record, _: e.RunCancelled) -> None:
        """Check that nothing is in flight, and record the end by a cancel."""
        self._check_nothing_in_flight(record, "I28", "cancelled")
        self._first_end = self._first_end or "cancelled"
        self._allowed_kinds = KINDS_AFTER_CANCEL

    def check_run_rests(self, record: e.Record, entry: e.RunPaused | e.RunFailed) -> None:
        """Check that nothing is in flight when the run is paused or failed."""
        self._check_nothing_in_flight(
            record, "I26", "paused" if isinstance(entry, e.RunPaused) else "failed"
        )

    def check_run_waiting(self, record: e.Record, _: e.RunWaiting) -> None:
        """Check that nothing is in flight, and that an open ask blocks the run.

        Asks that do not block the agent are still waited for once it has given its answer.
        """
        self._check_nothing_in_flight(record, "I26", "waiting")
        asks = self.ledger.open_asks.values()
        if not asks:
            self.report("I26", record.seq, "The run waits, but no ask is open.")
        elif not self._has_answer and not any(ask.entry.blocking for ask in asks):
            names = ", ".join(self.ledger.open_asks)
            text = f"The run waits for {names}, although none of them blocks it."
            self.report("I26", record.seq, text)

    def _check_nothing_in_flight(self, record: e.Record, invariant: str, phase: str) -> None:
        books = self.ledger
        for made in books.calls_in_flight.values():
            text = f"The run is {phase} while {made} is in flight."
            self.report(invariant, record.seq, text)
        if books.undo_in_flight is not None:
            call, action = books.undo_in_flight
            text = f"The run is {phase} while the {action} of {call} is in flight."
            self.report(invariant, record.seq, text)

    def apply_call_done(self, _: e.Record, entry: e.CallDone) -> None:
        """Record whether a reply is an answer: no calls, and no invalid output."""
        if entry.reply is not None:
            self._has_answer = not (entry.reply.uses or entry.reply.invalid_output)

    def _apply_answer(self, *_: object) -> None:
        self._has_answer = True

    def apply_call_started(self, _: e.Record, entry: e.CallStarted) -> None:
        """Forget the answer when the next model call starts."""
        if entry.call_kind == "model":
            self._has_answer = False

    def _apply_new_input(self, *_: object) -> None:
        self._has_answer = False

    HANDLERS = merge_handlers(
        {
            e.RunCompleted: check_run_completed,
            e.RunCancelled: check_run_cancelled,
            e.RunPaused: check_run_rests,
            e.RunFailed: check_run_rests,
            e.RunWaiting: check_run_waiting,
            e.CallDone: apply_call_done,
            e.AnswerGiven: _apply_answer,
            e.StopReached: _apply_answer,
            e.PersonWrote: _apply_answer,
            e.CallStarted: apply_call_started,
        },
        dict.fromkeys(
            (
                e.RedirectApplied,
                e.MessageTaken,
                e.FramePushed,
                e.FrameResumed,
                e.FrameReconstructed,
                e.HandedBack,
            ),
            _apply_new_input,
        ),
    )
