"""What the server itself sees to: order, latches, and that entries stay as they are."""

from contextlib import suppress
from datetime import timedelta

import anyio
import psycopg
import pytest

from midrun.core.ids import RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.driver.heartbeat import TTL_SAFETY_FRACTION
from midrun.errors import HaltInForce, NotJson, SeqConflict, StoreBusy
from midrun.ports.environment import Environment
from midrun.ports.store import HaltRecord, RunQuery
from midrun.stores.postgres.connection import PostgresConnection
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.fixtures import (
    RUN,
    append_message,
    create_run,
    make_call_started,
    make_head,
    make_started,
    take_lease,
)
from tests.unit.stores.postgres.conftest import Open

pytestmark = pytest.mark.once

RUNNING = make_head(Phase.RUNNING, leased=True)


async def test_nothing_starts_once_a_latch_was_acknowledged(store: PostgresStore) -> None:
    """Not even what began before it: who sets a latch waits for those who are writing."""
    runs = [RunId(f"r{n}") for n in range(12)]
    started_at: dict[RunId, int] = {}
    all_at_it = anyio.Event()

    async def driver(run: RunId) -> None:
        await create_run(store, run)
        lease = await take_lease(store, run, 1, "a")
        after = Seq(2)
        while True:
            try:
                appended = await store.append(
                    run,
                    [make_call_started()],
                    after=after,
                    lease=lease,
                    head=RUNNING,
                    starts=True,
                )
            except HaltInForce:
                return
            after = started_at[run] = appended.seq
            if len(started_at) == len(runs):
                all_at_it.set()

    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(driver, run)
        await all_at_it.wait()
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        stood = {run: (await store.get_row(run)).seq for run in runs}
    assert stood == started_at


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE midrun_entries SET line = ''",
        "DELETE FROM midrun_entries",
        "TRUNCATE midrun_entries",
    ],
)
async def test_entries_are_never_changed_by_a_slip_of_the_hand(
    store: PostgresStore, url: str, statement: str
) -> None:
    """Whoever means it can still do it; `verify` finds out."""
    await create_run(store)
    with (
        psycopg.connect(url) as db,
        pytest.raises(psycopg.errors.RaiseException, match="never changed"),
    ):
        db.execute(statement.encode())
    assert len(await store.read(RUN)) == 1


async def test_a_row_that_somebody_else_locks_is_busy_and_nothing_was_applied(
    url: str,
) -> None:
    """Somebody with a client and a transaction that they forgot."""
    store = await PostgresStore.open(url, write_timeout=timedelta(seconds=2))
    await create_run(store)
    other = RunId("other")
    await create_run(store, other)
    with psycopg.connect(url) as db:
        db.execute("SELECT FROM midrun_runs WHERE run = 'run_1' FOR UPDATE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_message, store, other, 1)  # it may be in the same group
            with pytest.raises(StoreBusy):
                await append_message(store, RUN, 1)
        assert (await store.get_row(RUN)).seq == 1
        assert (await store.get_row(other)).seq == 2
        db.rollback()
    assert (await append_message(store, RUN, 1)).seq == 2
    await store.close()


async def test_two_who_append_to_one_run_lose_and_double_nothing(
    store: PostgresStore, url: str, opened: Open
) -> None:
    """Each seq has one winner, whatever connection it came by; the other reads on."""
    other = await opened(url)
    await create_run(store)

    async def writer(at: PostgresStore, name: str) -> None:
        for n in range(40):
            while True:
                seq = (await at.get_row(RUN)).seq
                with suppress(SeqConflict):
                    await append_message(at, RUN, seq, f"{name}{n}")
                    break

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer, store, "a")
        tasks.start_soon(writer, other, "b")
    texts = [getattr(record.entry, "text", "") for record in await store.read(RUN)]
    assert len(texts) == 81
    for name in "ab":
        assert [t for t in texts if t.startswith(name)] == [f"{name}{n}" for n in range(40)]


async def test_the_server_gives_a_write_up_before_its_lease_may_be_somebody_elses(
    store: PostgresStore,
) -> None:
    """Nothing is committed late that was asked for in time: the margin of a lease is longer."""
    link = await PostgresConnection.connect(store.address)
    bounds = ["statement_timeout", "lock_timeout"]
    rows = await link.execute(
        "SELECT setting::int FROM pg_settings WHERE name = ANY(%(bounds)s)", {"bounds": bounds}
    )
    link.close()
    margin_ms = Environment().lease.total_seconds() * TTL_SAFETY_FRACTION * 1000
    assert [0 < bound < margin_ms for (bound,) in rows] == [True, True]


async def test_entries_carry_the_servers_time(store: PostgresStore, postgres: Postgres) -> None:
    """Processes on many machines have many clocks."""
    ((before,),) = postgres.execute(_NOW)
    appended = await create_run(store)
    ((after,),) = postgres.execute(_NOW)
    slack = 60_000_000  # an answer that took long makes the server look behind
    assert int(str(before)) - slack <= appended.at <= int(str(after)) + slack


_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"


async def test_what_postgres_cannot_keep_is_named(store: PostgresStore) -> None:
    """The character NUL has no place in its text; in entries it is escaped."""
    for field in ("agent", "thread", "parent", "attention"):
        bad = Head(phase=Phase.QUEUED, **{field: "a\0b"})  # type: ignore[arg-type]  # by name
        with pytest.raises(NotJson) as refused:
            await store.create(RUN, [make_started()], head=bad)
        assert refused.value.path == f"$.head.{field}"
    with pytest.raises(NotJson):
        await store.create(RUN, [make_started()], head=Head(phase=Phase.QUEUED, labels=("\0",)))
    with pytest.raises(ValueError, match="NUL"):
        await store.record_heartbeat("\0", ttl=timedelta(seconds=1))
    with pytest.raises(ValueError, match="NUL"):
        await store.set_halt(HaltRecord(scope="agent:\0", by="ops"))
    for field in ("agent", "thread", "parent", "label"):
        found = await store.list_runs(RunQuery(**{field: "a\0b"}))  # type: ignore[arg-type]  # by name
        assert not found.items
    await store.create(RUN, [make_started(task="a\0b")], head=make_head())
    (record,) = await store.read(RUN)
    assert record.entry == make_started(task="a\0b")
