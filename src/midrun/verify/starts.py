"""Starts: what must not leave the process, and when (I10, I11, I12, I13)."""

from midrun.core.entries import (
    AskAnswered,
    CallProposed,
    CallStarted,
    Entry,
    Record,
    RequestNoted,
    RunHalted,
    RunLifted,
    RunStarted,
    UndoStarted,
)
from midrun.verify.ledger import Ledger
from midrun.verify.problems import ASKED, Problem, Watch, arms

CONTROLS = tuple(kind for kind in ASKED if kind not in {RunStarted, RequestNoted})
"""What a decision to start must have seen: everything asked for that changed anything."""


class Starts(Watch):
    """Watches the gate: cancel, pause, halt, and what the decision to start had seen."""

    __slots__ = ("_asked", "_halted", "_persons")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._asked = 0  # seq of the last thing anybody asked for
        self._halted = 0
        self._persons: set[str] = set()  # calls that the person at the wheel wants made

    def started(self, record: Record, entry: CallStarted) -> None:
        """A call leaves."""
        books, seq = self.ledger, record.seq
        call = books.calls.get(entry.call) or entry.call
        if books.cancelled_at:
            text = f"{call} was started after the cancel at {books.cancelled_at}."
            self.report("I10", seq, text)
        elif books.held and entry.call not in self._persons:
            text = f"{call} was started during the pause asked for at {books.held}."
            self.report("I11", seq, text)
        if self._halted:
            text = f"{call} was started during the halt at {self._halted}."
            self.report("I12", seq, text)
        if entry.seen < self._asked:
            text = f"{call} was started by one who had seen {entry.seen}, not {self._asked}."
            self.report("I13", seq, text)
        elif entry.seen >= seq:
            text = f"{call} was started by one who had seen {entry.seen}, the future."
            self.report("I13", seq, text)

    def undo_started(self, record: Record, entry: UndoStarted) -> None:
        """An undo leaves."""
        if self._halted:
            what = f"The {entry.action} of {entry.call}"
            text = f"{what} was started during the halt at {self._halted}."
            self.report("I12", record.seq, text)

    def halted(self, record: Record, _: RunHalted) -> None:
        """The latch holds."""
        self._halted = record.seq
        self._asked = record.seq

    def lifted(self, record: Record, _: RunLifted) -> None:
        """The latch is gone."""
        self._halted = 0
        self._asked = record.seq

    def proposed(self, record: Record, _: CallProposed) -> None:
        """Whoever is at the wheel may have calls made while the agent rests."""
        if self.ledger.wheel and record.epoch is None:  # not what a hosted agent wants
            self._persons.add(f"c{len(self.ledger.calls) + 1}")

    def answered(self, record: Record, entry: AskAnswered) -> None:
        """An approval given while a person is at the wheel is that person's will, too."""
        self._asked = record.seq
        ask = self.ledger.asks.get(entry.ask)
        if self.ledger.wheel and ask is not None and entry.decision.choice == "approve":
            self._persons.add(ask.call)

    def asked(self, record: Record, _: Entry) -> None:
        """Somebody asked for something; a start must know of it."""
        self._asked = record.seq

    ARMS = arms(
        dict.fromkeys(CONTROLS, asked),
        {
            CallStarted: started,
            UndoStarted: undo_started,
            RunHalted: halted,
            RunLifted: lifted,
            CallProposed: proposed,
            AskAnswered: answered,
        },
    )
