"""The heartbeat thread, and the self-fencing of a process whose lease may have expired."""

from collections.abc import AsyncIterator
from datetime import timedelta
from threading import Event, get_ident

import anyio
import pytest

from midrun.driver.heartbeat import HEARTBEATS_PER_TTL, TTL_SAFETY_FRACTION, LeaseHeartbeat
from midrun.errors import StoreBusy
from midrun.stores.memory import MemoryStore
from tests.crash.conftest import TIMEOUT_S

TTL = timedelta(seconds=0.3)
INTERVAL_S = TTL.total_seconds() / HEARTBEATS_PER_TTL
SAFE_S = TTL.total_seconds() * (1 - TTL_SAFETY_FRACTION)


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RecordingStore(MemoryStore):
    """A store that records each heartbeat: its thread, and the lag of the event loop.

    `is_unreachable` makes it fail. `seconds_per_beat` is the time that passes with each
    heartbeat.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.lags: list[float] = []
        self.released_holders: list[str] = []
        self.is_unreachable = False
        self.seconds_per_beat = 0.0
        self.three_beats = Event()
        self.next_beat = Event()
        self._time = clock

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        if self.is_unreachable:
            raise StoreBusy("memory", 0)
        await super().record_heartbeat(holder, ttl=ttl, lag=lag)
        self._time.now += self.seconds_per_beat
        self.threads.append(get_ident())
        self.lags.append(lag)
        self.next_beat.set()
        if len(self.threads) >= 3:
            self.three_beats.set()

    async def release_leases(self, holder: str) -> None:
        await super().release_leases(holder)
        self.released_holders.append(holder)


class HeartbeatSetup:
    """A heartbeat with a manual clock, and the number of its fencings."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = RecordingStore(self.clock)
        self.fence_count = 0
        self.was_fenced = anyio.Event()
        self.heartbeat = LeaseHeartbeat(
            self.store, "p_1", ttl=TTL, clock=self.clock, on_lease_lost=self._handle_lease_lost
        )

    def _handle_lease_lost(self) -> None:
        self.fence_count += 1
        self.was_fenced.set()
        if self.fence_count == 1:
            self.heartbeat.lease_released()  # as a run loop does that is dropped


@pytest.fixture
async def setup() -> AsyncIterator[HeartbeatSetup]:
    """Run a heartbeat."""
    setup = HeartbeatSetup()
    with anyio.fail_after(TIMEOUT_S):
        async with setup.heartbeat.keep_alive():
            yield setup


async def test_a_process_is_not_alive_before_its_first_heartbeat(
    setup: HeartbeatSetup,
) -> None:
    """Other workers could take a lease at once that was taken before it."""
    assert not setup.heartbeat.is_alive()
    await setup.heartbeat.ensure_fresh()
    assert setup.heartbeat.is_alive()
    assert list(await setup.store.list_holders()) == ["p_1"]


async def test_a_process_without_leases_sends_no_heartbeat(setup: HeartbeatSetup) -> None:
    with anyio.move_on_after(3 * INTERVAL_S):
        await setup.was_fenced.wait()
    assert setup.store.threads == []
    assert setup.fence_count == 0


async def test_a_process_stops_acting_before_its_lease_expires(setup: HeartbeatSetup) -> None:
    """The margin is for requests that are still on their way."""
    await setup.heartbeat.ensure_fresh()
    setup.clock.now += SAFE_S - 0.001
    assert setup.heartbeat.is_alive()
    setup.clock.now += 0.002
    assert not setup.heartbeat.is_alive()


async def test_heartbeats_are_sent_while_the_event_loop_is_blocked(
    setup: HeartbeatSetup,
) -> None:
    """A tool that blocks the event loop must not cost the process its leases."""
    await setup.heartbeat.ensure_fresh()
    setup.heartbeat.lease_taken()
    assert setup.store.three_beats.wait(TIMEOUT_S)  # blocks the loop, as such a tool does
    assert set(setup.store.threads[1:]) != {get_ident()}
    setup.heartbeat.lease_released()


