"""Views: runs as callers see them, and who may see which."""

from collections import OrderedDict
from typing import Final, TypeVar

from msgspec import structs

from midrun.core.entries import RunStarted
from midrun.core.ids import RunId, Seq
from midrun.core.state import State
from midrun.core.values import Actor
from midrun.driver.journal import load, read_on
from midrun.embed.midrun import Midrun
from midrun.embed.view import heard, view_of
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.handles.view import RunView
from midrun.ports.store import Query

K = TypeVar("K")
T = TypeVar("T")

STATES_MAX: Final = 128
FIRSTS_MAX: Final = 8192
PAGE: Final = 500

UNREADABLE: Final = (JournalCorrupt, JournalTooNew)
"""What a journal can be that was tampered with, or is of a newer midrun: one of many."""


class ShownRun(RunView, kw_only=True):
    """A run as the wire has it; `head_hash` is the chain's at `seq`."""

    head_hash: str
    started_by: str


class Views:
    """Looks at runs. States are kept, and read on from where they were."""

    def __init__(self, mid: Midrun) -> None:
        self._mid = mid
        self._states: OrderedDict[RunId, State] = OrderedDict()
        self._firsts: OrderedDict[RunId, RunStarted] = OrderedDict()
        self._threads: OrderedDict[str, RunId] = OrderedDict()  # the first run of each

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
        keep(self._states, run, state, STATES_MAX)
        return state

    async def shown(self, run: RunId) -> ShownRun:
        """Return the run as the wire has it."""
        return await self.shown_in(await self.state(run))

    async def shown_in(self, state: State) -> ShownRun:
        """Return the run as the wire has it, as it was in `state`."""
        run, store = state.run, self._mid.store
        row = await store.row(run)
        (_, head_hash), *_ = await store.lines(run, after=Seq(state.seq - 1), limit=1)
        view = await heard(store, row, view_of(state, started_at=row.started_at))
        return ShownRun(
            **structs.asdict(view),
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
        keep(self._firsts, run, found, FIRSTS_MAX)
        return found

    async def sees(self, actor: Actor, run: RunId) -> bool:
        """Tell whether `actor` may look at `run`: a user at their own runs, others at all.

        A child run is its parent's owner's. Whose one is that cannot be read, nobody can say.
        """
        if actor.role != "user":
            return True
        try:
            first = await self.first(run)
            while first.parent is not None:
                first = await self.first(first.parent.run)
        except UNREADABLE:
            return False
        return first.by == actor.name

    async def joins(self, actor: Actor, thread: str) -> bool:
        """Tell whether `actor` may go on with `thread`: it is theirs whose first run it has.

        Others may have run something in it, as an operator who helped. That takes it from
        nobody. A run is told only of those that its starter may see.
        """
        if actor.role != "user":
            return True
        first = self._threads.get(thread) or await self._first_in(thread)
        if first is None:
            return True
        keep(self._threads, thread, first, FIRSTS_MAX)
        return await self.sees(actor, first)

    async def _first_in(self, thread: str) -> RunId | None:
        """Return the first run of a thread, if there is any; it stays the first for ever."""
        query, first = Query(thread=thread, limit=PAGE), None
        while True:
            page = await self._mid.store.runs(query)
            first = page.items[-1].run if page.items else first
            if not page.cursor:
                return first
            query = structs.replace(query, cursor=page.cursor)


def keep(kept: OrderedDict[K, T], name: K, value: T, most: int) -> None:
    """Keep `value`, and let go what has not been asked for the longest."""
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > most:
        kept.popitem(last=False)
