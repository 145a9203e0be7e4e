"""The holder: this process as the store knows it, alive for as long as its beats are fresh.

Beats come from a thread of their own: a tool that blocks the event loop must not cost the
process its leases. How far the loop is behind goes with each beat, for those who look.

A process that was frozen, suspended, or cut off from its store cannot know what happened since.
It fences itself: past the moment at which others may have taken its leases it acts no more, and
everything that it drives is dropped whole and taken anew. That moment is judged by a clock that
also counts the time in which a laptop sleeps, never by the wall clock. Safety does not rest on
it: the store refuses an old epoch whatever any clock says.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import anyio
import anyio.abc
from anyio.from_thread import BlockingPortal, start_blocking_portal

from midrun.errors import StoreError
from midrun.ports.environment import boottime
from midrun.ports.store import Store

BEATS: Final = 6
"""Beats in one time to live."""

MARGIN: Final = 0.2
"""The part of the time to live in which a process that has not beaten acts no more."""


class Holder:
    """Keeps the leases of one process alive, and says when it must not count on them.

    `on_fence` is called in the event loop once the process has lost the right to act.
    `on_renewed` is called with the moment until which it may act, by `clock`, whenever the
    store has accepted a beat: in the event loop, or in the thread that beats.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        ttl: timedelta,
        clock: Callable[[], float] = boottime,
        on_fence: Callable[[], None] = lambda: None,
        on_renewed: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.on_fence = on_fence
        self.on_renewed = on_renewed
        self._store = store
        self._ttl = ttl
        self._clock = clock
        self._period = ttl.total_seconds() / BEATS
        self._until = -1.0  # by our clock: the end of the last beat that the store took
        self._ticked = 0.0
        self._leases = 0

    @property
    def lag(self) -> float:
        """How many seconds the event loop is behind its own tick."""
        return max(0.0, self._clock() - self._ticked - self._period)

    def alive(self) -> bool:
        """Tell whether this process may still act on its leases: the last look."""
        return self._clock() < self._until

    async def ready(self) -> None:
        """Be alive in the store's eyes before a lease is taken; what had lapsed is dropped.

        And for a while yet: without leases nobody has beaten, and the last beat may be about to
        lapse before the next one comes.
        """
        now = self._clock()
        if now < self._until - 2 * self._period:
            return
        if self._leases and now >= self._until:
            self.on_fence()
        await self._beat(now)

    def took(self) -> None:
        """Count a lease: while there is one, the holder beats."""
        self._leases += 1

    def gave_back(self) -> None:
        """Count a lease less."""
        self._leases -= 1

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Beat for as long as the context is open; then let go of what is still held."""
        self._ticked = self._clock()
        with start_blocking_portal(name="midrun-heartbeat") as portal:
            beats = portal.start_task_soon(self._beats, portal)
            try:
                async with anyio.create_task_group() as ticking:
                    ticking.start_soon(self._ticks)
                    yield
                    ticking.cancel_scope.cancel()
            finally:
                beats.cancel()
                with anyio.CancelScope(shield=True), anyio.move_on_after(self._period):
                    await self._rest()

    async def _rest(self) -> None:
        if self._until < 0:
            return  # nobody has ever heard of us
        try:
            await self._store.rest(self.name)
        except StoreError:
            return  # then it ends by itself

    async def _beats(self, _: BlockingPortal) -> None:
        """Beat, in the thread: nothing that blocks the loop keeps this from running."""
        while True:
            sent = self._clock()
            # What has lapsed stays so until the loop has dropped it: no beat brings it back.
            if self._leases and sent < self._until:
                with suppress(StoreError):  # the next one may fare better; the time runs
                    await self._beat(sent)
            await anyio.sleep(self._period)

    async def _beat(self, sent: float) -> None:
        await self._store.beat(self.name, ttl=self._ttl, lag=self.lag)
        self._until = sent + self._ttl.total_seconds() * (1 - MARGIN)
        self.on_renewed(self._until)

    async def _ticks(self) -> None:
        """Tick, in the loop; notice first thing after a freeze that the time is over."""
        while True:
            self._ticked = self._clock()
            if self._leases and not self.alive():
                self.on_fence()
            await anyio.sleep(self._period)
