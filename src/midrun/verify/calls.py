"""Calls: made once, one attempt at a time, under one key (I15, I16, I17, I19)."""

from midrun.core.entries import (
    AskAnswered,
    CallAborted,
    CallDone,
    CallFailed,
    CallProposed,
    CallSettled,
    CallStarted,
    CallUnknown,
    Entry,
    Record,
    RequestNoted,
    RunHalted,
    RunLifted,
    RunStarted,
    UndoStarted,
)
from midrun.core.ids import number_of
from midrun.verify.checks import ASKED, Problem, Watch, arms
from midrun.verify.ledger import Ledger, Made

# Starts: what must not leave the process, and when (I10, I11, I12, I13).

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


Ending = CallDone | CallFailed | CallAborted | CallUnknown


class Calls(Watch):
    """Watches every attempt of every call."""

    __slots__ = ("_transient",)

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._transient: set[str] = set()  # model calls whose last failure may pass

    def started(self, record: Record, entry: CallStarted) -> None:
        """An attempt begins."""
        made = self.ledger.calls.get(entry.call)
        if made is None:
            self._new(record, entry)
            return
        if made.flying:
            text = f"{made} was started again while an attempt of it was in flight."
            self.report("I16", record.seq, text)
            return
        if made.stage == "done" or made.sealed:
            over = f"ended at {made.closed}" if made.stage == "done" else "was not to be made"
            self.report("I15", record.seq, f"{made} was started although it {over}.")
            return
        self._attempt(record, entry, made.attempt)
        if problem := self._unsafe(made):
            self.report("I17", record.seq, f"{made} was started again although {problem}.")

    def _new(self, record: Record, entry: CallStarted) -> None:
        """A call that nobody proposed is a model call, and has the next number."""
        number = len(self.ledger.calls) + 1
        if number_of(entry.call) != number or entry.call_kind != "model":
            self.report(
                "I19",
                record.seq,
                f"A {entry.call_kind} call was started as {entry.call}; nobody had proposed "
                f"it, and the next new call of the run is c{number}.",
            )
        self._attempt(record, entry, 0)

    def _attempt(self, record: Record, entry: CallStarted, before: int) -> None:
        if entry.attempt != before + 1:
            self.report(
                "I19",
                record.seq,
                f"{entry.call} was started as attempt {entry.attempt} after {before} attempts.",
            )

    def _unsafe(self, made: Made) -> str:
        """Return why making the call again may do it twice, or "" if it is safe."""
        if made.stage == "unknown" and not made.harmless:
            return "nobody knows whether it happened, and doing it twice is not safe"
        if made.stage == "aborted" and not (made.harmless or made.saved):
            return "it was stopped midway, and doing it twice is not safe"
        if made.stage == "failed" and made.id not in self._transient:
            return "its failure was final"
        return "it waits for a person to decide" if made.stage == "asking" else ""

    def ended(self, record: Record, entry: Ending) -> None:
        """An attempt ends."""
        made = self.ledger.calls.get(entry.call)
        if made is None or not made.flying:
            kind = type(entry).__name__
            text = f"{kind} of {made or entry.call}, which was not in flight."
            self.report("I16", record.seq, text)

    def failed(self, record: Record, entry: CallFailed) -> None:
        """A model call that failed for a passing reason may be made again."""
        self.ended(record, entry)
        made = self.ledger.calls.get(entry.call)
        if made is not None and made.kind == "model" and entry.transient:
            self._transient.add(entry.call)
        else:
            self._transient.discard(entry.call)

    def settled(self, record: Record, entry: CallSettled) -> None:
        """Evidence is about a call that nobody knew the outcome of."""
        made = self.ledger.calls.get(entry.call)
        if made is None or made.stage != "unknown":
            text = f"{made or entry.call} was settled, but it was not unknown."
            self.report("I17", record.seq, text)

    ARMS = arms(
        {
            CallStarted: started,
            CallDone: ended,
            CallFailed: failed,
            CallAborted: ended,
            CallUnknown: ended,
            CallSettled: settled,
        }
    )
