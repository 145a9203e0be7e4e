"""Check ownership: one lease holder, older ones fenced, lost calls closed (I6 to I8, I41)."""

from typing import Final

from midrun.core import entries as e
from midrun.core.retries import WORKER_DEATHS_MAX, WORKERS_DIED_CODE
from midrun.verify.checks import JournalCheck, Problem, merge_handlers
from midrun.verify.ledger import Ledger

# Attempts: a run fails because its workers died only if enough of them died (I41).
#
# That the suspected call is not made again after that cannot be checked here: journals of older
# versions did repeat it, and are still valid. The simulator checks it.


class LostWorkerCheck(JournalCheck):
    """Counts the workers that did not give their lease back."""

    _lost_workers = 0  # since an operator last let the run continue

    def apply_lease_taken(self, *_: object) -> None:
        """Count a lost worker if the lease was taken while another one was held."""
        # The ledger still has the previous lease. If that one was not given back, its worker
        # died or was fenced.
        self._lost_workers += self.ledger.has_lease

    def reset_lost_workers(self, *_: object) -> None:
        """Restart the count, because an operator let the run continue."""
        self._lost_workers = 0

    def check_run_failed(self, record: e.Record, entry: e.RunFailed) -> None:
        """Check that enough workers died before the run failed for that reason."""
        if entry.code == WORKERS_DIED_CODE and self._lost_workers < WORKER_DEATHS_MAX:
            text = f"The run failed because workers died, but only {self._lost_workers} had."
            self.report("I41", record.seq, text)

    HANDLERS = merge_handlers(
        {e.LeaseTaken: apply_lease_taken, e.RunFailed: check_run_failed},
        dict.fromkeys((e.RunResumed, e.TakenOver), reset_lost_workers),
    )


LEASE_HOLDER_KINDS: Final = frozenset(
    {
        e.AnswerGiven,
        e.ArtifactShown,
        e.AskOpened,
        e.CallAborted,
        e.CallDone,
        e.CallFailed,
        e.CallStarted,
        e.StopReached,
        e.FramePushed,
        e.HandedOff,
        e.HistoryCondensed,
        e.MessageTaken,
        e.PlanMade,
        e.ProgressSaved,
        e.RedirectApplied,
        e.RunCompleted,
        e.RunFailed,
        e.LeaseReleased,
        e.UndoDone,
        e.UndoFailed,
        e.UndoGaveUp,
        e.UndoStarted,
        e.StopEvaluated,
    }
)
"""Entries that only the lease holder may write. All others may also come from a control."""


class OwnershipCheck(JournalCheck):
    """Checks for every record that its writer was allowed to write it."""

    HANDLES_ALL = True

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._lost_calls: set[tuple[str, str]] = set()  # left in flight by the previous worker
        self._lease_taken_at = 0  # seq of the `LeaseTaken` whose append must close them
        self._settled_late: set[str] = set()  # calls that a late result has settled

    def check_record(self, record: e.Record, entry: e.Entry) -> None:
        """Check the epoch of a record, and that lost calls are closed first."""
        if self._lost_calls:
            self._expect_lost_call_closed(record)
        epoch, ledger, kind = record.epoch, self.ledger, type(entry)
        # Two writers are right: the current lease holder, and a control, which has no epoch and
        # writes none of `LEASE_HOLDER_KINDS`. `LeaseTaken` and `LateResult` have rules of their
        # own.
        if epoch == ledger.epoch if epoch is not None else kind not in LEASE_HOLDER_KINDS:
            if kind in LEASE_HOLDER_KINDS and not ledger.has_lease:
                text = f"{kind.__name__} was written after the lease had been given back."
                self.report("I6", record.seq, text)
        elif kind is not e.LeaseTaken and kind is not e.LateResult:
            self._report_writer(record)

    def check_end(self) -> None:
        """Check that the last append closed all lost calls."""
        self._report_lost_calls()

    def check_lease_taken(self, record: e.Record, entry: e.LeaseTaken) -> None:
        """Check that the epoch grows; remember the calls in flight as lost."""
        ledger = self.ledger
        if entry.epoch <= ledger.epoch or record.epoch not in {None, entry.epoch}:
            self.report(
                "I6",
                record.seq,
                f"The lease was taken with epoch {entry.epoch}, written under {record.epoch}, "
                f"when the run was at epoch {ledger.epoch} already.",
            )
        self._lease_taken_at = record.seq
        self._lost_calls = {(call, "call") for call in ledger.calls_in_flight}
        if ledger.undo_in_flight is not None:
            self._lost_calls.add(ledger.undo_in_flight)

    def _expect_lost_call_closed(self, record: e.Record) -> None:
        """Expect the record to close a lost call; report the remaining ones if it does not.

        The append that takes the lease also closes every call in flight as unknown. So the
        records right after `LeaseTaken` must be those, with nothing in between.
        """
        entry = record.entry
        if isinstance(entry, e.CallUnknown):
            closed = (str(entry.call), "call")
        elif isinstance(entry, e.UndoUnknown):
            closed = (entry.call, entry.action)
        else:
            closed = ("", "")
        if closed in self._lost_calls:
            self._lost_calls.discard(closed)
        else:
            self._report_lost_calls()

    def _report_lost_calls(self) -> None:
        for call, what in sorted(self._lost_calls):
            of_call = "in flight" if what == "call" else f"being cleaned up ({what})"
            self.report(
                "I8",
                self._lease_taken_at,
                f"The lease was taken while {call} was {of_call}, "
                "and the same append did not close it as unknown.",
            )
        self._lost_calls = set()

    def check_late_result(self, record: e.Record, entry: e.LateResult) -> None:
        """Check the epoch of a late result, and remember the call that it settles."""
        if entry.epoch > self.ledger.epoch:
            self.report(
                "I7",
                record.seq,
                f"A late result of {entry.call} claims epoch {entry.epoch}, "
                f"which the run has not reached: it is at {self.ledger.epoch}.",
            )
        if self.ledger.settles_attempt(entry):
            self._settled_late.add(entry.call)

    def check_ask_closed(self, record: e.Record, entry: e.AskClosed) -> None:
        """Check that an ask that was closed by evidence has a late result."""
        ask = self.ledger.asks.get(entry.ask) if entry.why == "evidence" else None
        if ask is not None and ask.call not in self._settled_late:
            self.report(
                "I7",
                record.seq,
                f"{entry.ask} was closed by evidence, but no late result belongs to the "
                f"unknown attempt of {ask.call}.",
            )

    def _report_writer(self, record: e.Record) -> None:
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

    HANDLERS = merge_handlers(
        {
            e.LeaseTaken: check_lease_taken,
            e.LateResult: check_late_result,
            e.AskClosed: check_ask_closed,
        }
    )
