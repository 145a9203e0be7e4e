"""Check the caps: spent plus reserved amounts stay within them (I37).

Only a condition that can stop the run alone counts: a cap inside `&` or `~` sets no limit.
"""

from collections.abc import Iterator

from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    CapRaised,
    PauseWithdrawn,
    Record,
    RunResumed,
    RunStarted,
)
from midrun.core.stops import (
    TRAIL,
    AnyOf,
    MaxCost,
    MaxSteps,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    Stop,
)
from midrun.core.values import NOTHING, Spend
from midrun.verify.asks import hash_of
from midrun.verify.checks import Problem, Watch, arms
from midrun.verify.ledger import Ledger


def bounds(stop: Stop | None) -> Iterator[tuple[str, int]]:
    """Yield name and value of each cap that can stop the run alone."""
    match stop:
        case AnyOf(parts):
            for part in parts:
                yield from bounds(part)
        case MaxTokens(n):
            yield "tokens", n
        case MaxCost(usd):
            yield "cost", round(usd * 1e6)
        case MaxSteps(n):
            yield "steps", n
        case MaxToolCalls(n):
            yield "tool_calls", n
        case Repeats(n) if n <= TRAIL:
            yield "repeats", n
        case _:
            return


class Money(Watch):
    """Counts spent and reserved tokens and cost, steps, tool calls and repetitions."""

    __slots__ = (
        "_caps",
        "_cost",
        "_last",
        "_reserved",
        "_same",
        "_steps",
        "_tokens",
        "_tools",
    )

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._caps: dict[str, int] = {}
        self._tokens = 0  # spent and reserved
        self._cost = 0  # spent and reserved, in millionths of a dollar
        self._reserved: dict[str, Spend] = {}
        self._steps = 0
        self._tools = 0
        self._last: tuple[str, str] | None = None  # last call: its tool, hash of its arguments
        self._same = 0  # number of equal calls in a row

    def run_started(self, _: Record, entry: RunStarted) -> None:
        """Record the caps; of two with the same name, the lower one counts."""
        for name, bound in bounds(entry.stop):
            self._caps[name] = min(bound, self._caps.get(name, bound))

    def raised(self, _: Record, entry: CapRaised) -> None:
        """Record raised caps."""
        for name, bound in entry.caps.items():
            if name in self._caps:
                self._caps[name] = bound

    def started(self, record: Record, entry: CallStarted) -> None:
        """Add the reservation of a call, and check the caps with it."""
        if entry.attempt == 1:  # a retry is not a new step or tool call, but reserves again
            self._counted(record, entry)
        promised = entry.reserved
        self._reserved[entry.call] = promised
        self._tokens += promised.tokens
        self._cost += promised.cost
        if promised.tokens:
            self._within(record, entry, "tokens", self._tokens)
        if promised.cost:
            self._within(record, entry, "cost", self._cost)

    def _counted(self, record: Record, entry: CallStarted) -> None:
        """Check the caps on steps and tool calls, also between the calls of one reply."""
        if entry.call_kind != "model":
            self._count_tool_call(record, entry)
        elif entry.purpose == "step":
            self._steps += 1
            self._within(record, entry, "steps", self._steps)
            # A step must not start if the cap leaves no room for a single tool call in it.
            self._within(record, entry, "tool_calls", self._tools + 1)

    def _count_tool_call(self, record: Record, entry: CallStarted) -> None:
        self._tools += 1
        call = self.ledger.calls.get(entry.call)
        if call is None:
            return
        this = (call.tool, hash_of(call.args))
        self._same = self._same + 1 if this == self._last else 1
        self._last = this
        if not call.by_hand:  # calls of an operator are counted, but not limited
            self._within(record, entry, "tool_calls", self._tools)
            self._within(record, entry, "repeats", self._same)

    def resumed(self, _: Record, __: RunResumed | PauseWithdrawn) -> None:
        """Restart the count of repetitions, because an operator let the run go on."""
        self._last, self._same = None, 0

    def _within(self, record: Record, entry: CallStarted, name: str, used: int) -> None:
        cap = self._caps.get(name)
        if cap is not None and used > cap:
            text = f"{entry.call} was started, which raises {name} to {used} of {cap}."
            self.report("I37", record.seq, text)

    def ended(self, _: Record, entry: CallDone | CallFailed | CallAborted) -> None:
        """Replace the reservation by the actual amounts; keep it if those are not known."""
        promised = self._reserved.pop(entry.call, NOTHING)
        if entry.spent is not None:
            self._tokens += entry.spent.tokens - promised.tokens
            self._cost += entry.spent.cost - promised.cost

    def unknown(self, _: Record, entry: CallUnknown) -> None:
        """Keep the reservation as spent: the call may still be billed."""
        self._reserved.pop(entry.call, None)

    ARMS = arms(
        {
            RunStarted: run_started,
            CapRaised: raised,
            RunResumed: resumed,
            PauseWithdrawn: resumed,
            CallStarted: started,
            CallDone: ended,
            CallFailed: ended,
            CallAborted: ended,
            CallUnknown: unknown,
        }
    )
