"""Check controls: applied once, and honoured by later entries (I20, I21, I23, I32)."""

from midrun.core.entries import (
    CancelRequested,
    HandedBack,
    MessageReceived,
    PauseRequested,
    PauseWithdrawn,
    PersonWrote,
    Record,
    RedirectRequested,
    RequestEntry,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunWaiting,
    RunWoken,
    TakenOver,
    ToolUsed,
)
from midrun.verify.checks import REQUEST_KINDS, JournalCheck, Problem, merge_handlers
from midrun.verify.ledger import Ledger

NOT_WHILE_CANCELLING = (
    PauseRequested,
    PauseWithdrawn,
    RedirectRequested,
    CancelRequested,
    MessageReceived,
    TakenOver,
    PersonWrote,
    ToolUsed,
    HandedBack,
)
"""Requests that are possible only while the run is not being cancelled."""


class ControlCheck(JournalCheck):
    """Checks requests: their ids, their place, and that a pause is honoured."""

    __slots__ = ("_is_resting", "_request_seqs")

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._request_seqs: dict[str, int] = {}  # request id → seq
        self._is_resting = False  # paused or failed, and not resumed since

    def check_request(self, record: Record, entry: RequestEntry) -> None:
        """Check that the request id was not applied before."""
        if not entry.request:
            return
        first = self._request_seqs.setdefault(entry.request, record.seq)
        if first != record.seq:
            text = f"Request {entry.request!r} was applied at {first} already."
            self.report("I20", record.seq, text)

    def check_interrupt(self, record: Record, entry: RequestEntry) -> None:
        """Check that no such request is accepted during a cancel; only a halt may stop it."""
        self.check_request(record, entry)
        # Entries after the end of a run are checked by `EndCheck` (I5).
        if self.ledger.cancelled_at and not self.ledger.end_phase:
            since = self.ledger.cancelled_at
            text = f"{type(entry).__name__} came after the cancel at {since}."
            self.report("I32", record.seq, text)

    def check_run_settled(self, record: Record, entry: RunCompleted | RunWaiting) -> None:
        """Check that the run did not complete or wait while a pause was in force."""
        if self.ledger.paused_at:
            self.report(
                "I21",
                record.seq,
                f"{type(entry).__name__} although a pause was accepted at "
                f"{self.ledger.paused_at} "
                "and the run was not resumed.",
            )

    def apply_run_rests(self, _: Record, __: RunPaused | RunFailed) -> None:
        """Record that the run stopped until it is resumed."""
        self._is_resting = True

    def check_run_resumed(self, record: Record, entry: RunResumed) -> None:
        """Check that the run had stopped since the last resume."""
        self.check_request(record, entry)
        if not self._is_resting:
            text = "The run was resumed, but it had not stopped since the last time."
            self.report("I23", record.seq, text)
        self._is_resting = False

    def apply_run_woken(self, _: Record, __: RunWoken) -> None:
        """Record that the run goes on, and that its pause is over."""
        self._is_resting = False

    HANDLERS = merge_handlers(
        dict.fromkeys(REQUEST_KINDS, check_request),
        dict.fromkeys(NOT_WHILE_CANCELLING, check_interrupt),
        {
            RunCompleted: check_run_settled,
            RunWaiting: check_run_settled,
            RunPaused: apply_run_rests,
            RunFailed: apply_run_rests,
            RunResumed: check_run_resumed,
            RunWoken: apply_run_woken,
        },
    )
