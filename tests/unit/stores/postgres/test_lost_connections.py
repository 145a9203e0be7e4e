"""Connections that break during a write: no entry is lost, and none is appended twice."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from random import Random
from typing import Literal

import anyio
import anyio.to_thread
import psycopg
import pytest
from anyio.lowlevel import checkpoint
from psycopg import Connection

from midrun.core.entries import MessageReceived
from midrun.core.ids import RunId, Seq
from midrun.errors import RunExists, SeqConflict, StoreUnreachable
from midrun.ports.store import HaltRecord, Store
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
from tests.unit.stores.postgres.conftest import TERMINATE_CONNECTIONS, TIMEOUT_S, OpenStore
from tests.unit.stores.postgres.faulty_proxy import Fault, FaultyProxy

pytestmark = pytest.mark.once


async def read_texts(store: PostgresStore, run: RunId = RUN) -> list[str]:
    """Return the messages of a run in order."""
    entries = [record.entry for record in await store.read(run, after=Seq(1))]
    return [entry.text for entry in entries if isinstance(entry, MessageReceived)]


async def test_a_write_whose_connection_is_lost_is_applied_exactly_once(
    proxy_url: str, proxy: FaultyProxy, open_store_at: OpenStore
) -> None:
    """The connection is lost before the server gets the write, or after it has committed."""
    store = await open_store_at(proxy_url)
    await create_run(store)
    random = Random(8)  # noqa: S311 - chooses the faults
    for n in range(60):
        proxy.next_fault = random.choice([Fault.NONE, Fault.DROP_WRITE, Fault.LOSE_REPLY])
        assert (await append_message(store, RUN, n + 1, f"t{n}")).seq == n + 2
    assert proxy.fault_count > 20
    assert await read_texts(store) == [f"t{n}" for n in range(60)]


async def test_a_group_commit_whose_connection_is_lost_is_applied_exactly_once(
    proxy_url: str, proxy: FaultyProxy, open_store_at: OpenStore
) -> None:
    """Appends to many runs share one commit."""
    store = await open_store_at(proxy_url)
    runs = [RunId(f"r{n}") for n in range(20)]
    for run in runs:
        await create_run(store, run)

    async def writer(run: RunId) -> None:
        for n in range(10):
            if run == "r0":
                proxy.next_fault = Fault.LOSE_REPLY
            await append_message(store, run, n + 1, f"t{n}")

    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(writer, run)
    assert proxy.fault_count
    for run in runs:
        assert await read_texts(store, run) == [f"t{n}" for n in range(10)]


async def test_a_run_is_created_once_if_the_reply_is_lost(
    proxy_url: str, proxy: FaultyProxy, open_store_at: OpenStore
) -> None:
    """A second create of the same id is refused, also if its own reply is lost."""
    store = await open_store_at(proxy_url)
    proxy.next_fault = Fault.LOSE_REPLY
    assert (await create_run(store)).seq == 1
    proxy.next_fault = Fault.LOSE_REPLY
    with pytest.raises(RunExists):
        await create_run(store)
    assert len(await store.read(RUN)) == 1


async def test_a_write_with_a_lost_reply_is_recognised_after_later_appends(
    proxy_url: str, url: str, proxy: FaultyProxy, open_store_at: OpenStore
) -> None:
    """The store compares seq and hash; the entry need not be the newest."""
    store, other_store = await open_store_at(proxy_url), await open_store_at(url)
    await create_run(store)

    async def append_elsewhere() -> None:
        await append_message(other_store, RUN, 2, "theirs")

    proxy.next_fault, proxy.before_lost_reply = Fault.LOSE_REPLY, append_elsewhere
    assert (await append_message(store, RUN, 1, "ours")).seq == 2
    assert await read_texts(store) == ["ours", "theirs"]


async def test_a_write_that_never_arrived_conflicts_with_an_equal_one_of_another_store(
    proxy_url: str, url: str, proxy: FaultyProxy, open_store_at: OpenStore
) -> None:
    """The same text from another writer must not be taken for the lost write."""
    store, other_store = await open_store_at(proxy_url), await open_store_at(url)
    await create_run(store)
    await store.get_row(RUN)
    await append_message(other_store, RUN, 1, "same")
    proxy.next_fault = Fault.DROP_WRITE
    with pytest.raises(SeqConflict):
        await append_message(store, RUN, 1, "same")
    assert await read_texts(store) == ["same"]


async def test_a_lease_is_held_by_its_taker_if_the_reply_is_lost(
    proxy_url: str, proxy: FaultyProxy, open_store_at: OpenStore
) -> None:
    """Else the run would wait until the unknown lease expires."""
    store = await open_store_at(proxy_url)
    await create_run(store)
    await store.record_heartbeat("a", ttl=timedelta(seconds=60))
    proxy.next_fault = Fault.LOSE_REPLY
    lease = await take_lease(store, RUN, 1, "a")
    row = await store.get_row(RUN)
    assert (row.epoch, row.holder, row.seq) == (lease.epoch, "a", 2)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_acknowledged_entries_survive_a_restart_of_the_server(
    mode: Literal["fast", "immediate"], store: PostgresStore, postgres: Postgres
) -> None:
    """A concurrent writer only notices a delay."""
    await create_run(store)
    await create_run(store, OTHER_RUN)
    acknowledged: list[int] = []
    has_begun = anyio.Event()

    async def writer() -> None:
        for number in range(300):
            appended = await append_message(store, RUN, number + 1, f"t{number}")
            acknowledged.append(appended.seq)
            if number == 20:
                has_begun.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer)
        await has_begun.wait()
        await anyio.to_thread.run_sync(postgres.restart, mode)
        assert (await append_message(store, OTHER_RUN, 1)).seq == 2
    assert acknowledged == [*range(2, 302)]
    assert await read_texts(store) == [f"t{number}" for number in range(300)]


async def test_other_store_calls_are_repeated_when_their_connections_are_lost(
    store: PostgresStore, postgres: Postgres
) -> None:
    """These calls are idempotent."""
    await create_run(store)
    for _ in range(2):
        postgres.execute(TERMINATE_CONNECTIONS)
        await store.record_heartbeat("a", ttl=timedelta(seconds=60))
        assert list(await store.list_holders()) == ["a"]
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        assert [halt.scope for halt in await store.list_halts()] == ["all"]
        assert await store.remove_halt("all")
        assert (await store.get_row(RUN)).seq == 1


@pytest.mark.slow
async def test_a_stalled_server_raises_unreachable_after_the_timeout(
    proxy_url: str,
    proxy: FaultyProxy,
    open_store_at: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The outcome of the append is unknown. The store works again when the server does."""
    store = await open_store_at(proxy_url)
    await create_run(store)
    monkeypatch.setattr(store.address, "write_timeout_s", 0.2)
    monkeypatch.setattr(connection, "ANSWER_SLACK_S", 0.1)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", 0.5)
    proxy.stall()
    with pytest.raises(StoreUnreachable, match="read the run to find out"):
        await append_message(store, RUN, 1)
    proxy.resume()
    seq = (await store.get_row(RUN)).seq
    assert seq in {1, 2}
    await store.append(RUN, [make_message()], after=seq, lease=None, head=make_head())