async def test_a_heartbeat_contains_the_lag_of_the_event_loop(setup: HeartbeatSetup) -> None:
    """The process keeps its lease, and other processes can see that it does not respond."""
    await setup.heartbeat.ensure_fresh()
    setup.heartbeat.lease_taken()
    setup.store.seconds_per_beat = SAFE_S / 2
    assert setup.store.three_beats.wait(TIMEOUT_S)
    setup.store.seconds_per_beat = 0.0
    assert setup.store.lags[-1] > setup.store.lags[0]
    assert (await setup.store.list_holders())["p_1"] > 0
    assert setup.heartbeat.lag_s > 0
    setup.heartbeat.lease_released()


async def test_a_process_whose_lease_may_have_expired_is_fenced(setup: HeartbeatSetup) -> None:
    """All its runs are dropped, because another worker may have taken them."""
    await setup.heartbeat.ensure_fresh()
    setup.heartbeat.lease_taken()
    setup.store.is_unreachable = True
    setup.clock.now += SAFE_S + 0.001
    await setup.was_fenced.wait()
    assert not setup.heartbeat.is_alive()


async def test_a_heartbeat_after_a_freeze_does_not_prevent_the_fencing(
    setup: HeartbeatSetup,
) -> None:
    """The heartbeat thread may wake first, but other workers may already have the runs."""
    await setup.heartbeat.ensure_fresh()
    setup.heartbeat.lease_taken()
    setup.store.next_beat.clear()
    setup.clock.now += 10 * SAFE_S  # the process was frozen
    # Blocks the event loop, so that the heartbeat thread may run first.
    setup.store.next_beat.wait(4 * INTERVAL_S)
    assert not setup.heartbeat.is_alive()
    await setup.was_fenced.wait()


async def test_a_new_lease_after_a_freeze_does_not_prevent_the_fencing(
    setup: HeartbeatSetup,
) -> None:
    """The new lease needs a heartbeat, which must not revive the old leases."""
    await setup.heartbeat.ensure_fresh()
    setup.heartbeat.lease_taken()
    setup.store.is_unreachable = True  # the heartbeat thread fails meanwhile
    setup.clock.now += 10 * SAFE_S
    setup.store.is_unreachable = False
    await setup.heartbeat.ensure_fresh()
    assert setup.fence_count > 0


async def test_heartbeats_that_fail_for_a_short_time_do_not_fence(
    setup: HeartbeatSetup,
) -> None:
    await setup.heartbeat.ensure_fresh()
    setup.heartbeat.lease_taken()
    setup.store.is_unreachable = True
    setup.clock.now += SAFE_S / 2
    setup.store.is_unreachable = False
    for _ in range(3):  # the first may have started earlier; the third follows a recorded one
        setup.store.next_beat.clear()
        assert setup.store.next_beat.wait(TIMEOUT_S)
    setup.clock.now += SAFE_S / 2
    assert setup.heartbeat.is_alive()
    assert setup.fence_count == 0
    setup.heartbeat.lease_released()


async def test_a_process_that_shuts_down_releases_its_leases() -> None:
    """Other workers need not wait until they expire."""
    setup = HeartbeatSetup()
    async with setup.heartbeat.keep_alive():
        await setup.heartbeat.ensure_fresh()
        setup.heartbeat.lease_taken()
    assert setup.store.released_holders == ["p_1"]
    assert not await setup.store.list_holders()


async def test_a_lease_that_is_taken_after_a_long_idle_time_is_fresh(
    setup: HeartbeatSetup,
) -> None:
    """An idle process sends no heartbeats, so the last one may be old."""
    await setup.heartbeat.ensure_fresh()
    beats = len(setup.store.threads)
    setup.clock.now += SAFE_S - INTERVAL_S / 2
    assert setup.heartbeat.is_alive()
    await setup.heartbeat.ensure_fresh()
    setup.heartbeat.lease_taken()
    setup.clock.now += INTERVAL_S
    assert setup.heartbeat.is_alive()
    assert len(setup.store.threads) > beats
