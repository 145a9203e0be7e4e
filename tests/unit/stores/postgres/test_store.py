"""Guarantees of the Postgres store that the server enforces: order, halts, follower cursors."""

import re
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
from midrun.ports.follower_cursors import FollowerCursor
from midrun.ports.store import HaltRecord, RunQuery
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.cursors import COMPLETED_HEAD, LEASE_TTL, append_in_phase
from midrun.testing.store_suite.fixtures import (
    RUN,
    append_message,
    create_run,
    make_call_started,
    make_head,
    make_started,
    take_lease,
)
from tests.unit.stores.postgres import faulty_proxy
from tests.unit.stores.postgres.conftest import OpenStore
from tests.unit.stores.postgres.faulty_proxy import Fault, FaultyProxy

pytestmark = pytest.mark.once

SELECT_NOW_MICROS = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
RUNNING = make_head(Phase.RUNNING, leased=True)


async def test_no_call_starts_once_a_halt_was_acknowledged(store: PostgresStore) -> None:
    """Setting a halt waits for the appends that are being committed."""
    runs = [RunId(f"r{n}") for n in range(12)]
    started_at: dict[RunId, int] = {}
    all_started = anyio.Event()

    async def start_calls(run: RunId) -> None:
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
                all_started.set()

    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(start_calls, run)
        await all_started.wait()
        await store.set_halt(HaltRecord(scope="all", by="ops"))
        seq_at_halt = {run: (await store.get_row(run)).seq for run in runs}
    assert seq_at_halt == started_at


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE midrun_entries SET line = ''",
        "DELETE FROM midrun_entries",
        "TRUNCATE midrun_entries",
    ],
)
async def test_triggers_refuse_to_change_or_remove_entries(
    store: PostgresStore, url: str, statement: str
) -> None:
    """The triggers prevent mistakes. `verify` detects intended changes."""
    await create_run(store)
    with (
        psycopg.connect(url) as db,
        pytest.raises(psycopg.errors.RaiseException, match="are never"),
    ):
        db.execute(statement.encode())
    assert len(await store.read(RUN)) == 1


@pytest.mark.slow
async def test_a_row_locked_by_another_client_raises_busy_and_nothing_is_appended(
    url: str,
) -> None:
    """The other client has an open transaction.

    Other runs, also of the same group, are written.
    """
    store = await PostgresStore.open(url, write_timeout=timedelta(seconds=2))
    await create_run(store)
    other = RunId("other")
    await create_run(store, other)
    with psycopg.connect(url) as db:
        db.execute("SELECT FROM midrun_runs WHERE run = 'run_1' FOR UPDATE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append_message, store, other, 1)  # possibly in the same group
            with pytest.raises(StoreBusy):
                await append_message(store, RUN, 1)
        assert (await store.get_row(RUN)).seq == 1
        assert (await store.get_row(other)).seq == 2
        db.rollback()
    assert (await append_message(store, RUN, 1)).seq == 2
    await store.close()


async def test_two_stores_that_append_to_one_run_lose_and_repeat_no_entry(
    store: PostgresStore, url: str, open_store_at: OpenStore
) -> None:
    """Each seq has one winner; the other store reads and retries."""
    other = await open_store_at(url)
    await create_run(store)

    async def append_messages(target: PostgresStore, name: str) -> None:
        for n in range(40):
            while True:
                seq = (await target.get_row(RUN)).seq
                with suppress(SeqConflict):
                    await append_message(target, RUN, seq, f"{name}{n}")
                    break

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append_messages, store, "a")
        tasks.start_soon(append_messages, other, "b")
    texts = [getattr(record.entry, "text", "") for record in await store.read(RUN)]
    assert len(texts) == 81
    for name in "ab":
        assert [t for t in texts if t.startswith(name)] == [f"{name}{n}" for n in range(40)]


async def test_server_timeouts_are_shorter_than_the_safety_margin_of_a_lease(
    store: PostgresStore,
) -> None:
    """A write must not be committed after another worker may have taken the lease."""
    connection = await PostgresConnection.connect(store.address)
    bounds = ["statement_timeout", "lock_timeout"]
    rows = await connection.execute(
        "SELECT setting::int FROM pg_settings WHERE name = ANY(%(bounds)s)", {"bounds": bounds}
    )
    connection.close()
    margin_ms = Environment().lease.total_seconds() * TTL_SAFETY_FRACTION * 1000
    assert [0 < bound < margin_ms for (bound,) in rows] == [True, True]


