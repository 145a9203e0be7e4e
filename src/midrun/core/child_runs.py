"""Families: which child runs a run has begun, and what an answer means for one of them."""

from collections.abc import Iterator

from midrun.core.ids import SECOND, RunId, child_id
from midrun.core.state import Ask, State
from midrun.core.stops import CAP_MAX
from midrun.core.values import Json


def children_of(state: State) -> Iterator[RunId]:
    """Yield the ids of the child runs that the run has begun, or was about to, in order."""
    for number in state.effects:
        call = state.calls[number - 1]
        if call.call_kind == "child":
            yield child_id(state.run, call.id)


def find_child_ask(ask: Ask) -> str:
    """Return the id of the child's ask that `ask` shows; "" where the child only rests."""
    return str(ask.data.get("ask", "")) if isinstance(ask.data, dict) else ""


def read_child_caps(ask: Ask, answer: Json) -> dict[str, int]:
    """Return the bounds that an answer about a child that rests asks for; {} without any.

    They are counted as `Resume` takes them: money in millionths, time in microseconds. One that
    is out of range is taken for the end of the range.
    """
    if ask.ask_kind != "child" or find_child_ask(ask) or not isinstance(answer, dict):
        return {}
    return {
        name: round(min(max(bound, 0), CAP_MAX) * (SECOND if name in {"cost", "time"} else 1))
        for name, bound in answer.items()
        if isinstance(bound, int | float)
    }
