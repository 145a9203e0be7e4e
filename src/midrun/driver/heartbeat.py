"""The lease heartbeat: keeps the leases of this process alive, and notices when they lapse.

A worker has one row in the store, its *holder*, with the time of its last heartbeat. All leases
of the worker are valid while that heartbeat is younger than the time to live (TTL). So one
heartbeat keeps all of them alive, however many runs the worker drives.

**Two loops.** Heartbeats are sent from a thread with an event loop of its own: a tool that
blocks the main event loop must not cost the worker its leases. The main event loop only ticks
(`_run_ticks`). Each heartbeat carries the lag of that tick, so that a blocked worker can be
seen from outside.

**Self-fencing.** A process that was frozen (a suspended laptop, SIGSTOP, a paused VM) or cut
off from the store cannot know whether another worker has taken its runs meanwhile. So it stops
by itself before that can happen. `_valid_until` is set to the moment *before* the heartbeat was
sent plus 80 % of the TTL. The store counts the TTL from when it received the heartbeat, so by
its clock the lease is still valid when `_valid_until` has passed here. From then on `is_alive`
is False, no call starts, and the next tick calls `on_lease_lost`: the worker drops all its run
loops whole and takes the runs again, each under a new epoch.

A lapsed lease must not be renewed silently. After a freeze the heartbeat thread may run before
the main loop does. If it sent a heartbeat then, the run loops would continue on a state that
another worker may have changed. So the thread renews only a lease that is still valid; after a
lapse only `ensure_fresh`, in the main loop, sends a heartbeat, once everything is dropped.

All times are read from a clock that also counts while the machine sleeps, never from the wall
clock. Safety does not depend on any of this: the store compares the epoch in every append and
refuses an old one. Self-fencing only keeps a worker from making calls that it cannot record.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import anyio
import anyio.abc
from anyio.from_thread import BlockingPortal, start_blocking_portal

from midrun.errors import StoreError
from midrun.ports.platform import read_boot_clock
from midrun.ports.store import Store

HEARTBEATS_PER_TTL: Final = 6
"""Heartbeats in one time to live. A few may be lost before the lease lapses."""

TTL_SAFETY_FRACTION: Final = 0.2
"""The last part of the time to live, in which this process does not act any more."""


class LeaseHeartbeat:
    """Sends heartbeats for the leases of one process, and reports when they have lapsed.

    `on_lease_lost` is called in the main event loop when the leases may be lost; it may be
    called more than once for the same lapse. `on_renewed` is called whenever the store has
    accepted a heartbeat, with the moment by `clock` until which this process may act. It is
    called in the main event loop or in the heartbeat thread.
    """

    def __init__(
        self,
        store: Store,
        holder_name: str,
        *,
        ttl: timedelta,
        clock: Callable[[], float] = read_boot_clock,
        on_lease_lost: Callable[[], None] = lambda: None,
        on_renewed: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.holder_name = holder_name
        self.clock = clock
        self.on_lease_lost = on_lease_lost
        self.on_renewed = on_renewed
        self._store = store
        self._ttl = ttl
        self._period_s = ttl.total_seconds() / HEARTBEATS_PER_TTL
        # The heartbeat thread reads these values without a lock, and both threads write
        # `_valid_until`. Each is replaced as a whole; a reader that still sees the older moment
        # stops earlier, which is safe.
        # The moment, by our clock, until which this process may act. Negative: no heartbeat was
        # sent yet.
        self._valid_until = -1.0
        self._last_tick = 0.0  # the last tick of the main event loop
        self._lease_count = 0

    @property
    def lag_s(self) -> float:
        """Seconds by which the main event loop is late with its tick."""
        return max(0.0, self.clock() - self._last_tick - self._period_s)

    def is_alive(self) -> bool:
        """Tell whether this process may still act on its leases."""
        return self.clock() < self._valid_until

    async def ensure_fresh(self) -> None:
        """Send a heartbeat unless the last one is fresh; call this before taking a lease.

        Without leases the thread sends no heartbeats, so the last one may be old. Two periods
        of it must be left: the next heartbeat of the thread is up to one period away, and takes
        time itself. Leases that had lapsed are dropped first.
        """
        now = self.clock()
        if now < self._valid_until - 2 * self._period_s:
            return
        # First drop, then renew. In the other order the run loops of the lapsed leases would
        # see a valid lease again, and would continue on a state that another worker may have
        # changed.
        if self._lease_count and now >= self._valid_until:
            self.on_lease_lost()
        await self._send_heartbeat(now)

    def lease_taken(self) -> None:
        """Count one lease more; heartbeats are sent while there is one."""
        self._lease_count += 1

    def lease_released(self) -> None:
        """Count one lease less."""
        self._lease_count -= 1

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Send heartbeats while the context is open; then free the leases that are left."""
        self._last_tick = self.clock()
        with start_blocking_portal(name="midrun-heartbeat") as portal:
            beats = portal.start_task_soon(self._send_heartbeats, portal)
            try:
                async with anyio.create_task_group() as ticking:
                    ticking.start_soon(self._run_ticks)
                    yield
                    ticking.cancel_scope.cancel()
            finally:
                # From here on no heartbeat may be sent: it would renew the leases that are
                # freed below. The wait is shielded, because a shutdown usually arrives as a
                # cancellation, and bounded by one period, because leases that are not freed
                # lapse by themselves.
                beats.cancel()
                with anyio.CancelScope(shield=True), anyio.move_on_after(self._period_s):
                    await self._free_leases()

    async def _free_leases(self) -> None:
        if self._valid_until < 0:
            return  # the store has no heartbeat of this holder
        try:
            await self._store.release_leases(self.holder_name)
        except StoreError:
            return  # the leases lapse by themselves

    async def _send_heartbeats(self, _: BlockingPortal) -> None:
        """Send a heartbeat every period, in the thread."""
        while True:
            sent = self.clock()
            # A lapsed lease stays lapsed until the main loop has dropped it (see above).
            if self._lease_count and sent < self._valid_until:
                with suppress(StoreError):  # try again in the next period, while there is time
                    await self._send_heartbeat(sent)
            await anyio.sleep(self._period_s)

    async def _send_heartbeat(self, sent_at: float) -> None:
        await self._store.record_heartbeat(self.holder_name, ttl=self._ttl, lag=self.lag_s)
        # From when it was sent, not from now: the reply may have taken long, and the store
        # counts from somewhere in between.
        self._valid_until = sent_at + self._ttl.total_seconds() * (1 - TTL_SAFETY_FRACTION)
        self.on_renewed(self._valid_until)

    async def _run_ticks(self) -> None:
        """Tick every period, in the main event loop; report leases that have lapsed.

        After a freeze this sleep is overdue, so the lapse is noticed in the first turn of the
        event loop.
        """
        while True:
            self._last_tick = self.clock()
            if self._lease_count and not self.is_alive():
                self.on_lease_lost()
            await anyio.sleep(self._period_s)