async def test_an_interrupted_commit_does_not_block_the_next_writes(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C raises an exception in the code that is running; the cleanup writes afterwards."""

    class Interrupt(BaseException):
        pass

    async def interrupt(*_: object, **__: object) -> None:
        raise Interrupt

    await create_run(store)
    with monkeypatch.context() as patch:
        patch.setattr(connection.PostgresConnection, "execute", interrupt)
        with pytest.raises(StoreUnreachable, match="Interrupt interrupted a commit"):
            await append_message(store, RUN, 1)
    assert (await append_message(store, RUN, 1)).seq == 2


# ── backends that are terminated at each step of a write ─────────────────────


LOCK_HALTS = "SELECT pg_advisory_xact_lock(1296647250, midrun_schema_key())"
LOCK_TABLE = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"
LOCKS_BY_STEP = {
    "before anything": LOCK_HALTS,
    "at the run": LOCK_TABLE.format("midrun_runs"),
    "at its entries": LOCK_TABLE.format("midrun_entries"),
    "at its notification": LOCK_TABLE.format("midrun_notices"),
}
"""A lock that blocks a write at each of its steps."""

WAITING_PIDS = """
    SELECT pid FROM pg_stat_activity
    WHERE application_name = 'midrun' AND wait_event_type = 'Lock'
"""


@contextmanager
def block_writes_at(step: str, url: str) -> Iterator[Connection]:
    """Block every write at a step during the block; yield a connection that can read."""
    with psycopg.connect(url) as db:
        db.execute(LOCKS_BY_STEP[step].encode())
        yield db
        db.rollback()


async def terminate_waiting_backend(postgres: Postgres) -> None:
    """Terminate the backend that waits for the lock; wait until the next one waits."""
    (first,) = await wait_for_backends(postgres, exclude=())
    postgres.execute(f"SELECT pg_terminate_backend({first})")
    await wait_for_backends(postgres, exclude=(first,))


async def wait_for_backends(postgres: Postgres, *, exclude: Collection[object]) -> list[object]:
    while True:
        rows = await anyio.to_thread.run_sync(postgres.execute, WAITING_PIDS)
        if pids := [pid for (pid,) in rows if pid not in exclude]:
            return pids
        await anyio.sleep(0.01)


async def append_once(store: Store) -> None:
    assert (await append_message(store, RUN, 1, "once")).seq == 2


async def take_and_check(store: Store) -> None:
    lease = await take_lease(store, RUN, 1, "a")
    row = await store.get_row(RUN)
    assert (row.epoch, row.holder, row.seq) == (lease.epoch, "a", 2)


async def create_other(store: Store) -> None:
    assert (await create_run(store, OTHER_RUN)).seq == 1


@pytest.mark.parametrize("write", [append_once, take_and_check, create_other])
@pytest.mark.parametrize("step", LOCKS_BY_STEP)
async def test_a_write_whose_backend_is_terminated_at_any_step_is_applied_once(
    step: str,
    write: Callable[[Store], Coroutine[None, None, None]],
    postgres: Postgres,
    url: str,
) -> None:
    """A lock of another connection blocks the write at the step, and its backend is terminated.

    The writer repeats it without an error for the caller.
    """
    store = await PostgresStore.open(url, write_timeout=timedelta(seconds=TIMEOUT_S))
    await create_run(store)
    await store.record_heartbeat("a", ttl=timedelta(seconds=TIMEOUT_S))
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            with block_writes_at(step, url) as db:
                tasks.start_soon(write, store)
                await terminate_waiting_backend(postgres)
                assert db.execute("SELECT sum(seq) FROM midrun_runs").fetchall() == [(1,)]
    for run in {RUN, OTHER_RUN if write is create_other else RUN}:
        seq = (await store.get_row(run)).seq
        assert [record.seq for record in await store.read(run)] == [*range(1, seq + 1)]
    assert (await append_message(store, RUN, (await store.get_row(RUN)).seq)).seq > Seq(1)
    await store.close()


async def test_a_write_whose_caller_is_cancelled_by_asyncio_is_applied_once(
    store: PostgresStore, postgres: Postgres, url: str
) -> None:
    """AnyIO's shields do not protect from `Task.cancel`, which `asyncio.timeout` uses."""
    await create_run(store)
    await create_run(store, OTHER_RUN)
    async with anyio.create_task_group() as tasks:
        with block_writes_at("at the run", url):
            caller = asyncio.get_running_loop().create_task(append_once(store))
            await wait_for_backends(postgres, exclude=())
            caller.cancel()
            tasks.start_soon(append_message, store, OTHER_RUN, 1)
            await checkpoint()
    assert caller.cancelled()
    assert await read_texts(store) == ["once"]
    assert (await store.get_row(OTHER_RUN)).seq == 2
