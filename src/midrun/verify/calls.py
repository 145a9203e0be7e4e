"""Check starts and attempts of calls (I10 to I13, I15 to I17, I19).

`StartCheck` checks that no call starts during a cancel, a pause or a halt, or without knowledge
of a request. `AttemptCheck` checks that a call is made once: one attempt at a time, and no
further attempt after an outcome that makes a repetition unsafe.
"""

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

# Starts: moments at which no call may start (I10, I11, I12, I13).

CONTROLS = tuple(kind for kind in ASKED if kind not in {RunStarted, RequestNoted})
"""Requests that change the run: a decision to start a call must have seen them."""


class Starts(Watch):
    """Checks that no call starts during a cancel, a pause or a halt, or on old knowledge.

    `CallStarted.seen` is the seq up to which the worker had read when it decided to start. If a
    request came after that, the start was decided without it.
    """

    __slots__ = ("_asked", "_halted", "_persons")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._asked = 0  # seq of the last request
        self._halted = 0  # seq of the halt in force
        self._persons: set[str] = set()  # calls made by an operator who has taken over

    def started(self, record: Record, entry: CallStarted) -> None:
        """Check that a call may start now."""
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
        # `seen` must cover the last request, and cannot include this entry or a later one.
        if entry.seen < self._asked:
            text = f"{call} was started with knowledge up to {entry.seen}, not {self._asked}."
            self.report("I13", seq, text)
        elif entry.seen >= seq:
            text = f"{call} was started with knowledge up to {entry.seen}, a later entry."
            self.report("I13", seq, text)

    def undo_started(self, record: Record, entry: UndoStarted) -> None:
        """Check that no undo starts during a halt."""
        if self._halted:
            action = f"The {entry.action} of {entry.call}"
            text = f"{action} was started during the halt at {self._halted}."
            self.report("I12", record.seq, text)

    def halted(self, record: Record, _: RunHalted) -> None:
        """Record a halt."""
        self._halted = record.seq
        self._asked = record.seq

    def lifted(self, record: Record, _: RunLifted) -> None:
        """Record that the halt was lifted."""
        self._halted = 0
        self._asked = record.seq

    def proposed(self, record: Record, _: CallProposed) -> None:
        """Record a call of an operator who has taken over: it may start during a pause."""
        # A proposal with an epoch comes from a worker, on behalf of an agent. The ledger does
        # not contain the proposal yet, so its call gets the next number.
        if self.ledger.wheel and record.epoch is None:
            self._persons.add(f"c{len(self.ledger.calls) + 1}")

    def answered(self, record: Record, entry: AskAnswered) -> None:
        """Record an answer; an approval during a takeover also lets the call start."""
        self._asked = record.seq
        ask = self.ledger.asks.get(entry.ask)
        if self.ledger.wheel and ask is not None and entry.decision.choice == "approve":
            self._persons.add(ask.call)

    def asked(self, record: Record, _: Entry) -> None:
        """Record a request, which the next start must have seen."""
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
    """Checks the attempts of every call: their order, their number, and unsafe repetitions."""

    __slots__ = ("_transient",)

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._transient: set[str] = set()  # model calls whose last failure was temporary

    def started(self, record: Record, entry: CallStarted) -> None:
        """Check that an attempt may start."""
        call = self.ledger.calls.get(entry.call)
        if call is None:
            self._new(record, entry)
            return
        if call.flying:
            text = f"{call} was started again while an attempt of it was in flight."
            self.report("I16", record.seq, text)
            return
        if call.stage == "done" or call.sealed:
            over = f"ended at {call.closed}" if call.stage == "done" else "was closed unmade"
            self.report("I15", record.seq, f"{call} was started although it {over}.")
            return
        self._attempt(record, entry, call.attempt)
        if problem := self._unsafe(call):
            self.report("I17", record.seq, f"{call} was started again although {problem}.")

    def _new(self, record: Record, entry: CallStarted) -> None:
        """Check a call without a proposal: it must be a model call with the next number."""
        number = len(self.ledger.calls) + 1
        if number_of(entry.call) != number or entry.call_kind != "model":
            self.report(
                "I19",
                record.seq,
                f"A {entry.call_kind} call was started as {entry.call} without a proposal; "
                f"the next new call of the run is c{number}.",
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
        """Return the reason why the call must not be repeated, or "" if it is safe."""
        if made.stage == "unknown" and not made.harmless:
            return "its outcome is unknown, and doing it twice is not safe"
        if made.stage == "aborted" and not (made.harmless or made.saved):
            return "it was aborted, and doing it twice is not safe"
        if made.stage == "failed" and made.id not in self._transient:
            return "its failure was final"
        return "it waits for a decision" if made.stage == "asking" else ""

    def ended(self, record: Record, entry: Ending) -> None:
        """Check that an attempt that ends was in flight."""
        call = self.ledger.calls.get(entry.call)
        if call is None or not call.flying:
            kind = type(entry).__name__
            text = f"{kind} of {call or entry.call}, which was not in flight."
            self.report("I16", record.seq, text)

    def failed(self, record: Record, entry: CallFailed) -> None:
        """Record whether a failed call may be retried: a model call with a temporary error."""
        self.ended(record, entry)
        call = self.ledger.calls.get(entry.call)
        if call is not None and call.kind == "model" and entry.transient:
            self._transient.add(entry.call)
        else:
            self._transient.discard(entry.call)

    def settled(self, record: Record, entry: CallSettled) -> None:
        """Check that only a call with an unknown outcome is settled."""
        call = self.ledger.calls.get(entry.call)
        if call is None or call.stage != "unknown":
            text = f"{call or entry.call} was settled, but it was not unknown."
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
