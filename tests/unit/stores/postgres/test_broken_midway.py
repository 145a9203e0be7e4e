"""Connections that end in the middle of a write, at each of its steps: all of it, or nothing.

The server's steps are stopped by a lock that somebody else holds, and the server process that
waits for it is ended there.
"""

from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta

import anyio
import anyio.to_thread
import psycopg
import pytest
from psycopg import Connection

from midrun.core.ids import Seq
from midrun.ports.store import Store
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    append_message,
    create_run,
    take_lease,
)
from tests.unit.stores.postgres.conftest import PATIENCE

pytestmark = pytest.mark.once

LATCH = "SELECT pg_advisory_xact_lock(1296647250, midrun_key())"
TABLE = "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"
STEPS = {
    "before anything": LATCH,
    "at the run": TABLE.format("midrun_runs"),
    "at its entries": TABLE.format("midrun_entries"),
    "at the news of it": TABLE.format("midrun_news"),
}
"""What stops a write at each of its steps."""

WAITS = """
    SELECT pid FROM pg_stat_activity
    WHERE application_name = 'midrun' AND wait_event_type = 'Lock'
"""


@contextmanager
def stopped_at(step: str, url: str) -> Iterator[Connection]:
    """Have every write stop at a step while this is open; give who can still read."""
    with psycopg.connect(url) as db:
        db.execute(STEPS[step].encode())
        yield db
        db.rollback()


async def end_who_waits(postgres: Postgres) -> None:
    """Wait until a server process of ours is stopped, and end it: the next one waits, then."""
    (first,) = await _waiting(postgres, but=())
    postgres.execute(f"SELECT pg_terminate_backend({first})")
    await _waiting(postgres, but=(first,))


async def _waiting(postgres: Postgres, *, but: Collection[object]) -> list[object]:
    while True:
        rows = await anyio.to_thread.run_sync(postgres.execute, WAITS)
        if pids := [pid for (pid,) in rows if pid not in but]:
            return pids
        await anyio.sleep(0.01)


async def _say(store: Store) -> None:
    assert (await append_message(store, RUN, 1, "once")).seq == 2


async def _take(store: Store) -> None:
    lease = await take_lease(store, RUN, 1, "a")
    row = await store.get_row(RUN)
    assert (row.epoch, row.holder, row.seq) == (lease.epoch, "a", 2)


async def _create(store: Store) -> None:
    assert (await create_run(store, OTHER_RUN)).seq == 1


@pytest.mark.parametrize("write", [_say, _take, _create])
@pytest.mark.parametrize("step", STEPS)
async def test_a_write_that_is_ended_at_any_step_happens_once(
    step: str,
    write: Callable[[Store], Coroutine[None, None, None]],
    postgres: Postgres,
    url: str,
) -> None:
    """The caller need not know: nothing had happened yet, and it is asked for again."""
    store = await PostgresStore.open(url, write_timeout=timedelta(seconds=PATIENCE))
    await create_run(store)
    await store.record_heartbeat("a", ttl=timedelta(seconds=PATIENCE))
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            with stopped_at(step, url) as db:
                tasks.start_soon(write, store)
                await end_who_waits(postgres)
                assert db.execute("SELECT sum(seq) FROM midrun_runs").fetchall() == [(1,)]
    for run in {RUN, OTHER_RUN if write is _create else RUN}:
        seq = (await store.get_row(run)).seq
        assert [record.seq for record in await store.read(run)] == [*range(1, seq + 1)]
    assert (await append_message(store, RUN, (await store.get_row(RUN)).seq)).seq > Seq(1)
    await store.close()
