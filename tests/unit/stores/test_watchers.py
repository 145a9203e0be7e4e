"""Watchers: what is told at once, and what is gathered."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from midrun.core.ids import RunId, Seq
from midrun.ports.store import Change
from midrun.stores.watchers import HALTS_CHANGED, ChangeWatch, Watchers

ONE, TWO = RunId("one"), RunId("two")


class Heard:
    """What a watcher has heard so far, and how often it had to be woken for it."""

    def __init__(self, watch: ChangeWatch) -> None:
        self._watch = watch
        self._changed = anyio.Event()
        self.changes: list[Change] = []

    async def listen(self) -> None:
        """Listen until the watch has ended."""
        async for change in self._watch:
            self.changes.append(change)
            self._changed.set()
            self._changed = anyio.Event()

    async def until(self, count: int) -> list[Change]:
        """Return what was heard once that is `count` changes."""
        with anyio.fail_after(30):
            while len(self.changes) < count:
                await self._changed.wait()
        return self.changes


@asynccontextmanager
async def listening(watchers: Watchers) -> AsyncIterator[Heard]:
    """Have somebody listen to `watchers` until the end of the block, which ends them."""
    with watchers.subscribe() as watch:
        heard = Heard(watch)
        async with anyio.create_task_group() as group:
            group.start_soon(heard.listen)
            yield heard
            watchers.end_watches()


def changes(*pairs: tuple[RunId, int]) -> list[Change]:
    """Return changes, of nobody's."""
    return [Change(run=run, seq=Seq(seq)) for run, seq in pairs]


async def test_what_this_process_wrote_is_gathered_and_told_in_one_go() -> None:
    """Nobody here waits for it: a run that appends thousands of times wakes nobody as often."""
    watchers = Watchers()
    async with listening(watchers) as heard:
        await checkpoint()
        for seq in range(1, 6):
            watchers.notify([(ONE, Seq(seq))], delayed=True)
        assert await heard.until(1) == changes((ONE, 5))
        watchers.notify([(ONE, Seq(6))], delayed=True)  # nor is what comes next forgotten
        assert await heard.until(2) == changes((ONE, 5), (ONE, 6))


async def test_what_others_wrote_is_told_at_once_and_takes_along_what_was_gathered() -> None:
    """It may be a control: that is what somebody waits for."""
    watchers = Watchers()
    async with listening(watchers) as heard:
        await checkpoint()
        watchers.notify([(ONE, Seq(1))], delayed=True)
        watchers.notify([(TWO, Seq(9))])
        await checkpoint()
        await checkpoint()
        assert heard.changes == changes((ONE, 1), (TWO, 9))


async def test_a_latch_is_never_gathered() -> None:
    """Everything has to stop: now."""
    watchers = Watchers()
    async with listening(watchers) as heard:
        await checkpoint()
        watchers.notify([(HALTS_CHANGED, Seq(0))], delayed=True)
        await checkpoint()
        await checkpoint()
        assert heard.changes == changes((HALTS_CHANGED, 0))


async def test_who_watches_from_another_thread_hears_of_it_too() -> None:
    """A loop that the writer does not run in has no timer that it could set."""
    watchers = Watchers()
    async with listening(watchers) as heard:
        await anyio.to_thread.run_sync(lambda: watchers.notify([(ONE, Seq(1))], delayed=True))
        assert await heard.until(1) == changes((ONE, 1))
