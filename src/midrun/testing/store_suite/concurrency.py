"""Concurrent writers, watchers, and callers that are cancelled while they wait."""

from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun.core.entries import CancelRequested, RunStarted
from midrun.core.ids import RunId, Seq
from midrun.core.values import Phase
from midrun.errors import SeqConflict
from midrun.ports.store import Change, Halt, Store
from midrun.testing.store_suite.fixtures import OTHER, RUN, Setting, create, head, said, say


async def newest(watch: AsyncIterator[Change], wanted: dict[RunId, int]) -> None:
    """Wait until the watch has reported all wanted seqs; it may report more."""
    left = dict(wanted)
    while left:
        change = await anext(watch)
        if change.run in left and change.seq >= left[change.run]:
            del left[change.run]


class Crowds(Setting):
    """Races have one winner, and all callers learn the result."""

    async def test_of_two_hundred_writers_at_once_exactly_one_gets_each_seq(
        self, store: Store
    ) -> None:
        await create(store)
        won: list[tuple[int, str]] = []

        async def writer(name: str) -> None:
            while True:
                after = (await store.row(RUN)).seq
                try:
                    appended = await say(store, RUN, after, name)
                except SeqConflict:
                    continue  # another writer was first; read the new seq and try again
                won.append((appended.seq, name))
                return

        async with anyio.create_task_group() as group:
            for n in range(200):
                group.start_soon(writer, f"w{n}")
        records = await store.read(RUN, after=Seq(1))
        assert sorted(won) == [(r.seq, getattr(r.entry, "text", "")) for r in records]
        assert len(won) == 200

    async def test_of_fifty_cancels_at_once_one_is_in_the_journal(self, store: Store) -> None:
        await create(store)
        outcomes: list[str] = []

        async def cancel(by: str) -> None:
            try:
                await store.append(
                    RUN,
                    [CancelRequested(by=by)],
                    after=Seq(1),
                    lease=None,
                    head=head(Phase.CANCELLED),
                )
            except SeqConflict:
                outcomes.append("")
            else:
                outcomes.append(by)

        async with anyio.create_task_group() as group:
            for n in range(50):
                group.start_soon(cancel, f"p{n}")
        (record,) = await store.read(RUN, after=Seq(1))
        assert isinstance(record.entry, CancelRequested)
        assert [by for by in outcomes if by] == [record.entry.by]
        assert len(outcomes) == 50

    async def test_a_refused_append_does_not_spoil_those_beside_it(self, store: Store) -> None:
        runs = [RunId(f"r{n}") for n in range(40)]
        for run in runs:
            await create(store, run)

        async def right(run: RunId) -> None:
            await say(store, run, 1)

        async def wrong(run: RunId) -> None:
            with pytest.raises(SeqConflict):
                await say(store, run, 7)

        async with anyio.create_task_group() as group:
            for n, run in enumerate(runs):
                group.start_soon(right if n % 2 else wrong, run)
        assert [(await store.row(run)).seq for run in runs] == [1, 2] * 20

    async def test_an_append_whose_caller_left_happened_wholly_or_not_at_all(
        self, store: Store
    ) -> None:
        """The caller is cancelled at every point of its wait, as with a lost reply."""
        await create(store)
        three = [said("a"), said("b"), said("c")]

        async def append(after: Seq) -> None:
            await store.append(RUN, three, after=after, lease=None, head=head())

        # Cancel after 0, 1, 2 … turns of the event loop: before, during and after the write.
        for turns in range(8):
            before = (await store.row(RUN)).seq
            async with anyio.create_task_group() as group:
                group.start_soon(append, before)
                for _ in range(turns):
                    await checkpoint()
                group.cancel_scope.cancel()
            # Writes are applied in order: once a later one is done, the cancelled one has been
            # applied or never will be.
            probe = await store.create(RunId(f"probe{turns}"), [_start()], head=head())
            assert probe.seq == 1
            assert (await store.row(RUN)).seq - before in {0, 3}
        await say(store, RUN, (await store.row(RUN)).seq)

    async def test_a_caller_that_was_cancelled_before_it_asked_appends_nothing(
        self, store: Store
    ) -> None:
        await create(store)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await say(store, RUN, 1)
        assert (await store.row(RUN)).seq == 1

    async def test_a_watcher_hears_of_every_run_that_grows(self, store: Store) -> None:
        await create(store)
        async with store.watch() as watch:
            await say(store, RUN, 1)
            await create(store, OTHER)
            await newest(watch, {RUN: 2, OTHER: 1})

    async def test_a_watcher_that_waits_is_woken(self, store: Store) -> None:
        await create(store)
        heard: list[Change] = []

        async with store.watch() as watch, anyio.create_task_group() as group:

            async def listen() -> None:
                heard.append(await anext(watch))

            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await say(store, RUN, 1)
        assert heard == [Change(run=RUN, seq=Seq(2))]

    async def test_a_slow_watcher_hears_the_newest_seq_of_each_run(self, store: Store) -> None:
        await create(store)
        await create(store, OTHER)
        async with store.watch() as slow, store.watch() as quick:
            for seq in range(1, 30):
                await say(store, RUN, seq)
            await say(store, OTHER, 1)
            # A watcher that does not keep up gets one change per run, not one per append.
            first, second = await anext(slow), await anext(slow)
            assert {first.run: first.seq, second.run: second.seq} == {RUN: 30, OTHER: 2}
            await newest(quick, {RUN: 30, OTHER: 2})

    async def test_a_watcher_hears_that_latches_were_set_and_lifted(self, store: Store) -> None:
        async with store.watch() as watch:
            await store.halt(Halt(scope="all", by="ops"))
            assert (await anext(watch)).run == ""
            await store.lift("all")
            assert (await anext(watch)).run == ""

    async def test_a_refused_append_is_no_news(self, store: Store) -> None:
        await create(store)
        async with store.watch() as watch:
            with pytest.raises(SeqConflict):
                await say(store, RUN, 5)
            await create(store, OTHER)
            assert (await anext(watch)).run == OTHER

    async def test_a_watch_ends_when_the_store_is_closed(self, store: Store) -> None:
        await create(store)
        heard: list[Change] = []
        async with store.watch() as watch:
            await say(store, RUN, 1)
            await store.close()
            heard += [change async for change in watch]
        assert [change.seq for change in heard] == [2]


def _start() -> RunStarted:
    return RunStarted(agent="probe", task="")
