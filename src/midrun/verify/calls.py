"""Check starts and attempts of calls (I10 to I13, I15 to I17, I19).

`StartCheck` checks that no call starts during a cancel, a pause or a halt, or without knowledge
of a request. `AttemptCheck` checks that a call is made once: one attempt at a time, and no
further attempt after an outcome that makes a repetition unsafe.
"""

from midrun.core import entries as e
from midrun.core.ids import parse_call_number
from midrun.verify.checks import REQUEST_KINDS, JournalCheck, Problem, merge_handlers
from midrun.verify.ledger import Ledger, LedgerCall

# Starts: moments at which no call may start (I10, I11, I12, I13).

CHANGING_REQUEST_KINDS = tuple(
    kind for kind in REQUEST_KINDS if kind not in {e.RunStarted, e.RequestNoted}
)
"""Requests that change the run: a decision to start a call must have seen them."""


class StartCheck(JournalCheck):
    """Checks that no call starts during a cancel, a pause or a halt, or on old knowledge.

    `CallStarted.seen` is the seq up to which the worker had read when it decided to start. If a
    request came after that, the start was decided without it.
    """

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._last_request_seq = 0  # seq of the last request
        self._halted_at = 0  # seq of the halt in force
        self._operator_calls: set[str] = set()  # calls made by an operator who has taken over

    def check_call_started(self, record: e.Record, entry: e.CallStarted) -> None:
        """Check that a call may start now."""
        ledger, seq = self.ledger, record.seq
        call = ledger.calls.get(entry.call) or entry.call
        if ledger.cancelled_at:
            text = f"{call} was started after the cancel at {ledger.cancelled_at}."
            self.report("I10", seq, text)
        elif ledger.paused_at and entry.call not in self._operator_calls:
            text = f"{call} was started during the pause asked for at {ledger.paused_at}."
            self.report("I11", seq, text)
        if self._halted_at:
            text = f"{call} was started during the halt at {self._halted_at}."
            self.report("I12", seq, text)
        # `seen` must cover the last request, and cannot include this entry or a later one.
        if entry.seen < self._last_request_seq:
            text = (
                f"{call} was started with knowledge up to {entry.seen}, not "
                f"{self._last_request_seq}."
            )
            self.report("I13", seq, text)
        elif entry.seen >= seq:
            text = f"{call} was started with knowledge up to {entry.seen}, a later entry."
            self.report("I13", seq, text)

    def check_undo_started(self, record: e.Record, entry: e.UndoStarted) -> None:
        """Check that no undo starts during a halt."""
        if self._halted_at:
            action = f"The {entry.action} of {entry.call}"
            text = f"{action} was started during the halt at {self._halted_at}."
            self.report("I12", record.seq, text)

    def _apply_run_halted(self, record: e.Record, _: e.RunHalted) -> None:
        self._halted_at = record.seq
        self._last_request_seq = record.seq

    def _apply_run_lifted(self, record: e.Record, _: e.RunLifted) -> None:
        self._halted_at = 0
        self._last_request_seq = record.seq

    def apply_call_proposed(self, record: e.Record, _: e.CallProposed) -> None:
        """Record a call of an operator who has taken over: it may start during a pause."""
        # A proposal with an epoch comes from a worker, on behalf of an agent. The ledger does
        # not contain the proposal yet, so its call gets the next number.
        if self.ledger.taken_over_by and record.epoch is None:
            self._operator_calls.add(f"c{len(self.ledger.calls) + 1}")

    def apply_ask_answered(self, record: e.Record, entry: e.AskAnswered) -> None:
        """Record an answer; an approval during a takeover also lets the call start."""
        self._last_request_seq = record.seq
        ask = self.ledger.asks.get(entry.ask)
        if self.ledger.taken_over_by and ask is not None and entry.decision.choice == "approve":
            self._operator_calls.add(ask.call)

    def apply_request(self, record: e.Record, _: e.Entry) -> None:
        """Record a request, which the next start must have seen."""
        self._last_request_seq = record.seq

    HANDLERS = merge_handlers(
        dict.fromkeys(CHANGING_REQUEST_KINDS, apply_request),
        {
            e.CallStarted: check_call_started,
            e.UndoStarted: check_undo_started,
            e.RunHalted: _apply_run_halted,
            e.RunLifted: _apply_run_lifted,
            e.CallProposed: apply_call_proposed,
            e.AskAnswered: apply_ask_answered,
        },
    )


