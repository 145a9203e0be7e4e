"""Threads: their runs, and the history that a run starts with."""

from msgspec.structs import replace

from midrun.codec.journal import format_record
from midrun.core.ids import RunId
from midrun.core.run_head import Head
from midrun.core.values import Message, Phase
from midrun.ports.store import RunQuery, Store
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    ReopenStore,
    StoreSuiteFixtures,
    export_lines,
    make_imported,
    make_started,
    pause_run,
)

THREAD_HEAD = Head(phase=Phase.QUEUED, thread="ours")


def make_history(runs: int) -> tuple[Message, ...]:
    """Return the history of a thread with this many runs."""
    return tuple(
        Message(role=role, text=f'{role} {number}: [{{"a": ' + "words, " * 200)
        for number in range(runs)
        for role in ("user", "assistant")
    )


class ThreadTests(StoreSuiteFixtures):
    """Runs of a thread share its name; each has its owner."""

    async def test_a_thread_is_listed_for_all_and_for_one_owner(self, store: Store) -> None:
        for run, owner in ((RUN, "ann"), (OTHER_RUN, "bob")):
            theirs = replace(THREAD_HEAD, owner=owner)
            await store.create(run, [replace(make_started(), by=owner)], head=theirs)
        page = await store.list_runs(RunQuery(thread="ours"))
        assert [row.run for row in page.items] == [OTHER_RUN, RUN]
        page = await store.list_runs(RunQuery(thread="ours", owner="ann"))
        assert [row.run for row in page.items] == [RUN]
        assert not (await store.list_runs(RunQuery(thread="ours", owner="eve"))).items

    async def test_a_long_history_comes_back_as_it_was_written(
        self, store: Store, reopen: ReopenStore | None
    ) -> None:
        """However a store keeps it, line and entry are the ones that were hashed."""
        wholes: dict[RunId, list[bytes]] = {}
        for number in range(1, 12):
            run, history = RunId(f"r{number}"), make_history(number)
            await store.create(
                run, [replace(make_started(), history=history)], head=THREAD_HEAD
            )
            wholes[run] = await export_lines(store, run)
        store = await reopen(store) if reopen else store
        for number, (run, lines) in enumerate(wholes.items(), start=1):
            assert await export_lines(store, run) == lines
            (record,) = await store.read(run)
            assert format_record(record) == lines[0]
            assert record.entry == replace(make_started(), history=make_history(number))
        await pause_run(store, run, 1)
        lines = await export_lines(store, run)
        await store.adopt(OTHER_RUN, lines, make_imported(OTHER_RUN, lines), head=THREAD_HEAD)
        assert (await export_lines(store, OTHER_RUN))[:-1] == lines
