"""Child runs: their ids, and the answers that a parent run passes on to them."""

from collections.abc import Iterator

from midrun.core.ids import MICROS_PER_SECOND, RunId, make_child_id
from midrun.core.state import Ask, State
from midrun.core.stops import CAP_MAX
from midrun.core.values import Json


def iter_child_ids(state: State) -> Iterator[RunId]:
    """Yield the ids of the child runs that the run has started, in order.

    A worker may have died between `CallStarted` and the start of the child. Such a child is
    included and may not exist.
    """
    for number in state.cleanup_calls:  # every started call of a child is in there
        call = state.calls[number - 1]
        if call.call_kind == "child":
            yield make_child_id(state.run, call.id)


def get_child_ask_id(ask: Ask) -> str:
    """Return the id of the child's ask that `ask` shows; "" if the child waits without one."""
    return str(ask.data.get("ask", "")) if isinstance(ask.data, dict) else ""


def read_child_caps(ask: Ask, answer: Json) -> dict[str, int]:
    """Return the caps that an answer raises in a child that rests without an ask; {} if none.

    People write dollars and seconds; `Resume` takes millionths of a dollar and microseconds. A
    bound out of range becomes the nearest one in range.
    """
    if ask.ask_kind != "child" or get_child_ask_id(ask) or not isinstance(answer, dict):
        return {}
    return {
        name: round(
            min(max(bound, 0), CAP_MAX) * (MICROS_PER_SECOND if name in {"cost", "time"} else 1)
        )
        for name, bound in answer.items()
        if isinstance(bound, int | float)
    }
