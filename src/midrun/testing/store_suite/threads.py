"""Threads: their runs, and the history that a run starts with."""

from msgspec.structs import replace

from midrun.codec.journal import line_of
from midrun.core.ids import RunId
from midrun.core.run_head import Head
from midrun.core.values import Message, Phase
from midrun.ports.store import Query, Store
from midrun.testing.store_suite.fixtures import (
    OTHER,
    RUN,
    Reopen,
    Setting,
    imported,
    pause,
    started,
)

OURS = Head(phase=Phase.QUEUED, thread="ours")


def conversation(runs: int) -> tuple[Message, ...]:
    """Return the history of a thread with this many runs."""
    return tuple(
        Message(role=role, text=f'{role} {number}: [{{"a": ' + "words, " * 200)
        for number in range(runs)
        for role in ("user", "assistant")
    )


class Threads(Setting):
    """Runs of a thread share its name; each has its owner."""

    async def test_a_thread_is_listed_for_all_and_for_one_owner(self, store: Store) -> None:
        for run, owner in ((RUN, "ann"), (OTHER, "bob")):
            theirs = replace(OURS, owner=owner)
            await store.create(run, [replace(started(), by=owner)], head=theirs)
        page = await store.runs(Query(thread="ours"))
        assert [row.run for row in page.items] == [OTHER, RUN]
        page = await store.runs(Query(thread="ours", owner="ann"))
        assert [row.run for row in page.items] == [RUN]
        assert not (await store.runs(Query(thread="ours", owner="eve"))).items

    async def test_a_long_history_comes_back_as_it_was_written(
        self, store: Store, reopen: Reopen | None
    ) -> None:
        """However a store keeps it, line and entry are the ones that were hashed."""
        wholes: dict[RunId, list[bytes]] = {}
        for number in range(1, 12):
            run, history = RunId(f"r{number}"), conversation(number)
            await store.create(run, [replace(started(), history=history)], head=OURS)
            wholes[run] = [data for data, _ in await store.lines(run)]
        store = await reopen(store) if reopen else store
        for number, (run, lines) in enumerate(wholes.items(), start=1):
            assert [data for data, _ in await store.lines(run)] == lines
            (record,) = await store.read(run)
            assert line_of(record) == lines[0]
            assert record.entry == replace(started(), history=conversation(number))
        await pause(store, run, 1)
        lines = [data for data, _ in await store.lines(run)]
        await store.adopt(OTHER, lines, imported(OTHER, lines), head=OURS)
        assert [data for data, _ in await store.lines(OTHER)][:-1] == lines