CallEnd = e.CallDone | e.CallFailed | e.CallAborted | e.CallUnknown


class AttemptCheck(JournalCheck):
    """Checks the attempts of every call: their order, their number, and unsafe repetitions."""

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._retryable: set[str] = set()  # model calls whose last failure was temporary

    def check_call_started(self, record: e.Record, entry: e.CallStarted) -> None:
        """Check that an attempt may start."""
        call = self.ledger.calls.get(entry.call)
        if call is None:
            self._check_unproposed(record, entry)
            return
        if call.in_flight:
            text = f"{call} was started again while an attempt of it was in flight."
            self.report("I16", record.seq, text)
            return
        if call.stage == "done" or call.closed_unmade:
            over = f"ended at {call.ended_at}" if call.stage == "done" else "was closed unmade"
            self.report("I15", record.seq, f"{call} was started although it {over}.")
            return
        self._check_attempt_number(record, entry, call.attempt)
        if problem := self._find_repeat_problem(call):
            self.report("I17", record.seq, f"{call} was started again although {problem}.")

    def _check_unproposed(self, record: e.Record, entry: e.CallStarted) -> None:
        """Check a call without a proposal: it must be a model call with the next number."""
        number = len(self.ledger.calls) + 1
        if parse_call_number(entry.call) != number or entry.call_kind != "model":
            self.report(
                "I19",
                record.seq,
                f"A {entry.call_kind} call was started as {entry.call} without a proposal; "
                f"the next new call of the run is c{number}.",
            )
        self._check_attempt_number(record, entry, 0)

    def _check_attempt_number(
        self, record: e.Record, entry: e.CallStarted, previous_attempts: int
    ) -> None:
        if entry.attempt != previous_attempts + 1:
            self.report(
                "I19",
                record.seq,
                f"{entry.call} was started as attempt {entry.attempt} after "
                f"{previous_attempts} attempts.",
            )

    def _find_repeat_problem(self, call: LedgerCall) -> str:
        """Return the reason why the call must not be repeated, or "" if it is safe."""
        if call.stage == "unknown" and not call.safe_to_repeat:
            return "its outcome is unknown, and doing it twice is not safe"
        if call.stage == "aborted" and not (call.safe_to_repeat or call.has_progress):
            return "it was aborted, and doing it twice is not safe"
        if call.stage == "failed" and call.id not in self._retryable:
            return "its failure was final"
        return "it waits for a decision" if call.stage == "asking" else ""

    def check_call_ended(self, record: e.Record, entry: CallEnd) -> None:
        """Check that an attempt that ends was in flight."""
        call = self.ledger.calls.get(entry.call)
        if call is None or not call.in_flight:
            kind = type(entry).__name__
            text = f"{kind} of {call or entry.call}, which was not in flight."
            self.report("I16", record.seq, text)

    def check_call_failed(self, record: e.Record, entry: e.CallFailed) -> None:
        """Record whether a failed call may be retried: a model call with a temporary error."""
        self.check_call_ended(record, entry)
        call = self.ledger.calls.get(entry.call)
        if call is not None and call.kind == "model" and entry.transient:
            self._retryable.add(entry.call)
        else:
            self._retryable.discard(entry.call)

    def check_call_settled(self, record: e.Record, entry: e.CallSettled) -> None:
        """Check that only a call with an unknown outcome is settled."""
        call = self.ledger.calls.get(entry.call)
        if call is None or call.stage != "unknown":
            text = f"{call or entry.call} was settled, but it was not unknown."
            self.report("I17", record.seq, text)

    HANDLERS = merge_handlers(
        {
            e.CallStarted: check_call_started,
            e.CallDone: check_call_ended,
            e.CallFailed: check_call_failed,
            e.CallAborted: check_call_ended,
            e.CallUnknown: check_call_ended,
            e.CallSettled: check_call_settled,
        }
    )
