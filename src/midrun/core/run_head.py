"""The head of a run: the row that stores keep for lists, timers and leases.

The head is computed from the state and stored in the same transaction as the entries. So a
store never has to fold a journal, and the row is never older than the journal.
"""

from typing import Final

from midrun.core.ids import Micros, RunId
from midrun.core.journaled_text import shorten_to_line
from midrun.core.scheduler import find_wake_time
from midrun.core.state import State
from midrun.core.values import Phase, Value

NAME_MAX_CHARS: Final = 200
"""Maximum length of the names in a head, such as a thread or a label: stores index them."""


class Head(Value, kw_only=True):
    """The row of a run in a store; lists and indexes use its fields."""

    phase: Phase
    agent: str = ""
    task: str = ""  # cut to a line
    thread: str = ""
    labels: tuple[str, ...] = ()
    parent: RunId = RunId("")
    owner: str = ""  # the user who started it, or its parent
    tenant: str = ""
    team: str = ""  # users of this team see it like its owner
    attention: str = ""  # the reason why a person is needed: ask, cap, failed, residue, or ""
    asks: int = 0
    addressees: tuple[str, ...] = ()  # users whom its open asks name
    step: int = 0
    cost: int = 0  # spent so far, in millionths of a dollar
    tokens: int = 0
    leased: bool = False  # when an append sets it to False, the store releases the lease
    wake_at: Micros | None = None  # the next timer of a run without a worker


def build_head(state: State) -> Head:
    """Compute the head of a run in `state`."""
    spec = state.run_started
    return Head(
        phase=state.phase,
        agent=spec.agent,
        task=shorten_to_line(spec.task),
        thread=spec.thread,
        labels=spec.labels,
        parent=spec.parent.run if spec.parent else RunId(""),
        owner=spec.by,
        tenant=spec.tenant,
        team=spec.team,
        # Nothing of it applies to a run that works and has no open ask.
        attention=find_attention_reason(state)
        if state.open_asks or state.residue or state.phase is not Phase.RUNNING
        else "",
        asks=len(state.open_asks),
        addressees=_list_addressees(state) if state.open_asks else (),
        step=state.meter.steps,
        cost=state.meter.spent.cost,
        tokens=state.meter.spent.tokens,
        leased=state.is_leased,
        # A worker that holds the lease runs the timers itself.
        wake_at=None if state.is_leased else find_wake_time(state),
    )


def _list_addressees(state: State) -> tuple[str, ...]:
    audiences = {state.asks[number - 1].audience for number in state.open_asks}
    return tuple(sorted(a.removeprefix("user:") for a in audiences if a.startswith("user:")))


def find_attention_reason(state: State) -> str:
    """Return the reason why the run needs a person, or ""."""
    if state.open_asks:
        return "ask"
    if state.phase is Phase.PAUSED and state.pause is not None and state.pause.reason == "cap":
        return "cap"
    if state.phase is Phase.FAILED:
        return "failed"
    return "residue" if state.residue and not state.residue_accepted else ""
