"""Calls: made once, one attempt at a time, under one key (I15, I16, I17, I19)."""

from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallSettled,
    CallStarted,
    CallUnknown,
    Record,
)
from midrun.core.ids import number_of
from midrun.verify.ledger import Ledger, Made
from midrun.verify.problems import Problem, Watch, arms

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
