"""Views: runs as callers see them, and who may see which."""

from collections import OrderedDict
from typing import Final, TypeVar

from msgspec import structs

from midrun.core.entries import RunStarted
from midrun.core.ids import START, Micros, RunId, Seq
from midrun.core.state import State
from midrun.core.values import Actor, Phase, Value
from midrun.driver.journal import load, read_on
from midrun.embed.midrun import Midrun
from midrun.embed.view import RunView, view_of
from midrun.ports.store import RunRow

T = TypeVar("T")

STATES_MAX: Final = 128
FIRSTS_MAX: Final = 8192


class ShownRun(RunView, kw_only=True):
    """A run as the wire has it, as of the entry `seq`, whose hash in the chain is `head_hash`.

    `control_rev` grows with what people ask and with the phase, not with every step.
    """

    control_rev: Seq
    head_hash: str
    started_by: str


class RunLine(Value, kw_only=True):
    """A run as lists show it."""

    run_id: RunId
    phase: Phase
    agent: str
    task: str
    thread: str
    labels: tuple[str, ...]
    parent: RunId
    attention: str
    asks: int
    step: int
    driven: bool
    seq: Seq
    head_hash: str
    started_at: Micros
    changed_at: Micros


class Views:
    """Looks at runs. States are kept, and read on from where they were."""

    def __init__(self, mid: Midrun) -> None:
        self._mid = mid
        self._states: OrderedDict[RunId, State] = OrderedDict()
        self._firsts: OrderedDict[RunId, RunStarted] = OrderedDict()

    async def state(self, run: RunId) -> State:
        """Return what the journal of `run` means now.

        Raises:
            RunNotFound: no such run.
        """
        store, kept = self._mid.store, self._states.get(run)
        state = await load(store, run) if kept is None else await read_on(store, kept)
        newest = self._states.get(run)
        if newest is not None and newest.seq > state.seq:  # somebody read further meanwhile
            state = newest
        _keep(self._states, run, state, STATES_MAX)
        return state

    async def shown(self, run: RunId) -> ShownRun:
        """Return the run as the wire has it."""
        state = await self.state(run)
        store = self._mid.store
        row = await store.row(run)
        (_, head_hash), *_ = await store.lines(run, after=Seq(state.seq - 1), limit=1)
        return ShownRun(
            **structs.asdict(view_of(state, started_at=row.started_at)),
            control_rev=control_rev(state),
            head_hash=head_hash.hex(),
            started_by=state.started.by,
        )

    async def first(self, run: RunId) -> RunStarted:
        """Return how the run started.

        Raises:
            RunNotFound: no such run.
        """
        found = self._firsts.get(run)
        if found is None:
            (record,) = await self._mid.store.read(run, limit=1)
            assert isinstance(record.entry, RunStarted)  # or the store is not one
            found = record.entry
        _keep(self._firsts, run, found, FIRSTS_MAX)
        return found

    async def sees(self, actor: Actor, run: RunId) -> bool:
        """Tell whether `actor` may look at `run`: a user at their own runs, others at all.

        A child run is its parent's owner's.
        """
        if actor.role != "user":
            return True
        first = await self.first(run)
        while first.parent is not None:
            first = await self.first(first.parent.run)
        return first.by == actor.name


def control_rev(state: State) -> Seq:
    """Return what changes when somebody asked something, or the run came into a new phase."""
    asked = state.asks[-1].opened if len(state.asks) else START
    return max(state.controls, state.since, asked)


def run_line(row: RunRow) -> RunLine:
    """Return a row of a list."""
    head = row.head
    return RunLine(
        run_id=row.run,
        phase=head.phase,
        agent=head.agent,
        task=head.task,
        thread=head.thread,
        labels=head.labels,
        parent=head.parent,
        attention=head.attention,
        asks=head.asks,
        step=head.step,
        driven=bool(row.holder),
        seq=row.seq,
        head_hash=row.hash.hex(),
        started_at=row.started_at,
        changed_at=row.changed_at,
    )


def _keep(kept: OrderedDict[RunId, T], run: RunId, value: T, most: int) -> None:
    kept[run] = value
    kept.move_to_end(run)
    if len(kept) > most:
        kept.popitem(last=False)
