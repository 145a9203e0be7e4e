"""Views: runs as callers see them, and who may see which."""

from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from midrun.core.evolve import fold
from midrun.core.head import Head
from midrun.core.ids import RunId, Seq
from midrun.core.lru import LruDict
from midrun.core.state import State
from midrun.core.values import Actor
from midrun.driver.journal import load
from midrun.embed.midrun import Midrun
from midrun.embed.view import heard, view_of
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.handles.view import RunView

STATES_MAX: Final = 128
STATES_MAX_BYTES: Final = 64 * 1024 * 1024
"""The bound on the journals of all cached states; a state takes about as much memory."""

HEADS_MAX: Final = 8192

UNREADABLE: Final = (JournalCorrupt, JournalTooNew)
"""What a journal can be that was tampered with, or is of a newer midrun: one of many."""


class ShownRun(RunView, kw_only=True):
    """A run as the wire has it; `head_hash` is the chain's at `seq`."""

    head_hash: str
    started_by: str


class _Cached(NamedTuple):
    state: State
    size: int  # bytes of its journal, as JSON


class Views:
    """Looks at runs. States are cached, and read on from where they were."""

    def __init__(self, mid: Midrun) -> None:
        self._mid = mid
        self._states: LruDict[RunId, _Cached] = LruDict(
            max_items=STATES_MAX, max_weight=STATES_MAX_BYTES
        )
        self._heads: LruDict[RunId, Head] = LruDict(max_items=HEADS_MAX)

    async def state(self, run: RunId) -> State:
        """Return what the journal of `run` means now.

        Raises:
            RunNotFound: no such run.
        """
        cached = self._states.get(run)
        if cached is None:
            state = await load(self._mid.store, run)
            size = count_bytes([*state.messages], [*state.calls])
        else:
            state = cached.state
            records = await self._mid.store.read(run, after=state.seq)
            state = fold(run, records, state)
            size = cached.size + count_bytes(*(record.entry for record in records))
        newest = self._states.get(run)
        if newest is not None and newest.state.seq > state.seq:
            return newest.state  # another request read further meanwhile
        self._states.put(run, _Cached(state, size), weight=size)
        return state

    async def shown(self, run: RunId) -> ShownRun:
        """Return the run as the wire has it."""
        return await self.shown_in(await self.state(run))

    async def shown_in(self, state: State) -> ShownRun:
        """Return the run as the wire has it, as it was in `state`."""
        run, store = state.run, self._mid.store
        row = await store.row(run)
        (_, head_hash), *_ = await store.lines(run, after=Seq(state.seq - 1), limit=1)
        silent = self._mid.silent_calls(run)
        view = view_of(state, started_at=row.started_at, silent=silent)
        view = await heard(store, row, view)
        return ShownRun(
            **structs.asdict(view),
            head_hash=head_hash.hex(),
            started_by=state.started.by,
        )

    async def head(self, run: RunId) -> Head:
        """Return the head of `run` as it was some time ago: its agent and owner never change.

        Raises:
            RunNotFound: no such run.
        """
        found = self._heads.get(run)
        if found is None:
            found = (await self._mid.store.row(run)).head
            self._heads.put(run, found)
        return found

    async def sees(self, actor: Actor, run: RunId) -> bool:
        """Tell whether `actor` may look at `run`: a user at their own runs, others at all.

        A child run belongs to the owner of its parent.
        """
        return actor.role != "user" or (await self.head(run)).owner == actor.name


def count_bytes(*values: object) -> int:
    """Return the length of `values` as JSON, which is about their size in memory."""
    return sum(len(msgspec.json.encode(value)) for value in values)