async def test_entries_carry_the_servers_time(store: PostgresStore, postgres: Postgres) -> None:
    """Processes on several machines have different clocks."""
    ((before,),) = postgres.execute(SELECT_NOW_MICROS)
    appended = await create_run(store)
    ((after,),) = postgres.execute(SELECT_NOW_MICROS)
    slack = 60_000_000  # a slow reply makes the server's clock look late
    assert int(str(before)) - slack <= appended.at <= int(str(after)) + slack


async def test_a_nul_character_is_refused_with_the_name_of_its_field(
    store: PostgresStore,
) -> None:
    """Postgres text cannot contain NUL. In entries it is escaped."""
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


# ── follower cursors ─────────────────────────────────────────────────────────


WAITING_LOCKS = "SELECT 1 FROM pg_locks WHERE classid = 1296647250 AND NOT granted"


async def test_a_new_follower_waits_for_uncommitted_appends_and_starts_after_them(
    url: str, store: PostgresStore
) -> None:
    """Else an append that commits during the registration could be skipped or be delivered."""
    await create_run(store, RUN, head=COMPLETED_HEAD)
    cursors, acquired = store.follower_cursors(), anyio.Event()

    async def acquire() -> None:
        assert await cursors.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        acquired.set()

    with psycopg.connect(url) as db:  # a writer that has not committed yet
        db.execute("SELECT pg_advisory_xact_lock_shared(1296647250, midrun_schema_key())")
        db.execute("UPDATE midrun_runs SET seq = 2")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(acquire)
            while not db.execute(WAITING_LOCKS).fetchone() and not acquired.is_set():  # noqa: ASYNC110 - the server sends no event
                await anyio.sleep(0.01)
            assert not acquired.is_set()
            db.commit()
    assert not await cursors.list_behind("f", limit=9)
    assert (await cursors.get_cursor("f", RUN)).seq == 2


async def test_a_new_follower_is_registered_once_if_the_reply_is_lost(
    proxy_url: str,
    proxy: FaultyProxy,
    open_store_at: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store repeats the request.

    The run that grew in between must not count as delivered.
    """
    monkeypatch.setattr(faulty_proxy, "WRITE", b"midrun_acquire_leadership")
    store, other = await open_store_at(proxy_url), await open_store_at(proxy_url)
    await create_run(other, RUN, head=COMPLETED_HEAD)

    async def append_elsewhere() -> None:
        proxy.before_lost_reply = None
        await append_in_phase(other, RUN, 1)

    proxy.before_lost_reply, proxy.next_fault = append_elsewhere, Fault.LOSE_REPLY
    assert await store.follower_cursors().acquire_leadership("f", holder="p", ttl=LEASE_TTL)
    assert proxy.fault_count == 1
    assert await store.follower_cursors().list_behind("f", limit=9) == [
        FollowerCursor(run=RUN, seq=Seq(1))
    ]


async def test_the_words_of_a_run_have_an_index_and_are_deleted_with_it(
    store: PostgresStore, url: str
) -> None:
    await store.create(RUN, [make_started(task="zyzzyva")], head=make_head())
    assert len((await store.list_runs(RunQuery(search="zyzz"))).items) == 1
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        await db.execute("SET enable_seqscan = off")
        query = "EXPLAIN SELECT no FROM midrun_search WHERE words @@ '''zyzz'':*'::tsquery"
        plan = await (await db.execute(query)).fetchall()
        assert "midrun_search_by_words" in str(plan)
        await db.execute("DELETE FROM midrun_runs")
        left = await (await db.execute("SELECT no FROM midrun_search")).fetchall()
        assert left == []


@pytest.mark.parametrize("condition", [queries.LIST_LABEL, queries.LIST_WORDS])
async def test_a_search_joins_the_index_and_does_not_test_every_run(
    store: PostgresStore, url: str, condition: str
) -> None:
    """A condition that is tested for every run appears as a subplan in Postgres' plan."""
    await create_run(store, RUN)
    statement = f"EXPLAIN {queries.LIST_RUNS}{condition}{queries.LIST_ORDER}"
    values: dict[str, object] = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))
    values |= {"before": 9, "limit": 9, "label": "x", "words": "'zyzz':*"}
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        plan = await (await psycopg.AsyncClientCursor(db).execute(statement, values)).fetchall()
    assert "SubPlan" not in str(plan)
