"""Phrases: how people, calls, times and values are named in a sentence."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from midrun.core.evolve.calls import call_of
from midrun.core.ids import SECOND, Micros, child_id
from midrun.core.journaled_text import place_of
from midrun.core.state import Call, Frame, State
from midrun.core.values import Actor, Json, Use, Value

RUN: Final = "the run"
AGENT: Final = "the agent"
SYSTEM: Final = "system:"

LONG: Final = 400
"""How much is told of what somebody said, or of arguments; the journal has all of it."""

GLIMPSE: Final = 160
"""How much of a result is told: the agent reads it, people see what came."""

BUILT_IN: Final[Mapping[str, frozenset[str]]] = {
    "plan": frozenset({"items", "marks"}),
    "ask_human": frozenset({"question", "options"}),
}
"""Built-in tools, by what they take: the plan and the question are told as what they are."""

_EMPHASIS: Final = re.compile(r"\*([^*\n]+)\*")
_ONE: Final = re.compile(r"(at most 1 [a-z ]+?)s(?= or | and |\)|$)")
_SAYS: Final = re.compile(r"(the agent says )['\"](.*?)['\"](?= or | and |\)|$)")
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


class Told(Value, kw_only=True):
    """One entry as one sentence. It begins with `who`: a person, the run, the agent, a call."""

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who} {self.what}"


Sentences = Mapping[type, Callable[..., Told]]  # type: ignore[explicit-any]  # as in `state.Arms`


def person(by: str) -> str:
    """Return whoever asked, as the subject of a sentence."""
    run = by.removeprefix("run:")
    if run != by:
        return f"the parent {run_named(run)}"
    return "the user" if by == Actor().name else by or "somebody"


def run_named(run: str) -> str:
    """Return a run by its id, which most often says itself that it is one."""
    return run if run.startswith("run") else f"run {run}"


def by_itself(by: str) -> bool:
    """Tell whether no person asked: time, or the run itself, brought it."""
    return not by or by == f"{SYSTEM}clock"


def flat(text: str, most: int = LONG) -> str:
    """Return text as part of one line, cut if it is long."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def quoted(text: str, most: int = LONG) -> str:
    """Return what somebody said, in quotation marks; never empty ones."""
    said = flat(text, most)
    return f"“{said}”" if said else "nothing"


def unmarked(text: str) -> str:
    """Return the runtime's own words without the marks of their emphasis."""
    return _EMPHASIS.sub(r"\1", text)


def shown(value: Json, most: int = LONG) -> str:
    """Return a value as people read it: text as it is, the rest as JSON; cut if it is long."""
    return flat(value if isinstance(value, str) else msgspec.json.encode(value).decode(), most)


def spoken(value: Json, most: int = LONG) -> str:
    """Return what was answered or returned: text in quotation marks, the rest name by name."""
    if isinstance(value, str):
        return quoted(value, most)
    if is_empty(value):
        return "nothing"
    return arguments(value, most).strip() if isinstance(value, dict) else shown(value, most)


def is_empty(value: Json) -> bool:
    """Tell whether a value says nothing; a number, or a no, says something."""
    return value is None or (isinstance(value, str | list | dict) and not value)


def arguments(args: Json, most: int = LONG) -> str:
    """Return what a call is given, in brackets, name by name; nothing if it is given none."""
    if is_empty(args):
        return ""
    if isinstance(args, dict):
        said = ", ".join(f"{name}: {_plainly(value)}" for name, value in args.items())
        return f" ({flat(said, most)})"
    return f" ({shown(args, most)})"


def _plainly(value: Json) -> str:
    return "nothing" if is_empty(value) else shown(value) or "nothing"


def condition(stop: str) -> str:
    """Return a stop condition as it was recorded, in words: "at most 1 step"."""
    return _SAYS.sub(r"\1“\2”", _ONE.sub(r"\1", stop))


def held_at(frame: Frame) -> str:
    """Return where a thought was put aside; steps of a plan are told from the agent's."""
    return f"plan {place_of(frame)}" if frame.total else place_of(frame)


def fault(error: str) -> str:
    """Return an error in its own words, if it has any."""
    return flat(error) or "no reason was given"


def because(reason: str) -> str:
    """Return a reason that was given, as the end of a sentence."""
    return f", because: {flat(reason)}" if reason.strip() else ""


def listed(names: Iterable[str]) -> str:
    """Return names as they are read: "a", "a and b", "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def several(number: int, one: str, many: str = "") -> str:
    """Return how many there are: "1 step", "3 steps"."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def span(micros: int) -> str:
    """Return a length of time in words."""
    seconds = max(0, micros) / SECOND
    for size, unit in _UNITS:
        if seconds >= size:
            return several(round(seconds / size), unit)
    if 0 < seconds < 1:
        return "less than a second"
    return several(round(seconds), "second")


def until(state: State, at: Micros) -> str:
    """Return how far a moment is from the newest entry."""
    return span(at - state.at)


# ── calls ─────────────────────────────────────────────────────────────────────────────────


def call_named(state: State, call_: str) -> str:
    """Return a call by name: its tool, which one of its step if there are several, which step.

    The model's own calls are the agent.
    """
    call = call_of(state, call_)
    if call.call_kind == "model":
        return AGENT
    return f"{_one_of(state, call)}{_of_step(state, call)}"


def _one_of(state: State, call: Call) -> str:
    if state.started.hosted:  # its calls come one by one, and are of no step
        return f"{call.use.tool} #{call.number}"
    alike = [one.number for one in _of_its_step(state, call) if one.use.tool == call.use.tool]
    if len(alike) == 1:
        return call.use.tool
    return f"{call.use.tool} #{alike.index(call.number) + 1}"


def _of_step(state: State, call: Call) -> str:
    return f" of step {call.step}" if 0 < call.step < state.meter.steps else ""


def _of_its_step(state: State, call: Call) -> Iterable[Call]:
    """Return the tool calls of the same step: they stand side by side."""
    first = call.number
    while first > 1 and _is_beside(state.calls[first - 2], call):
        first -= 1
    for number in range(first, len(state.calls) + 1):
        if not _is_beside(one := state.calls[number - 1], call):
            return
        yield one


def _is_beside(one: Call, call: Call) -> bool:
    return one.step == call.step and one.call_kind != "model"


def caller(call: Call, state: State) -> str:
    """Return who made a call: the agent, or the person in its place."""
    return person(state.wheel) if call.by_hand and state.wheel else AGENT


def child_of(state: State, call: Call) -> str:
    """Return the run that a call of an agent started."""
    return f"child {run_named(child_id(state.run, call.id))}"


def child_named(state: State, call: Call) -> str:
    """Return the same with the name that its agent has as a tool."""
    return f"{call_named(state, call.id)} ({child_of(state, call)})"


def is_told_elsewhere(use: Use) -> bool:
    """Tell whether other entries say all that there is to say of a call."""
    ours = BUILT_IN.get(use.tool)
    return ours is not None and isinstance(use.args, dict) and use.args.keys() <= ours
