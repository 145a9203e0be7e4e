"""Stop conditions: small, composable, serialisable, and able to say themselves in words.

A stop is a condition, a cap is its bound. Conditions are data, never evaluated strings:
`MaxSteps(n=40) | MaxCost(usd=2) & ~TextMention(text="almost")`. Meeting one pauses the run
and asks; `TextMention` and `Custom` may say `then="complete"` instead.
"""

from math import inf
from typing import Final, Literal, assert_never, dataclass_transform

from msgspec import Struct, field
from msgspec.structs import force_setattr

from midrun.core.values import NOTHING, Spend

TRAIL: Final = 64
"""How many calls are remembered for `Repeats`: cycles of up to four calls, sixteen times."""

CYCLE_MAX: Final = 4


class Meter(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a run has used so far, and what it has promised to its calls in flight."""

    steps: int = 0
    tool_calls: int = 0
    spent: Spend = NOTHING
    reserved: Spend = NOTHING
    worked: int = 0  # microseconds in which a driver held the run; see State.metered
    trail: tuple[str, ...] = ()
    text: str = ""
    verdicts: dict[str, bool] = {}
    held: int = 0  # tokens, about, that model calls were given because thoughts were held

    @property
    def committed(self) -> Spend:
        """What is spent or promised: what a cap is measured against."""
        return self.spent.plus(self.reserved)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class _Stop(
    Struct,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag=True,
    tag_field="stop",
):
    """Base of the conditions: lends them `|`, `&` and `~`."""

    def __or__(self, other: "Stop") -> "AnyOf":
        return AnyOf((self, other))  # type: ignore[arg-type]  # every _Stop is in Stop

    def __and__(self, other: "Stop") -> "AllOf":
        return AllOf((self, other))  # type: ignore[arg-type]  # as above

    def __invert__(self) -> "Not":
        return Not(self)  # type: ignore[arg-type]  # as above


class _Count(_Stop, frozen=True):
    """Base of those that count up to n."""

    n: int

    def __post_init__(self) -> None:
        """Refuse what cannot be counted to, where it is written and not where it bites."""
        given: object = self.n
        if type(given) is not int or given < 1:
            raise ValueError(f"{type(self).__name__}({self.n!r}): it counts 1, 2, 3, …")


def _amount(stop: _Stop, amount: float) -> float:
    """Return how much is meant; NaN, infinities and less than nothing are refused."""
    given: object = amount
    if type(given) not in {int, float} or not 0 <= amount < inf:
        raise ValueError(f"{type(stop).__name__}: {amount!r} is not an amount")
    return float(amount)


class MaxSteps(_Count, frozen=True):
    """Pause before step n + 1."""

    def __str__(self) -> str:
        return f"at most {self.n} steps"


class MaxTokens(_Count, frozen=True):
    """Pause before a call that could take the total past n tokens."""

    def __str__(self) -> str:
        return f"at most {self.n} tokens"


class MaxCost(_Stop, frozen=True):
    """Pause before a call that could take the total past this much money."""

    usd: float

    def __post_init__(self) -> None:
        """Take `2` as `2.0`: what is read back must be written as the same bytes."""
        force_setattr(self, "usd", _amount(self, self.usd))

    def __str__(self) -> str:
        return f"at most ${self.usd:g}"


class MaxTime(_Stop, frozen=True):
    """Pause after this much time at work; paused and waiting time does not count."""

    seconds: float = 0.0
    minutes: float = 0.0

    def __post_init__(self) -> None:
        """As for `MaxCost`."""
        force_setattr(self, "seconds", _amount(self, self.seconds))
        force_setattr(self, "minutes", _amount(self, self.minutes))

    def __str__(self) -> str:
        return f"at most {self.seconds + self.minutes * 60:g} s of work"


class MaxToolCalls(_Count, frozen=True):
    """Pause after the n-th tool call: before the next call, of any reply, and the next step."""

    def __str__(self) -> str:
        return f"at most {self.n} tool calls"


class Repeats(_Count, frozen=True):
    """Pause when the same call, or a cycle of up to four calls, was made n times in a row."""

    def __str__(self) -> str:
        return f"the same calls {self.n} times in a row"


class TextMention(_Stop, frozen=True):
    """Met when the agent's last message contains the text."""

    text: str
    then: Literal["pause", "complete"] = "pause"

    def __str__(self) -> str:
        return f"the agent says {self.text!r}"


class Custom(_Stop, frozen=True):
    """Met when the importable function of this name said so at the last boundary."""

    fn: str
    then: Literal["pause", "complete"] = "pause"

    def __str__(self) -> str:
        return f"{self.fn} says so"


class AnyOf(_Stop, frozen=True):
    """Met when one of its parts is."""

    parts: "tuple[Stop, ...]"

    def __str__(self) -> str:
        return " or ".join(map(str, self.parts))


class AllOf(_Stop, frozen=True):
    """Met when all of its parts are."""

    parts: "tuple[Stop, ...]"

    def __str__(self) -> str:
        return "(" + " and ".join(map(str, self.parts)) + ")"


class Not(_Stop, frozen=True):
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


def met(stop: Stop | None, meter: Meter, reserve: Spend = NOTHING) -> Stop | None:
    """Return the condition that holds now, or would if a call reserved `reserve`; else None."""
    if stop is None:
        return None
    if isinstance(stop, AnyOf):
        return next((hit for part in stop.parts if (hit := met(part, meter, reserve))), None)
    return stop if _holds(stop, meter, reserve) else None


def met_by_calls(stop: Stop | None, meter: Meter) -> Stop | None:
    """Return the cap on tool calls that holds before one more tool call; else None.

    One reply of a model may ask for many calls, so these caps are judged between the calls of
    a reply as well as between two steps. Inside `&` and `~` a cap is only a part of a
    condition, whose other parts are about steps: that is judged between two steps.
    """
    match stop:
        case AnyOf(parts):
            return next((hit for part in parts if (hit := met_by_calls(part, meter))), None)
        case MaxToolCalls() | Repeats():
            return met(stop, meter)
        case _:
            return None


def _holds(stop: Stop, meter: Meter, reserve: Spend) -> bool:  # noqa: C901, PLR0911 - one arm per kind
    total = meter.committed.plus(reserve)
    match stop:
        case MaxSteps(n):
            return meter.steps >= n
        case MaxTokens(n):
            return total.tokens > n or meter.committed.tokens >= n
        case MaxCost(usd):
            return total.cost > round(usd * 1e6) or meter.committed.cost >= round(usd * 1e6)
        case MaxTime():
            return meter.worked >= deadline(stop)
        case MaxToolCalls(n):
            return meter.tool_calls >= n
        case Repeats(n):
            return repeats(meter.trail, n)
        case TextMention(text):
            return text.casefold() in meter.text.casefold()
        case Custom(fn):
            return meter.verdicts.get(fn, False)
        case AnyOf(parts):
            return any(_holds(part, meter, reserve) for part in parts)
        case AllOf(parts):
            return all(_holds(part, meter, reserve) for part in parts)
        case Not(part):
            return not _holds(part, meter, reserve)
        case _:
            assert_never(stop)


def repeats(trail: tuple[str, ...], n: int) -> bool:
    """Tell whether `trail` ends in `n` rounds of one call, or of a cycle of up to four."""
    for length in range(1, CYCLE_MAX + 1):
        tail = trail[-length * n :]
        if len(tail) == length * n and tail == tail[:length] * n:
            return True
    return False


def rounds(trail: tuple[str, ...]) -> int:
    """Return how many rounds of one call, or of a cycle of up to four, `trail` ends in."""
    found = 0
    while repeats(trail, found + 1):
        found += 1
    return found


def completes(stop: Stop) -> bool:
    """Tell whether meeting `stop` means that the run is done."""
    return isinstance(stop, TextMention | Custom) and stop.then == "complete"


def custom_names(stop: Stop | None) -> tuple[str, ...]:
    """Return the names of the custom conditions in `stop`, in order."""
    return tuple(leaf.fn for leaf in leaves(stop) if isinstance(leaf, Custom))


def unjudged(stop: Stop | None, meter: Meter) -> str:
    """Return the name of a custom condition that has not spoken since the last step, or ""."""
    return next((name for name in custom_names(stop) if name not in meter.verdicts), "")


def cap_of(stop: Stop) -> str:
    """Return the name of the bound that would have to be raised, or "" if there is none."""
    names = (cap_name(leaf) for leaf in leaves(stop) if not isinstance(leaf, Repeats))
    return next(filter(None, names), "")


def overdraws(stop: Stop | None, meter: Meter, reserve: Spend) -> Stop | None:
    """Return the cap on tokens or money that reserving `reserve` would break, if any."""
    if not (reserve.tokens or reserve.cost):
        return None
    money = [leaf for leaf in leaves(stop) if isinstance(leaf, MaxTokens | MaxCost)]
    return next((leaf for leaf in money if _holds(leaf, meter, reserve)), None)


def deadline(stop: Stop | None) -> int:
    """Return the shortest time at work that `stop` allows, in microseconds; 0 for no limit."""
    match stop:
        case MaxTime(seconds, minutes):
            return round((seconds + minutes * 60) * 1e6)
        case AnyOf(parts):
            return min(filter(None, map(deadline, parts)), default=0)
        case _:
            return 0


def leaves(stop: Stop | None) -> tuple[Stop, ...]:
    """Return the simple conditions that `stop` is made of."""
    match stop:
        case None:
            return ()
        case AnyOf(parts) | AllOf(parts):
            return tuple(leaf for part in parts for leaf in leaves(part))
        case Not(part):
            return leaves(part)
        case _:
            return (stop,)


CAP_MAX: Final = 10**12
"""The highest bound that a person can raise a cap to: in millionths it still fits 64 bits."""

CAPS: Final[dict[str, type[Struct]]] = {
    "steps": MaxSteps,
    "tokens": MaxTokens,
    "cost": MaxCost,
    "time": MaxTime,
    "tool_calls": MaxToolCalls,
    "repeats": Repeats,
}
"""Name of a cap → its condition.

Bounds travel as whole numbers: money in millionths of a dollar, time in microseconds.
"""


def cap_name(leaf: Stop) -> str:
    """Return the name of the cap that `leaf` sets, or "" if it has no bound."""
    return next((name for name, kind in CAPS.items() if type(leaf) is kind), "")


def caps(stop: Stop | None, meter: Meter) -> dict[str, tuple[int, int]]:
    """Return used and bound for every cap in `stop`."""
    used = {
        "steps": meter.steps,
        "tokens": meter.committed.tokens,
        "cost": meter.committed.cost,
        "time": meter.worked,
        "tool_calls": meter.tool_calls,
        "repeats": rounds(meter.trail),
    }
    named = ((cap_name(leaf), leaf) for leaf in leaves(stop))
    return {name: (used[name], bound(leaf)) for name, leaf in named if name}


def bound(leaf: Stop) -> int:
    """Return the bound that `leaf` sets; 0 if it sets none."""
    match leaf:
        case MaxSteps(n) | MaxTokens(n) | MaxToolCalls(n) | Repeats(n):
            return n
        case MaxCost(usd):
            return round(usd * 1e6)
        case MaxTime():
            return deadline(leaf)
        case _:
            return 0


def raised(stop: Stop, new: dict[str, int]) -> Stop:
    """Return `stop` with the bounds in `new` in place of its own where they are higher."""
    match stop:
        case AnyOf(parts):
            return AnyOf(tuple(raised(part, new) for part in parts))
        case AllOf(parts):
            return AllOf(tuple(raised(part, new) for part in parts))
        case Not(part):
            return Not(raised(part, new))
        case MaxCost():
            return MaxCost(max(new.get("cost", 0) / 1e6, stop.usd))
        case MaxTime():
            return MaxTime(max(new.get("time", 0), deadline(stop)) / 1e6)
        case MaxSteps() | MaxTokens() | MaxToolCalls() | Repeats():
            return type(stop)(max(new.get(cap_name(stop), 0), stop.n))
        case TextMention() | Custom():
            return stop
        case _:
            assert_never(stop)
