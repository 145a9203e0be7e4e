"""Threads: who begins one, of many who want to."""

import anyio
import pytest
from msgspec.structs import replace

from midrun.codec.journal import line_of
from midrun.core.head import Head
from midrun.core.ids import RunId
from midrun.core.values import Message, Phase
from midrun.errors import RunExists, ThreadTaken
from midrun.ports.store import Query, Store
from midrun.testing.store_suite.setting import (
    OTHER,
    RUN,
    Reopen,
    Setting,
    head,
    imported,
    pause,
    started,
)

OURS = Head(phase=Phase.QUEUED, thread="ours")


async def begin(store: Store, run: RunId, thread: str, began: list[str]) -> None:
    """Begin a thread if nobody has, and note that."""
    theirs = Head(phase=Phase.QUEUED, thread=thread)
    try:
        await store.create(run, [started()], head=theirs, alone=True)
    except ThreadTaken:
        return
    began.append(thread)


def conversation(runs: int) -> tuple[Message, ...]:
    """Return the history of a thread that has had so many runs."""
    return tuple(
        Message(role=role, text=f'{role} {number}: [{{"a": ' + "words, " * 200)
        for number in range(runs)
        for role in ("user", "assistant")
    )


class Threads(Setting):
    """Whoever wants to begin a thread is the first in it, or is told that it is begun."""

    async def test_a_thread_that_has_a_run_is_not_begun(self, store: Store) -> None:
        await store.create(RUN, [started()], head=OURS, alone=True)
        with pytest.raises(ThreadTaken, match="thread ours"):
            await store.create(OTHER, [started()], head=OURS, alone=True)
        assert [row.run for row in (await store.runs(Query())).items] == [RUN]
        await store.create(OTHER, [started()], head=OURS)  # who does not mind goes on with it
        assert len((await store.runs(Query(thread="ours"))).items) == 2

    async def test_who_asks_again_learns_that_the_run_is_there(self, store: Store) -> None:
        """Not that somebody has taken the thread: they have, themselves."""
        await store.create(RUN, [started()], head=OURS, alone=True)
        with pytest.raises(RunExists):
            await store.create(RUN, [started()], head=OURS, alone=True)

    async def test_no_thread_is_nobodys(self, store: Store) -> None:
        await store.create(RUN, [started()], head=head(), alone=True)
        await store.create(OTHER, [started()], head=head(), alone=True)
        assert (await store.row(OTHER)).seq == 1

    async def test_of_many_at_once_one_begins_each_thread(self, store: Store) -> None:
        began: list[str] = []
        async with anyio.create_task_group() as group:
            for n in range(40):
                group.start_soon(begin, store, RunId(f"r{n}"), f"t{n % 4}", began)
        assert sorted(began) == ["t0", "t1", "t2", "t3"]
        assert len((await store.runs(Query())).items) == 4

    async def test_a_long_history_comes_back_as_it_was_written(
        self, store: Store, reopen: Reopen | None
    ) -> None:
        """However a store keeps it, the line is what was hashed and the entry what was said."""
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
