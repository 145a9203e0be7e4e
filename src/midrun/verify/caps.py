"""Check the caps: spent plus reserved amounts stay within them (I37).

Only a condition that can stop the run alone counts: a cap inside `&` or `~` sets no limit.
"""

from collections.abc import Iterator

from midrun.core import entries as e
from midrun.core.stops import (
    RECENT_CALLS_MAX,
    AnyOf,
    MaxCost,
    MaxSteps,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    Stop,
)
from midrun.core.values import NO_SPEND, Spend
from midrun.verify.checks import JournalCheck, Problem, merge_handlers
from midrun.verify.ledger import Ledger
from midrun.verify.requests import hash_arguments


def iterate_caps(stop: Stop | None) -> Iterator[tuple[str, int]]:
    """Yield name and value of each cap that can stop the run alone."""
    match stop:
        case AnyOf(parts):
            for part in parts:
                yield from iterate_caps(part)
        case MaxTokens(n):
            yield "tokens", n
        case MaxCost(usd):
            yield "cost", round(usd * 1e6)
        case MaxSteps(n):
            yield "steps", n
        case MaxToolCalls(n):
            yield "tool_calls", n
        case Repeats(n) if n <= RECENT_CALLS_MAX:
            yield "repeats", n
        case _:
            return


class CapCheck(JournalCheck):
    """Counts spent and reserved tokens and cost, steps, tool calls and repetitions."""

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._caps: dict[str, int] = {}
        self._tokens = 0  # spent and reserved
        self._cost = 0  # spent and reserved, in millionths of a dollar
        self._reserved: dict[str, Spend] = {}
        self._steps = 0
        self._tool_calls = 0
        # The tool of the last call, and the hash of its arguments.
        self._last_tool_call: tuple[str, str] | None = None
        self._repeats = 0  # number of equal calls in a row

    def apply_run_started(self, _: e.Record, entry: e.RunStarted) -> None:
        """Record the caps; of two with the same name, the lower one counts."""
        for name, bound in iterate_caps(entry.stop):
            self._caps[name] = min(bound, self._caps.get(name, bound))

    def _apply_cap_raised(self, _: e.Record, entry: e.CapRaised) -> None:
        for name, bound in entry.caps.items():
            if name in self._caps:
                self._caps[name] = bound

    def check_call_started(self, record: e.Record, entry: e.CallStarted) -> None:
        """Add the reservation of a call, and check the caps with it."""
        if entry.attempt == 1:  # a retry is not a new step or tool call, but reserves again
            self._count_call(record, entry)
        promised = entry.reserved
        self._reserved[entry.call] = promised
        self._tokens += promised.tokens
        self._cost += promised.cost
        if promised.tokens:
            self._check_cap(record, entry, "tokens", self._tokens)
        if promised.cost:
            self._check_cap(record, entry, "cost", self._cost)

    def _count_call(self, record: e.Record, entry: e.CallStarted) -> None:
        """Check the caps on steps and tool calls, also between the calls of one reply."""
        if entry.call_kind != "model":
            self._count_tool_call(record, entry)
        elif entry.purpose == "step":
            self._steps += 1
            self._check_cap(record, entry, "steps", self._steps)
            # A step must not start if the cap leaves no room for a single tool call in it.
            self._check_cap(record, entry, "tool_calls", self._tool_calls + 1)

    def _count_tool_call(self, record: e.Record, entry: e.CallStarted) -> None:
        self._tool_calls += 1
        call = self.ledger.calls.get(entry.call)
        if call is None:
            return
        this = (call.tool, hash_arguments(call.args))
        self._repeats = self._repeats + 1 if this == self._last_tool_call else 1
        self._last_tool_call = this
        if not call.proposed_by_operator:  # calls of an operator are counted, but not limited
            self._check_cap(record, entry, "tool_calls", self._tool_calls)
            self._check_cap(record, entry, "repeats", self._repeats)

    def reset_repeats(self, _: e.Record, __: e.RunResumed | e.PauseWithdrawn) -> None:
        """Restart the count of repetitions, because an operator let the run continue."""
        self._last_tool_call, self._repeats = None, 0

    def _check_cap(self, record: e.Record, entry: e.CallStarted, name: str, used: int) -> None:
        cap = self._caps.get(name)
        if cap is not None and used > cap:
            text = f"{entry.call} was started, which raises {name} to {used} of {cap}."
            self.report("I37", record.seq, text)

    def apply_call_ended(
        self, _: e.Record, entry: e.CallDone | e.CallFailed | e.CallAborted
    ) -> None:
        """Replace the reservation by the actual amounts; keep it if those are not known."""
        promised = self._reserved.pop(entry.call, NO_SPEND)
        if entry.spent is not None:
            self._tokens += entry.spent.tokens - promised.tokens
            self._cost += entry.spent.cost - promised.cost

    def apply_call_unknown(self, _: e.Record, entry: e.CallUnknown) -> None:
        """Keep the reservation as spent: the call may still be billed."""
        self._reserved.pop(entry.call, None)

    HANDLERS = merge_handlers(
        {
            e.RunStarted: apply_run_started,
            e.CapRaised: _apply_cap_raised,
            e.RunResumed: reset_repeats,
            e.PauseWithdrawn: reset_repeats,
            e.CallStarted: check_call_started,
            e.CallDone: apply_call_ended,
            e.CallFailed: apply_call_ended,
            e.CallAborted: apply_call_ended,
            e.CallUnknown: apply_call_unknown,
        }
    )
