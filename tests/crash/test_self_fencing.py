"""The holder: beats from a thread of its own, and a process that knows when to stop acting."""

from collections.abc import AsyncIterator
from datetime import timedelta
from threading import Event, get_ident

import anyio
import pytest

from midrun.driver.heartbeat import HEARTBEATS_PER_TTL, TTL_SAFETY_FRACTION, LeaseHeartbeat
from midrun.errors import StoreBusy
from midrun.stores.memory import MemoryStore
from tests.crash.conftest import PATIENCE

TTL = timedelta(seconds=0.3)
PERIOD = TTL.total_seconds() / HEARTBEATS_PER_TTL
SAFE = TTL.total_seconds() * (1 - TTL_SAFETY_FRACTION)


class HandClock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class BeatenStore(MemoryStore):
    """A store that remembers every beat: from which thread, and how far the loop was behind.

    `out` makes it unreachable. `step` is how much time passes with each beat.
    """

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.lags: list[float] = []
        self.rested: list[str] = []
        self.out = False
        self.step = 0.0
        self.twice = Event()
        self.anew = Event()
        self._time = clock

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        if self.out:
            raise StoreBusy("memory", 0)
        await super().record_heartbeat(holder, ttl=ttl, lag=lag)
        self._time.now += self.step
        self.threads.append(get_ident())
        self.lags.append(lag)
        self.anew.set()
        if len(self.threads) >= 3:
            self.twice.set()

    async def release_leases(self, holder: str) -> None:
        await super().release_leases(holder)
        self.rested.append(holder)


class Scene:
    """A holder with a clock of ours, and how often it was fenced."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.store = BeatenStore(self.clock)
        self.fences = 0
        self.fenced = anyio.Event()
        self.holder = LeaseHeartbeat(
            self.store, "p_1", ttl=TTL, clock=self.clock, on_lease_lost=self._fence
        )

    def _fence(self) -> None:
        self.fences += 1
        self.fenced.set()
        if self.fences == 1:
            self.holder.lease_released()  # as a drive does that is dropped


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Give a holder that beats."""
    scene = Scene()
    with anyio.fail_after(PATIENCE):
        async with scene.holder.keep_alive():
            yield scene


async def test_a_process_is_not_alive_before_the_store_has_heard_of_it(scene: Scene) -> None:
    """A lease taken before the first beat would be as good as free."""
    assert not scene.holder.is_alive()
    await scene.holder.ensure_fresh()
    assert scene.holder.is_alive()
    assert list(await scene.store.list_holders()) == ["p_1"]


async def test_a_process_that_holds_nothing_does_not_beat(scene: Scene) -> None:
    """Nobody waits for it, so the store is left alone."""
    with anyio.move_on_after(3 * PERIOD):
        await scene.fenced.wait()
    assert scene.store.threads == []
    assert scene.fences == 0


async def test_it_acts_no_more_some_time_before_others_may_act(scene: Scene) -> None:
    """The margin is for what has left and is not there yet."""
    await scene.holder.ensure_fresh()
    scene.clock.now += SAFE - 0.001
    assert scene.holder.is_alive()
    scene.clock.now += 0.002
    assert not scene.holder.is_alive()


async def test_beats_come_while_the_loop_is_blocked(scene: Scene) -> None:
    """A tool that blocks the event loop must not cost the process its leases."""
    await scene.holder.ensure_fresh()
    scene.holder.lease_taken()
    assert scene.store.twice.wait(PATIENCE)  # blocks the loop, as such a tool does
    assert set(scene.store.threads[1:]) != {get_ident()}
    scene.holder.lease_released()


async def test_how_far_the_loop_is_behind_goes_with_the_beats(scene: Scene) -> None:
    """It keeps its lease, but others can see that it does not respond."""
    await scene.holder.ensure_fresh()
    scene.holder.lease_taken()
    scene.store.step = SAFE / 2
    assert scene.store.twice.wait(PATIENCE)
    scene.store.step = 0.0
    assert scene.store.lags[-1] > scene.store.lags[0]
    assert (await scene.store.list_holders())["p_1"] > 0
    assert scene.holder.lag_s > 0
    scene.holder.lease_released()


async def test_a_process_past_its_time_is_fenced(scene: Scene) -> None:
    """Whatever it drives is dropped whole: it cannot know what happened since."""
    await scene.holder.ensure_fresh()
    scene.holder.lease_taken()
    scene.store.out = True
    scene.clock.now += SAFE + 0.001
    await scene.fenced.wait()
    assert not scene.holder.is_alive()


async def test_a_beat_after_the_time_is_over_does_not_bring_back_what_was_lost(
    scene: Scene,
) -> None:
    """After a freeze the beating thread may be the first to wake. Its beat proves nothing."""
    await scene.holder.ensure_fresh()
    scene.holder.lease_taken()
    scene.store.anew.clear()
    scene.clock.now += 10 * SAFE  # frozen: nothing of us ran
    scene.store.anew.wait(4 * PERIOD)  # the loop is not the first to run: the thread may beat
    assert not scene.holder.is_alive()
    await scene.fenced.wait()


async def test_a_new_run_after_a_freeze_does_not_bring_back_what_was_lost(
    scene: Scene,
) -> None:
    """Whoever takes the first lease after the freeze makes the process known again, only."""
    await scene.holder.ensure_fresh()
    scene.holder.lease_taken()
    scene.store.out = True  # the beating thread is out of the way
    scene.clock.now += 10 * SAFE
    scene.store.out = False
    await scene.holder.ensure_fresh()
    assert scene.fences > 0


async def test_beats_that_fail_for_a_while_cost_nothing(scene: Scene) -> None:
    """A store that is busy for a moment is no reason to drop anything."""
    await scene.holder.ensure_fresh()
    scene.holder.lease_taken()
    scene.store.out = True
    scene.clock.now += SAFE / 2
    scene.store.out = False
    for _ in range(3):  # one may have begun before; the third comes once the second counts
        scene.store.anew.clear()
        assert scene.store.anew.wait(PATIENCE)
    scene.clock.now += SAFE / 2
    assert scene.holder.is_alive()
    assert scene.fences == 0
    scene.holder.lease_released()


async def test_a_process_that_leaves_lets_go_of_what_it_holds() -> None:
    """Others need not wait for its time to run out."""
    scene = Scene()
    async with scene.holder.keep_alive():
        await scene.holder.ensure_fresh()
        scene.holder.lease_taken()
    assert scene.store.rested == ["p_1"]
    assert not await scene.store.list_holders()


async def test_a_lease_that_is_taken_after_a_rest_is_not_about_to_lapse(scene: Scene) -> None:
    """While nothing is held nobody beats: the last beat may be nearly over by then."""
    await scene.holder.ensure_fresh()
    beats = len(scene.store.threads)
    scene.clock.now += SAFE - PERIOD / 2
    assert scene.holder.is_alive()
    await scene.holder.ensure_fresh()
    scene.holder.lease_taken()
    scene.clock.now += PERIOD
    assert scene.holder.is_alive()
    assert len(scene.store.threads) > beats
