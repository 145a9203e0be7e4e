"""Stop conditions: when a run pauses, or completes, by itself.

A stop is a condition; a cap is the bound of a condition that has one. Conditions are data and
compose with operators: `MaxSteps(n=40) | MaxCost(usd=2) & ~TextMention(text="almost")`. A met
condition pauses the run at its next boundary; `TextMention` and `Custom` may complete it
instead (`then="complete"`).

`Meter` counts the usage of a run. `find_met_stop` evaluates a condition against it between two
steps, `find_met_call_cap` also between the tool calls of one step, and `find_overdrawn_cap`
before a model call, with the spend that the call reserves.

`str()` of a condition is stored in entries (`CapReached.stop`): do not change these texts.
"""

from math import inf
from typing import Final, Literal, assert_never, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import force_setattr

from midrun.core.values import NO_SPEND, Spend

RECENT_CALLS_MAX: Final = 64
"""The number of newest calls kept for `Repeats`: sixteen rounds of a cycle of four calls."""

CYCLE_MAX_CALLS: Final = 4


class Meter(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The usage of a run so far, and the spend that is reserved for calls in flight."""

    steps: int = 0
    tool_calls: int = 0
    spent: Spend = NO_SPEND
    reserved: Spend = NO_SPEND
    worked_micros: int = 0  # microseconds with a driver; filled in by `State.meter_with_time`
    recent_calls: tuple[
        str, ...
    ] = ()  # tool name and hash of the arguments of the newest calls
    last_text: str = ""  # the last text of the agent
    is_output_invalid: bool = False  # it came with an output that is not valid
    custom_verdicts: dict[str, bool] = {}  # of custom conditions; a new step clears them
    held_tokens: int = 0  # estimated prompt tokens that held topics have cost

    @property
    def committed_spend(self) -> Spend:
        """Spent plus reserved spend, which caps are compared with.

        Without the reserved part, calls in flight could exceed a cap together.
        """
        return self.spent.plus(self.reserved)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class _StopBase(
    Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag=True,
    tag_field="stop",
):
    """Base of the conditions, with the operators `|`, `&` and `~`."""

    def __or__(self, other: "Stop") -> "AnyOf":
        return AnyOf((self, other))  # type: ignore[arg-type]  # every _Stop is in Stop

    def __and__(self, other: "Stop") -> "AllOf":
        return AllOf((self, other))  # type: ignore[arg-type]  # as above

    def __invert__(self) -> "Not":
        return Not(self)  # type: ignore[arg-type]  # as above


class _CountStop(_StopBase, frozen=True):
    """Base of the conditions that count up to n."""

    n: int

    def __post_init__(self) -> None:
        # Check in the constructor, so that the traceback points to the line with the mistake.
        # `type` and not `isinstance`: True is an int.
        given: object = self.n
        if type(given) is not int or given < 1:
            raise ValueError(f"{type(self).__name__}: n must be an int >= 1, got {self.n!r}")


def _check_amount(stop: _StopBase, amount: float) -> float:
    """Return `amount` as a float; refuse NaN, infinity and negative numbers."""
    given: object = amount
    if type(given) not in {int, float} or not 0 <= amount < inf:
        raise ValueError(
            f"{type(stop).__name__}: the amount must be a finite number >= 0, got {amount!r}"
        )
    return float(amount)


class MaxSteps(_CountStop, frozen=True):
    """Pause before step n + 1."""

    def __str__(self) -> str:
        return f"at most {self.n} steps"


class MaxTokens(_CountStop, frozen=True):
    """Pause before a call that could take the total past n tokens."""

    def __str__(self) -> str:
        return f"at most {self.n} tokens"


class MaxCost(_StopBase, frozen=True):
    """Pause before a call that could take the total past this much money."""

    usd: float

    def __post_init__(self) -> None:
        # `2` becomes `2.0`: a line that is read and written again must give the same bytes.
        force_setattr(self, "usd", _check_amount(self, self.usd))

    def __str__(self) -> str:
        return f"at most ${self.usd:g}"


class MaxTime(_StopBase, frozen=True):
    """Pause after this much time at work; paused and waiting time does not count."""

    seconds: float = 0.0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        force_setattr(self, "seconds", _check_amount(self, self.seconds))  # as in `MaxCost`
        force_setattr(self, "minutes", _check_amount(self, self.minutes))

    def __str__(self) -> str:
        return f"at most {self.seconds + self.minutes * 60:g} s of work"


class MaxToolCalls(_CountStop, frozen=True):
    """Pause after the n-th tool call: before the next call, of any reply, and the next step."""

    def __str__(self) -> str:
        return f"at most {self.n} tool calls"


class Repeats(_CountStop, frozen=True):
    """Pause when the same call, or a cycle of up to four calls, was made n times in a row."""

    def __str__(self) -> str:
        return f"the same calls {self.n} times in a row"


class TextMention(_StopBase, frozen=True):
    """Met when the agent's last message contains the text."""

    text: str
    then: Literal["pause", "complete"] = "pause"

    def __str__(self) -> str:
        return f"the agent says {self.text!r}"


class Custom(_StopBase, frozen=True):
    """Met when the importable function of this name returned true at the last boundary."""

    fn: str
    then: Literal["pause", "complete"] = "pause"

    def __str__(self) -> str:
        return f"{self.fn} says so"


class AnyOf(_StopBase, frozen=True):
    """Met when one of its parts is."""

    parts: "tuple[Stop, ...]"

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


class AllOf(_StopBase, frozen=True):
    """Met when all of its parts are."""

    parts: "tuple[Stop, ...]"

    def __str__(self) -> str:
        return "(" + " and ".join(map(str, self.parts)) + ")"


class Not(_StopBase, frozen=True):
    """Met when its part is not."""

    part: "Stop"

    def __str__(self) -> str:
        return f"not {self.part}"


Stop = (
    MaxSteps
    | MaxTokens
    | MaxCost
    | MaxTime
    | MaxToolCalls
    | Repeats
    | TextMention
    | Custom
    | AnyOf
    | AllOf
    | Not
)


def find_met_stop(stop: Stop | None, meter: Meter, reserve: Spend = NO_SPEND) -> Stop | None:
    """Return the condition that is met, or would be with `reserve` added; else None."""
    if stop is None:
        return None
    if isinstance(stop, AnyOf):
        # Name the part, so that the run can say which of its caps it has reached.
        return next(
            (hit for part in stop.parts if (hit := find_met_stop(part, meter, reserve))), None
        )
    # The condition is met, but completing would hand an invalid output to the caller. The agent
    # gets its further attempts first.
    if meter.is_output_invalid and completes_run(stop):
        return None  # the run would complete with that output
    return stop if _is_met(stop, meter, reserve) else None


def find_met_call_cap(stop: Stop | None, meter: Meter) -> Stop | None:
    """Return the cap on tool calls that is reached before one more tool call; else None.

    One reply of a model may request many calls, so these caps are also evaluated between the
    calls of a reply. A cap inside `&` or `~` is not: the other parts of such a condition change
    only between two steps.
    """
    match stop:
        case AnyOf(parts):
            return next(
                (hit for part in parts if (hit := find_met_call_cap(part, meter))), None
            )
        case MaxToolCalls() | Repeats():
            return find_met_stop(stop, meter)
        case _:
            return None


def _is_met(stop: Stop, meter: Meter, reserve: Spend) -> bool:  # noqa: C901, PLR0911 - one arm per kind
    total = meter.committed_spend.plus(reserve)
    match stop:
        case MaxSteps(n):
            return meter.steps >= n
        case MaxTokens(n):
            # `>` with the reservation: a call may use the cap up exactly. `>=` without: then
            # there is nothing left for another call.
            return total.tokens > n or meter.committed_spend.tokens >= n
        case MaxCost(usd):
            return total.cost > round(usd * 1e6) or meter.committed_spend.cost >= round(
                usd * 1e6
            )
        case MaxTime():
            return meter.worked_micros >= get_work_limit_micros(stop)
        case MaxToolCalls(n):
            return meter.tool_calls >= n
        case Repeats(n):
            return has_repeats(meter.recent_calls, n)
        case TextMention(text):
            return text.casefold() in meter.last_text.casefold()
        case Custom(fn):
            return meter.custom_verdicts.get(fn, False)
        case AnyOf(parts):
            return any(_is_met(part, meter, reserve) for part in parts)
        case AllOf(parts):
            return all(_is_met(part, meter, reserve) for part in parts)
        case Not(part):
            return not _is_met(part, meter, reserve)
        case _:
            assert_never(stop)


def has_repeats(calls: tuple[str, ...], count: int) -> bool:
    """Tell whether the calls end in `count` rounds of one call, or of a cycle of up to four."""
    for length in range(1, CYCLE_MAX_CALLS + 1):
        # A cycle of `length` calls that was made `count` times is a tail that equals its own
        # beginning repeated. Longer cycles are not searched, so the cost is bounded.
        tail = calls[-length * count :]
        if len(tail) == length * count and tail == tail[:length] * count:
            return True
    return False


def count_repeats(calls: tuple[str, ...]) -> int:
    """Return the number of rounds of one call, or of a cycle, that the calls end in."""
    found = 0
    while has_repeats(calls, found + 1):
        found += 1
    return found


def completes_run(stop: Stop) -> bool:
    """Tell whether a run completes when `stop` is met; otherwise it pauses."""
    return isinstance(stop, TextMention | Custom) and stop.then == "complete"


def list_custom_names(stop: Stop | None) -> tuple[str, ...]:
    """Return the names of the custom conditions in `stop`, in order."""
    return tuple(leaf.fn for leaf in flatten_stop(stop) if isinstance(leaf, Custom))


def find_unevaluated_custom(stop: Stop | None, meter: Meter) -> str:
    """Return the name of a custom condition without a verdict in this step, or ""."""
    if stop is None:
        return ""
    return next(
        (name for name in list_custom_names(stop) if name not in meter.custom_verdicts), ""
    )


def find_cap_name(stop: Stop) -> str:
    """Return the name of the cap to raise after `stop` was met, or "" if it has none."""
    # `Repeats` is left out: a resume clears the recent calls, so it need not be raised.
    names = (get_cap_name(leaf) for leaf in flatten_stop(stop) if not isinstance(leaf, Repeats))
    return next(filter(None, names), "")


def find_overdrawn_cap(stop: Stop | None, meter: Meter, reserve: Spend) -> Stop | None:
    """Return the cap on tokens or cost that `reserve` would exceed, if any."""
    if not (reserve.tokens or reserve.cost):
        return None
    # Also those inside `&` and `~`: a bound on money holds before every call, whatever the rest
    # of the condition says.
    money = [leaf for leaf in flatten_stop(stop) if isinstance(leaf, MaxTokens | MaxCost)]
    return next((leaf for leaf in money if _is_met(leaf, meter, reserve)), None)


def has_spend_cap(stop: Stop | None) -> bool:
    """Tell whether `stop` limits tokens or cost."""
    return stop is not None and any(
        isinstance(leaf, MaxTokens | MaxCost) for leaf in flatten_stop(stop)
    )


def has_cost_cap(stop: Stop | None) -> bool:
    """Tell whether `stop` limits the cost."""
    return stop is not None and any(isinstance(leaf, MaxCost) for leaf in flatten_stop(stop))


def get_work_limit_micros(stop: Stop | None) -> int:
    """Return the shortest limit on time at work in `stop`, in microseconds; 0 for none."""
    match stop:
        case MaxTime(seconds, minutes):
            return round((seconds + minutes * 60) * 1e6)
        case AnyOf(parts):
            # Only limits that end the run on their own become timers. Inside `&` or `~` the
            # time is one of several facts, which are looked at between two steps.
            return min(filter(None, map(get_work_limit_micros, parts)), default=0)
        case _:
            return 0


def flatten_stop(stop: Stop | None) -> tuple[Stop, ...]:
    """Return the simple conditions inside `stop`, in order."""
    match stop:
        case None:
            return ()
        case AnyOf(parts) | AllOf(parts):
            return tuple(leaf for part in parts for leaf in flatten_stop(part))
        case Not(part):
            return flatten_stop(part)
        case _:
            return (stop,)


CAP_MAX: Final = 10**12
"""The highest bound that a cap can be raised to. In millionths it still fits 64 bits."""

CAP_TYPES: Final[dict[str, type[Struct]]] = {
    "steps": MaxSteps,
    "tokens": MaxTokens,
    "cost": MaxCost,
    "time": MaxTime,
    "tool_calls": MaxToolCalls,
    "repeats": Repeats,
}
"""Name of a cap → its condition.

In entries and controls, bounds are integers: cost in millionths of a dollar, time in
microseconds.
"""


def get_cap_name(leaf: Stop) -> str:
    """Return the name of the cap that `leaf` sets, or "" if it has no bound."""
    return next((name for name, kind in CAP_TYPES.items() if type(leaf) is kind), "")


def measure_caps(stop: Stop | None, meter: Meter) -> dict[str, tuple[int, int]]:
    """Return the usage and the bound of every cap in `stop`, by name."""
    used = {
        "steps": meter.steps,
        "tokens": meter.committed_spend.tokens,
        "cost": meter.committed_spend.cost,
        "time": meter.worked_micros,
        "tool_calls": meter.tool_calls,
        "repeats": count_repeats(meter.recent_calls),
    }
    named = ((get_cap_name(leaf), leaf) for leaf in flatten_stop(stop))
    return {name: (used[name], get_cap_bound(leaf)) for name, leaf in named if name}


def get_cap_bound(leaf: Stop) -> int:
    """Return the bound that `leaf` sets; 0 if it sets none."""
    match leaf:
        case MaxSteps(n) | MaxTokens(n) | MaxToolCalls(n) | Repeats(n):
            return n
        case MaxCost(usd):
            return round(usd * 1e6)
        case MaxTime():
            return get_work_limit_micros(leaf)
        case _:
            return 0


def raise_caps(stop: Stop, new: dict[str, int]) -> Stop:
    """Return `stop` with the bounds of `new` where these are higher than its own."""
    match stop:
        case AnyOf(parts):
            return AnyOf(tuple(raise_caps(part, new) for part in parts))
        case AllOf(parts):
            return AllOf(tuple(raise_caps(part, new) for part in parts))
        case Not(part):
            return Not(raise_caps(part, new))
        case MaxCost():
            return MaxCost(max(new.get("cost", 0) / 1e6, stop.usd))
        case MaxTime():
            return MaxTime(max(new.get("time", 0), get_work_limit_micros(stop)) / 1e6)
        case MaxSteps() | MaxTokens() | MaxToolCalls() | Repeats():
            return type(stop)(max(new.get(get_cap_name(stop), 0), stop.n))
        case TextMention() | Custom():
            return stop
        case _:
            assert_never(stop)
