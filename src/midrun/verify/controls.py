"""Check controls: applied once, and honoured by later entries (I20, I21, I23, I32)."""

from midrun.core.entries import (
    Asked,
    CancelRequested,
    HandedBack,
    MessageReceived,
    PauseRequested,
    PauseWithdrawn,
    PersonWrote,
    Record,
    RedirectRequested,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunResumed,
    RunWaiting,
    RunWoken,
    TakenOver,
    ToolUsed,
)
from midrun.verify.checks import ASKED, Problem, Watch, arms
from midrun.verify.ledger import Ledger

INTERRUPTS = (
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


class Controls(Watch):
    """Checks requests: their ids, their place, and that a pause is honoured."""

    __slots__ = ("_requests", "_resting")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._requests: dict[str, int] = {}  # request id → seq
        self._resting = False  # paused or failed, and not resumed since

    def asked(self, record: Record, entry: Asked) -> None:
        """Check that the request id was not applied before."""
        if not entry.request:
            return
        first = self._requests.setdefault(entry.request, record.seq)
        if first != record.seq:
            text = f"Request {entry.request!r} was applied at {first} already."
            self.report("I20", record.seq, text)

    def interrupts(self, record: Record, entry: Asked) -> None:
        """Check that no such request is accepted during a cancel; only a halt may stop it."""
        self.asked(record, entry)
        # Entries after the end of a run are checked by `EndCheck` (I5).
        if self.ledger.cancelled_at and not self.ledger.ended:
            since = self.ledger.cancelled_at
            text = f"{type(entry).__name__} came after the cancel at {since}."
            self.report("I32", record.seq, text)

    def settled(self, record: Record, entry: RunCompleted | RunWaiting) -> None:
        """Check that the run did not complete or wait while a pause was in force."""
        if self.ledger.held:
            self.report(
                "I21",
                record.seq,
                f"{type(entry).__name__} although a pause was accepted at {self.ledger.held} "
                "and the run was not resumed.",
            )

    def rests(self, _: Record, __: RunPaused | RunFailed) -> None:
        """Record that the run stopped until it is resumed."""
        self._resting = True

    def resumed(self, record: Record, entry: RunResumed) -> None:
        """Check that the run had stopped since the last resume."""
        self.asked(record, entry)
        if not self._resting:
            text = "The run was resumed, but it had not stopped since the last time."
            self.report("I23", record.seq, text)
        self._resting = False

    def woken(self, _: Record, __: RunWoken) -> None:
        """Record that the run goes on, and that its pause is over."""
        self._resting = False

    ARMS = arms(
        dict.fromkeys(ASKED, asked),
        dict.fromkeys(INTERRUPTS, interrupts),
        {
            RunCompleted: settled,
            RunWaiting: settled,
            RunPaused: rests,
            RunFailed: rests,
            RunResumed: resumed,
            RunWoken: woken,
        },
    )
