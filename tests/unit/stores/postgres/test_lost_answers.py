"""Connections that break at the worst moment: nothing is lost, and nothing is there twice."""

from datetime import timedelta
from random import Random
from typing import Literal

import anyio
import pytest

from midrun.core.entries import MessageReceived
from midrun.core.ids import RunId, Seq
from midrun.errors import RunExists, SeqConflict, StoreUnreachable
from midrun.ports.store import HaltRecord
from midrun.stores.postgres import connection, pool
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    append_message,
    create_run,
    make_head,
    make_message,
    take_lease,
)
from tests.unit.stores.postgres.conftest import Open
from tests.unit.stores.postgres.cutting import Cut, Cutter

pytestmark = pytest.mark.once


async def texts(store: PostgresStore, run: RunId = RUN) -> list[str]:
    """Return what was said in a run, in order."""
    entries = [record.entry for record in await store.read(run, after=Seq(1))]
    return [entry.text for entry in entries if isinstance(entry, MessageReceived)]


async def test_a_write_whose_connection_is_cut_happens_exactly_once(
    cut_url: str, cutter: Cutter, opened: Open
) -> None:
    """Before the server has heard of it, or after it has committed: the caller sees neither."""
    store = await opened(cut_url)
    await create_run(store)
    chance = Random(8)  # noqa: S311 - which of them are cut
    for n in range(60):
        cutter.next = chance.choice([Cut.NONE, Cut.BEFORE, Cut.AFTER])
        assert (await append_message(store, RUN, n + 1, f"t{n}")).seq == n + 2
    assert cutter.cuts > 20
    assert await texts(store) == [f"t{n}" for n in range(60)]


async def test_a_group_that_is_cut_happens_exactly_once(
    cut_url: str, cutter: Cutter, opened: Open
) -> None:
    """Appends of many runs share a commit, and its fate."""
    store = await opened(cut_url)
    runs = [RunId(f"r{n}") for n in range(20)]
    for run in runs:
        await create_run(store, run)

    async def writer(run: RunId) -> None:
        for n in range(10):
            if run == "r0":
                cutter.next = Cut.AFTER
            await append_message(store, run, n + 1, f"t{n}")

    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(writer, run)
    assert cutter.cuts
    for run in runs:
        assert await texts(store, run) == [f"t{n}" for n in range(10)]


async def test_a_run_whose_creation_went_unanswered_is_there_once(
    cut_url: str, cutter: Cutter, opened: Open
) -> None:
    """And one that somebody else has created meanwhile is somebody else's."""
    store = await opened(cut_url)
    cutter.next = Cut.AFTER
    assert (await create_run(store)).seq == 1
    cutter.next = Cut.AFTER
    with pytest.raises(RunExists):
        await create_run(store)
    assert len(await store.read(RUN)) == 1


async def test_a_write_is_found_again_although_others_have_written_since(
    cut_url: str, url: str, cutter: Cutter, opened: Open
) -> None:
    """By its seq and its hash, not because it is the newest."""
    store, elsewhere = await opened(cut_url), await opened(url)
    await create_run(store)

    async def meanwhile() -> None:
        await append_message(elsewhere, RUN, 2, "theirs")

    cutter.next, cutter.meanwhile = Cut.AFTER, meanwhile
    assert (await append_message(store, RUN, 1, "ours")).seq == 2
    assert await texts(store) == ["ours", "theirs"]


async def test_a_write_that_never_arrived_loses_against_one_that_did(
    cut_url: str, url: str, cutter: Cutter, opened: Open
) -> None:
    """The same words from somebody else are not taken for ours."""
    store, elsewhere = await opened(cut_url), await opened(url)
    await create_run(store)
    await store.get_row(RUN)
    await append_message(elsewhere, RUN, 1, "same")
    cutter.next = Cut.BEFORE
    with pytest.raises(SeqConflict):
        await append_message(store, RUN, 1, "same")
    assert await texts(store) == ["same"]


async def test_a_lease_whose_answer_was_lost_is_ours(
    cut_url: str, cutter: Cutter, opened: Open
) -> None:
    """Not somebody's, whom nobody knows, until it runs out."""
    store = await opened(cut_url)
    await create_run(store)
    await store.record_heartbeat("a", ttl=timedelta(seconds=60))
    cutter.next = Cut.AFTER
    lease = await take_lease(store, RUN, 1, "a")
    row = await store.get_row(RUN)
    assert (row.epoch, row.holder, row.seq) == (lease.epoch, "a", 2)


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_whatever_was_acknowledged_survives_a_restart_of_the_server(
    how: Literal["fast", "immediate"], store: PostgresStore, postgres: Postgres
) -> None:
    """And whoever writes on meanwhile only sees that it takes a little longer."""
    await create_run(store)
    await create_run(store, OTHER_RUN)
    acknowledged: list[int] = []
    under_way = anyio.Event()

    async def writer() -> None:
        for n in range(300):
            appended = await append_message(store, RUN, n + 1, f"t{n}")
            acknowledged.append(appended.seq)
            if n == 20:
                under_way.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer)
        await under_way.wait()
        await anyio.to_thread.run_sync(postgres.restart, how)
        assert (await append_message(store, OTHER_RUN, 1)).seq == 2
    assert acknowledged == [*range(2, 302)]
    assert await texts(store) == [f"t{n}" for n in range(300)]


async def test_every_other_call_survives_the_loss_of_its_connections(
    store: PostgresStore, postgres: Postgres
) -> None:
    """They change nothing, or the same thing when they are repeated."""
    await create_run(store)
    for _ in range(2):
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'midrun'"
        )
        await store.record_heartbeat("a", ttl=timedelta(seconds=60))
        assert list(await store.list_holders()) == ["a"]
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        assert [halt.scope for halt in await store.list_halts()] == ["all"]
        assert await store.remove_halt("all")
        assert (await store.get_row(RUN)).seq == 1


async def test_a_server_that_is_silent_is_given_up_in_time(
    cut_url: str, cutter: Cutter, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stall without a reset: the caller is told that nobody knows, and can go on later."""
    store = await opened(cut_url)
    await create_run(store)
    monkeypatch.setattr(store.address, "write_timeout_s", 0.2)
    monkeypatch.setattr(connection, "ANSWER_SLACK_S", 0.1)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", 0.5)
    cutter.stall()
    with pytest.raises(StoreUnreachable, match="read the run to find out"):
        await append_message(store, RUN, 1)
    cutter.flow()
    seq = (await store.get_row(RUN)).seq
    assert seq in {1, 2}
    await store.append(RUN, [make_message()], after=seq, lease=None, head=make_head())
