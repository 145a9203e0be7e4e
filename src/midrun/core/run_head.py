"""The head: the few facts of a run that lists, wake-ups and leases need without folding it.

It is computed from the state and stored in the same transaction as the entries it follows
from, so a store never has to fold a journal.
"""

from typing import Final

from midrun.core.ids import Micros, RunId
from midrun.core.journaled_text import line
from midrun.core.scheduler import wake_at
from midrun.core.state import State
from midrun.core.values import Phase, Value

NAME_MAX_CHARS: Final = 200
"""Of a thread, label, agent, parent or owner: each stands in an index of every store."""


class Head(Value, kw_only=True):
    """What a store knows about a run. Every field is indexed or shown in a list."""

    phase: Phase
    agent: str = ""
    task: str = ""  # cut to a line
    thread: str = ""
    labels: tuple[str, ...] = ()
    parent: RunId = RunId("")
    owner: str = ""  # the user who started it, or its parent
    attention: str = ""  # why a person should look: ask, cap, failed, residue; or nothing
    asks: int = 0
    addressees: tuple[str, ...] = ()  # users whom its open asks name
    step: int = 0
    cost: int = 0  # spent so far, in millionths of a dollar
    tokens: int = 0
    leased: bool = False  # False gives the lease back
    wake_at: Micros | None = None  # when a parked run must be looked at again


def head_of(state: State) -> Head:
    """Return the head of a run in `state`."""
    spec = state.started
    return Head(
        phase=state.phase,
        agent=spec.agent,
        task=line(spec.task),
        thread=spec.thread,
        labels=spec.labels,
        parent=spec.parent.run if spec.parent else RunId(""),
        owner=spec.by,
        attention=attention(state),
        asks=len(state.open_asks),
        addressees=_addressees(state),
        step=state.meter.steps,
        cost=state.meter.spent.cost,
        tokens=state.meter.spent.tokens,
        leased=state.leased,
        wake_at=None if state.leased else wake_at(state),  # a driver has its own clock
    )


def _addressees(state: State) -> tuple[str, ...]:
    audiences = {state.asks[number - 1].audience for number in state.open_asks}
    return tuple(sorted(a.removeprefix("user:") for a in audiences if a.startswith("user:")))


def attention(state: State) -> str:
    """Return why a person should look at the run, or "" if nobody needs to."""
    if state.open_asks:
        return "ask"
    if state.phase is Phase.PAUSED and state.hold is not None and state.hold.why == "cap":
        return "cap"
    if state.phase is Phase.FAILED:
        return "failed"
    return "residue" if state.residue and not state.residue_accepted else ""
