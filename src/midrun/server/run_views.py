"""Views of runs, the same for all viewers, from cached states.

`RunViews` folds journals into states and keeps the most recent ones: a state that was read
before is folded on from its last seq. `overlays.py` adds the facts that depend on the viewer.
"""

from typing import Final, NamedTuple

import msgspec

from midrun.core.evolve import fold
from midrun.core.ids import RunId
from midrun.core.lru import LruDict
from midrun.core.run_head import Head
from midrun.core.state import State
from midrun.driver.journal_writer import load_run_state
from midrun.errors import RunErased, RunNotFound
from midrun.ports.store import Visibility
from midrun.runs.midrun import Midrun
from midrun.runs.values import RunView
from midrun.runs.views import load_view

CACHED_STATES_MAX: Final = 128
CACHED_STATES_MAX_BYTES: Final = 64 * 1024 * 1024
"""The bound on the journals of all cached states; a state needs about as much memory."""

CACHED_HEADS_MAX: Final = 8192


class _CachedState(NamedTuple):
    state: State
    journal_bytes: int  # bytes of its journal, as JSON


class RunViews:
    """Reads states and views of runs. Cached states are folded on from their last seq."""

    def __init__(self, mid: Midrun) -> None:
        self._mid = mid
        self._states: LruDict[RunId, _CachedState] = LruDict(
            max_items=CACHED_STATES_MAX, max_weight=CACHED_STATES_MAX_BYTES
        )
        self._heads: LruDict[RunId, Head] = LruDict(max_items=CACHED_HEADS_MAX)
        self._visible: LruDict[tuple[Visibility, RunId], bool] = LruDict(
            max_items=CACHED_HEADS_MAX
        )

    async def read_state(self, run: RunId) -> State:
        """Return the current state of `run`.

        Raises:
            RunNotFound: no such run.
        """
        cached = self._states.get(run)
        if cached is None:
            state = await load_run_state(self._mid.store, run)
            size = count_bytes([*state.messages], [*state.calls])
        else:
            state = cached.state
            records = await self._mid.store.read(run, after=state.seq)
            state = fold(run, records, state)
            size = cached.journal_bytes + count_bytes(*(record.entry for record in records))
        # Other requests may have stored a state during the awaits. A newer one must not be
        # replaced by an older one.
        newest = self._states.get(run)
        if newest is not None and newest.state.seq > state.seq:
            return newest.state
        self._states.put(run, _CachedState(state, size), weight=size)
        return state

    async def show_run(self, run: RunId) -> RunView:
        """Return the current view of a run."""
        return await self.show_state(await self.read_state(run))

    async def show_state(self, state: State, max_effects: int | None = None) -> RunView:
        """Return the view of a run as of `state`, with its newest `max_effects` effects."""
        silent = self._mid.find_silent_calls(state.run)
        return await load_view(self._mid.store, state, max_effects=max_effects, silent=silent)

    async def read_head(self, run: RunId) -> Head:
        """Return a possibly outdated head of `run`; use only its agent and tenant.

        Those two never change, so the head is cached without any invalidation.

        Raises:
            RunNotFound: no such run.
        """
        found = self._heads.get(run)
        if found is None:
            found = (await self._mid.store.get_row(run)).head
            self._heads.put(run, found)
        return found

    async def can_see(self, seen_by: Visibility, run: RunId) -> bool:
        """Return whether `seen_by` includes `run`, by a query of the store.

        The owner, tenant and team of a run never change, so a positive answer is cached. A
        child run has those of its parent.

        Raises:
            RunErased: the run was deleted, and `seen_by` included it.
        """
        if self._visible.get((seen_by, run)):
            return True
        try:
            await self._mid.store.get_row(run, seen_by)
        except RunErased:
            raise
        except RunNotFound:
            return False
        self._visible.put((seen_by, run), value=True)
        return True


def count_bytes(*values: object) -> int:
    """Return the length of `values` as JSON: an estimate of their size in memory."""
    return sum(len(msgspec.json.encode(value)) for value in values)
