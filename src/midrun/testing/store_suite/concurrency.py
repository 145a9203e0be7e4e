"""Concurrent writers, watchers, and callers that are cancelled while they wait."""

from collections.abc import AsyncIterator

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun.core.entries import CancelRequested, RunStarted
from midrun.core.ids import RunId, Seq
from midrun.core.values import Phase
from midrun.errors import SeqConflict
from midrun.ports.store import Change, HaltRecord, Store
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    StoreSuiteFixtures,
    append_message,
    create_run,
    make_head,
    make_message,
)


async def wait_for_seqs(watch: AsyncIterator[Change], wanted: dict[RunId, int]) -> None:
    """Wait until the watch has reported all wanted seqs; it may report more."""
    left = dict(wanted)
    while left:
        change = await anext(watch)
        if change.run in left and change.seq >= left[change.run]:
            del left[change.run]


class ConcurrencyTests(StoreSuiteFixtures):
    """Races have one winner, and all callers learn the result."""

    async def test_of_two_hundred_writers_at_once_exactly_one_gets_each_seq(
        self, store: Store
    ) -> None:
        await create_run(store)
        won: list[tuple[int, str]] = []

        async def writer(name: str) -> None:
            while True:
                after = (await store.get_row(RUN)).seq
                try:
                    appended = await append_message(store, RUN, after, name)
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
        await create_run(store)
        outcomes: list[str] = []

        async def cancel(by: str) -> None:
            try:
                await store.append(
                    RUN,
                    [CancelRequested(by=by)],
                    after=Seq(1),
                    lease=None,
                    head=make_head(Phase.CANCELLED),
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
            await create_run(store, run)

        async def right(run: RunId) -> None:
            await append_message(store, run, 1)

        async def wrong(run: RunId) -> None:
            with pytest.raises(SeqConflict):
                await append_message(store, run, 7)

        async with anyio.create_task_group() as group:
            for n, run in enumerate(runs):
                group.start_soon(right if n % 2 else wrong, run)
        assert [(await store.get_row(run)).seq for run in runs] == [1, 2] * 20

    async def test_an_append_whose_caller_left_happened_wholly_or_not_at_all(
        self, store: Store
    ) -> None:
        """The caller is cancelled at every point of its wait, as with a lost reply."""
        await create_run(store)
        three = [make_message("a"), make_message("b"), make_message("c")]

        async def append(after: Seq) -> None:
            await store.append(RUN, three, after=after, lease=None, head=make_head())

        # Cancel after 0, 1, 2 … turns of the event loop: before, during and after the write.
        for turns in range(8):
            before = (await store.get_row(RUN)).seq
            async with anyio.create_task_group() as group:
                group.start_soon(append, before)
                for _ in range(turns):
                    await checkpoint()
                group.cancel_scope.cancel()
            # Writes are applied in order: once a later one is done, the cancelled one has been
            # applied or never will be.
            probe = await store.create(
                RunId(f"probe{turns}"), [_make_started()], head=make_head()
            )
            assert probe.seq == 1
            assert (await store.get_row(RUN)).seq - before in {0, 3}
        await append_message(store, RUN, (await store.get_row(RUN)).seq)

    async def test_a_caller_that_was_cancelled_before_it_asked_appends_nothing(
        self, store: Store
    ) -> None:
        await create_run(store)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await append_message(store, RUN, 1)
        assert (await store.get_row(RUN)).seq == 1

    async def test_a_watcher_hears_of_every_run_that_grows(self, store: Store) -> None:
        await create_run(store)
        async with store.watch() as watch:
            await append_message(store, RUN, 1)
            await create_run(store, OTHER_RUN)
            await wait_for_seqs(watch, {RUN: 2, OTHER_RUN: 1})

    async def test_a_watcher_that_waits_is_woken(self, store: Store) -> None:
        await create_run(store)
        heard: list[Change] = []

        async with store.watch() as watch, anyio.create_task_group() as group:

            async def listen() -> None:
                heard.append(await anext(watch))

            group.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await append_message(store, RUN, 1)
        assert heard == [Change(run=RUN, seq=Seq(2))]

    async def test_a_slow_watcher_hears_the_newest_seq_of_each_run(self, store: Store) -> None:
        await create_run(store)
        await create_run(store, OTHER_RUN)
        async with store.watch() as slow, store.watch() as quick:
            for seq in range(1, 30):
                await append_message(store, RUN, seq)
            await append_message(store, OTHER_RUN, 1)
            # A watcher that does not keep up gets one change per run, not one per append.
            first, second = await anext(slow), await anext(slow)
            assert {first.run: first.seq, second.run: second.seq} == {RUN: 30, OTHER_RUN: 2}
            await wait_for_seqs(quick, {RUN: 30, OTHER_RUN: 2})

    async def test_a_watcher_is_told_of_halts_set_and_lifted(self, store: Store) -> None:
        async with store.watch() as watch:
            await store.set_halt(HaltRecord(scope="all", by="ops"))
            assert (await anext(watch)).run == ""
            await store.remove_halt("all")
            assert (await anext(watch)).run == ""

    async def test_a_refused_append_is_no_news(self, store: Store) -> None:
        await create_run(store)
        async with store.watch() as watch:
            with pytest.raises(SeqConflict):
                await append_message(store, RUN, 5)
            await create_run(store, OTHER_RUN)
            assert (await anext(watch)).run == OTHER_RUN

    async def test_a_watch_ends_when_the_store_is_closed(self, store: Store) -> None:
        await create_run(store)
        heard: list[Change] = []
        async with store.watch() as watch:
            await append_message(store, RUN, 1)
            await store.close()
            heard += [change async for change in watch]
        assert [change.seq for change in heard] == [2]


def _make_started() -> RunStarted:
    return RunStarted(agent="probe", task="")
