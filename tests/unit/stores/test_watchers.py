"""Watchers: changes that are reported at once, and changes that are collected first."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from midrun.core.ids import RunId, Seq
from midrun.ports.store import Change
from midrun.stores.watchers import HALTS_CHANGED, ChangeWatch, Watchers

ONE, TWO = RunId("one"), RunId("two")


class ChangeRecorder:
    """Collects the changes that one watch reports."""

    def __init__(self, watch: ChangeWatch) -> None:
        self._watch = watch
        self._changed = anyio.Event()
        self.changes: list[Change] = []

    async def run(self) -> None:
        """Record changes until the watch ends."""
        async for change in self._watch:
            self.changes.append(change)
            self._changed.set()
            self._changed = anyio.Event()

    async def wait_for(self, count: int) -> list[Change]:
        """Wait for `count` changes and return all so far."""
        with anyio.fail_after(30):
            while len(self.changes) < count:
                await self._changed.wait()
        return self.changes


@asynccontextmanager
async def record_changes(watchers: Watchers) -> AsyncIterator[ChangeRecorder]:
    """Record changes during the block; the watches end with it."""
    with watchers.subscribe() as watch:
        recorder = ChangeRecorder(watch)
        async with anyio.create_task_group() as group:
            group.start_soon(recorder.run)
            yield recorder
            watchers.end_watches()


def make_changes(*pairs: tuple[RunId, int]) -> list[Change]:
    """Return changes without a holder."""
    return [Change(run=run, seq=Seq(seq)) for run, seq in pairs]


async def test_delayed_changes_are_collected_and_reported_once() -> None:
    """Appends of this process are not urgent.

    A run with thousands of appends must not wake its watchers each time.
    """
    watchers = Watchers()
    async with record_changes(watchers) as recorder:
        await checkpoint()
        for seq in range(1, 6):
            watchers.notify([(ONE, Seq(seq))], delayed=True)
        assert await recorder.wait_for(1) == make_changes((ONE, 5))
        watchers.notify([(ONE, Seq(6))], delayed=True)  # a later change is reported, too
        assert await recorder.wait_for(2) == make_changes((ONE, 5), (ONE, 6))


async def test_a_change_of_another_process_is_reported_at_once_with_the_delayed_ones() -> None:
    """A change from another process may be a control."""
    watchers = Watchers()
    async with record_changes(watchers) as recorder:
        await checkpoint()
        watchers.notify([(ONE, Seq(1))], delayed=True)
        watchers.notify([(TWO, Seq(9))])
        await checkpoint()
        await checkpoint()
        assert recorder.changes == make_changes((ONE, 1), (TWO, 9))


async def test_a_halt_is_never_delayed() -> None:
    """A halt must stop all calls at once."""
    watchers = Watchers()
    async with record_changes(watchers) as recorder:
        await checkpoint()
        watchers.notify([(HALTS_CHANGED, Seq(0))], delayed=True)
        await checkpoint()
        await checkpoint()
        assert recorder.changes == make_changes((HALTS_CHANGED, 0))


async def test_a_delayed_change_from_another_thread_is_reported() -> None:
    """The writer thread cannot set a timer in the event loop of the watcher."""
    watchers = Watchers()
    async with record_changes(watchers) as recorder:
        await anyio.to_thread.run_sync(lambda: watchers.notify([(ONE, Seq(1))], delayed=True))
        assert await recorder.wait_for(1) == make_changes((ONE, 1))
