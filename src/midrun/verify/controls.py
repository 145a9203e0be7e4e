"""Controls: a request counts once, and no control is overtaken (I20, I21, I23, I32)."""

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
"""What people may ask of a run that is not being cancelled."""


class Controls(Watch):
    """Watches what people asked for, and whether it was kept."""

    __slots__ = ("_requests", "_resting")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._requests: dict[str, int] = {}
        self._resting = False  # paused or failed, and not resumed since

    def asked(self, record: Record, entry: Asked) -> None:
        """A request id is applied once."""
        if not entry.request:
            return
        first = self._requests.setdefault(entry.request, record.seq)
        if first != record.seq:
            text = f"Request {entry.request!r} was applied at {first} already."
            self.report("I20", record.seq, text)

    def interrupts(self, record: Record, entry: Asked) -> None:
        """Once a run is being cancelled, nobody but an operator's latch stops that."""
        self.asked(record, entry)
        if self.ledger.cancelled_at and not self.ledger.ended:  # what is over has its own rule
            since = self.ledger.cancelled_at
            text = f"{type(entry).__name__} came after the cancel at {since}."
            self.report("I32", record.seq, text)

    def settled(self, record: Record, entry: RunCompleted | RunWaiting) -> None:
        """An accepted pause beats an end that is not in the journal yet."""
        if self.ledger.held:
            self.report(
                "I21",
                record.seq,
                f"{type(entry).__name__} although a pause was accepted at {self.ledger.held} "
                "and nobody resumed the run.",
            )

    def rests(self, _: Record, __: RunPaused | RunFailed) -> None:
        """The run stops until somebody resumes it."""
        self._resting = True

    def resumed(self, record: Record, entry: RunResumed) -> None:
        """One resume per pause."""
        self.asked(record, entry)
        if not self._resting:
            text = "The run was resumed, but it had not stopped since the last time."
            self.report("I23", record.seq, text)
        self._resting = False

    def woken(self, _: Record, __: RunWoken) -> None:
        """The run goes on; a pause it was woken from is over."""
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
