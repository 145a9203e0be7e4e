"""Format actors, calls, values, durations and lists as parts of a sentence."""

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
"""Maximum length of a quoted text or of arguments. The journal has the full text."""

GLIMPSE: Final = 160
"""Maximum length of a tool's result. The agent reads all of it; people need an impression."""

BUILT_IN: Final[Mapping[str, frozenset[str]]] = {
    "plan": frozenset({"items", "marks"}),
    "ask_human": frozenset({"question", "options"}),
}
"""Built-in tool → its argument names.

The entries `PlanMade` and `AskOpened` describe calls of these tools. A user's tool of the same
name has other arguments and is described like any tool.
"""

_EMPHASIS: Final = re.compile(r"\*([^*\n]+)\*")
# `str(stop)` is journaled with the entry: "at most 1 steps or the agent says 'FIN'". These two
# patterns correct the plural and the quotes when a condition is displayed.
_ONE: Final = re.compile(r"(at most 1 [a-z ]+?)s(?= or | and |\)|$)")
_SAYS: Final = re.compile(r"(the agent says )['\"](.*?)['\"](?= or | and |\)|$)")
_UNITS: Final = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


class Told(Value, kw_only=True):
    """One entry as a sentence: the subject `who` and the predicate `what`."""

    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.who} {self.what}"


Sentences = Mapping[type, Callable[..., Told]]  # type: ignore[explicit-any]  # as `state.EvolveFunctions`


def person(by: str) -> str:
    """Return an actor as the subject of a sentence."""
    run = by.removeprefix("run:")
    if run != by:
        return f"the parent {run_named(run)}"
    return "the user" if by == Actor().name else by or "an unnamed user"


def run_named(run: str) -> str:
    """Return the id of a run, prefixed with "run" if it does not start so."""
    return run if run.startswith("run") else f"run {run}"


def by_itself(by: str) -> bool:
    """Tell whether an entry came from a timer or from the run itself."""
    return not by or by == f"{SYSTEM}clock"


def flat(text: str, most: int = LONG) -> str:
    """Return `text` as one line, cut to `max_chars` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def quoted(text: str, most: int = LONG) -> str:
    """Return `text` in quotation marks, or "nothing" if it is empty."""
    said = flat(text, most)
    return f"“{said}”" if said else "nothing"


def unmarked(text: str) -> str:
    """Remove the asterisks of emphasis from a text of the runtime."""
    return _EMPHASIS.sub(r"\1", text)


def shown(value: Json, most: int = LONG) -> str:
    """Return a value as text or JSON, cut to `max_chars` characters."""
    return flat(value if isinstance(value, str) else msgspec.json.encode(value).decode(), most)


def spoken(value: Json, most: int = LONG) -> str:
    """Return an answer or a result: a string quoted, an object name by name."""
    if isinstance(value, str):
        return quoted(value, most)
    if is_empty(value):
        return "nothing"
    return arguments(value, most).strip() if isinstance(value, dict) else shown(value, most)


def is_empty(value: Json) -> bool:
    """Tell whether a value is None or an empty string, list or object.

    0 and False are not empty: they are answers.
    """
    return value is None or (isinstance(value, str | list | dict) and not value)


def arguments(args: Json, most: int = LONG) -> str:
    """Return the arguments of a call in brackets, or "" without arguments."""
    if is_empty(args):
        return ""
    if isinstance(args, dict):
        said = ", ".join(f"{name}: {_plainly(value)}" for name, value in args.items())
        return f" ({flat(said, most)})"
    return f" ({shown(args, most)})"


def _plainly(value: Json) -> str:
    return "nothing" if is_empty(value) else shown(value) or "nothing"


def condition(stop: str) -> str:
    """Return a journaled stop condition with correct plural and typographic quotes."""
    return _SAYS.sub(r"\1“\2”", _ONE.sub(r"\1", stop))


def held_at(frame: Frame) -> str:
    """Return the position of a suspended topic: "plan step 2 of 3", or "step 4"."""
    return f"plan {place_of(frame)}" if frame.total else place_of(frame)


def fault(error: str) -> str:
    """Return the text of an error, or a note that there is none."""
    return flat(error) or "no reason was given"


def because(reason: str) -> str:
    """Return a reason as the end of a sentence, or ""."""
    return f", because: {flat(reason)}" if reason.strip() else ""


def listed(names: Iterable[str]) -> str:
    """Join names: "a", "a and b", "a, b and c"."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def several(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 step", "3 steps"."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def span(micros: int) -> str:
    """Return a duration in its largest unit: "2 hours", "less than a second"."""
    seconds = max(0, micros) / SECOND
    for size, unit in _UNITS:
        if seconds >= size:
            return several(round(seconds / size), unit)
    if 0 < seconds < 1:
        return "less than a second"
    return several(round(seconds), "second")


def until(state: State, at: Micros) -> str:
    """Return the duration from the newest entry to `at`."""
    return span(at - state.at)


# ── calls ─────────────────────────────────────────────────────────────────────────────────


def call_named(state: State, call_: str) -> str:
    """Return the name of a call: "draft", "draft #2" or "draft #2 of step 1".

    The number is added if its step has several calls of the same tool, the step if a later
    step has begun. A model call is "the agent".
    """
    call = call_of(state, call_)
    if call.call_kind == "model":
        return AGENT
    return f"{_one_of(state, call)}{_of_step(state, call)}"


def _one_of(state: State, call: Call) -> str:
    # A hosted agent has no steps: its calls come one by one. Number them over the whole run.
    if state.started.hosted:
        return f"{call.use.tool} #{call.number}"
    alike = [one.number for one in _of_its_step(state, call) if one.use.tool == call.use.tool]
    if len(alike) == 1:
        return call.use.tool
    return f"{call.use.tool} #{alike.index(call.number) + 1}"


def _of_step(state: State, call: Call) -> str:
    return f" of step {call.step}" if 0 < call.step < state.meter.steps else ""


def _of_its_step(state: State, call: Call) -> Iterable[Call]:
    """Yield the tool calls of the same step: they have consecutive numbers."""
    # A model call separates the steps, so the calls of a step are neighbours. Walk back to the
    # first and then forward, instead of scanning all calls of the run.
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
    """Return the subject of a call: the agent, or the person who has taken over."""
    return person(state.wheel) if call.by_hand and state.wheel else AGENT


def child_of(state: State, call: Call) -> str:
    """Return the child run of a call: "child run_1"."""
    return f"child {run_named(child_id(state.run, call.id))}"


def child_named(state: State, call: Call) -> str:
    """Return the name of a child call with its run: "aide (child run_1)"."""
    return f"{call_named(state, call.id)} ({child_of(state, call)})"


def is_told_elsewhere(use: Use) -> bool:
    """Tell whether other entries describe this call: a plan, or a question to a person."""
    ours = BUILT_IN.get(use.tool)
    return ours is not None and isinstance(use.args, dict) and use.args.keys() <= ours
