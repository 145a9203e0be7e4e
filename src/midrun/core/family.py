"""Families: which child runs a run has begun, as its own journal tells."""

from collections.abc import Iterator

from midrun.core.ids import RunId, child_id
from midrun.core.state import State


def children_of(state: State) -> Iterator[RunId]:
    """Yield the ids of the child runs that the run has begun, or was about to, in order."""
    for number in state.effects:
        call = state.calls[number - 1]
        if call.call_kind == "child":
            yield child_id(state.run, call.id)
