"""Each store passes the conformance suites of `midrun.testing`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from midrun.core.entries import RunStarted
from midrun.ports.store import RunQuery, RunQuota, Store
from midrun.stores.encryption import PayloadCipher
from midrun.stores.memory import MemoryStore
from midrun.stores.postgres.store import PostgresStore
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite import (
    FollowerCursorSuite,
    ManualClock,
    PushTargetSuite,
    StoreSuite,
)
from midrun.testing.store_suite.fixtures import RUN, ReopenStore, make_head
from midrun.testing.store_suite.limits import race_under_quotas


class TestMemoryStore(StoreSuite, FollowerCursorSuite, PushTargetSuite):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[Store]:
        store = MemoryStore(clock=clock)
        yield store
        await store.close()


class TestMemoryStoreWithKeys(StoreSuite):
    """A chain key changes the hashes, an encryption key the lines, and nothing else."""

    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[Store]:
        cipher = PayloadCipher([b"kept where the content is not..."])
        store = MemoryStore(clock=clock, key=b"kept where the store is not", cipher=cipher)
        yield store
        await store.close()

    async def test_runs_are_found_by_the_words_of_task_agent_labels_and_output(
        self, store: Store
    ) -> None:
        """In an encrypted store, the texts are not in the index; the names are."""
        entry = RunStarted(agent="clerk", task="Check the invoice", labels=("urgent",))
        await store.create(RUN, [entry], head=make_head())
        for search, found in (("clerk", [RUN]), ("urg", [RUN]), ("invoice", [])):
            page = await store.list_runs(RunQuery(search=search))
            assert [row.run for row in page.items] == found


class TestSqliteStore(StoreSuite, FollowerCursorSuite, PushTargetSuite):
    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "runs.db", clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[ReopenStore]:
        opened: list[Store] = []

        async def reopen_store(store: Store) -> Store:
            await store.close()
            opened.append(SqliteStore(tmp_path / "runs.db", clock=clock))
            return opened[-1]

        yield reopen_store
        for store in opened:
            await store.close()


class TestSqliteStoreByThread(StoreSuite):
    """All commits are left to the writer thread, as on a slow disk."""

    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "runs.db", clock=clock)
        store._writer._detours_left = 1_000_000
        yield store
        await store.close()


TRUNCATE_ALL = """
    DO $$
    BEGIN
        IF to_regclass('midrun_runs') IS NOT NULL THEN
            SET LOCAL session_replication_role = replica;  -- disables the triggers of entries
            TRUNCATE midrun_runs, midrun_entries, midrun_labels, midrun_snapshots,
                     midrun_notices, midrun_holders, midrun_halts, midrun_followers,
                     midrun_audit, midrun_audit_end, midrun_cursors, midrun_chunks,
                     midrun_files, midrun_run_files, midrun_search, midrun_chunk_uses,
                     midrun_tombstones, midrun_encryption_keys, midrun_push_targets
                     RESTART IDENTITY;
        END IF;
    END
    $$
"""


@pytest.fixture(scope="module")
def postgres_url(postgres: Postgres) -> str:
    """Return one schema for the module; to create one takes longer than most of the tests."""
    return postgres.url()


@pytest.mark.once
class TestPostgresStore(StoreSuite, FollowerCursorSuite, PushTargetSuite):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        """Empty the schema and return its URL."""
        with psycopg.connect(postgres_url, autocommit=True) as db:
            db.execute(TRUNCATE_ALL)
        return postgres_url

    @pytest.fixture
    async def store(self, clock: ManualClock, url: str) -> AsyncIterator[Store]:
        store = await PostgresStore.open(url, clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, clock: ManualClock, url: str) -> AsyncIterator[ReopenStore]:
        opened: list[Store] = []

        async def reopen_store(store: Store) -> Store:
            await store.close()
            opened.append(await PostgresStore.open(url, clock=clock))
            return opened[-1]

        yield reopen_store
        for store in opened:
            await store.close()


@pytest.mark.once
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_processes_that_start_runs_at_once_do_not_exceed_a_quota(
    kind: str, postgres: Postgres, tmp_path: Path
) -> None:
    """Each process has its own connections, as these stores have."""
    url, stores = postgres.url(), list[Store]()
    async with AsyncExitStack() as stack:
        for _ in range(3):
            store = (
                SqliteStore(tmp_path / "runs.db")
                if kind == "sqlite"
                else await PostgresStore.open(url)
            )
            stack.push_async_callback(store.close)
            stores.append(store)
        quotas = [
            RunQuota(tenant="acme", owner="ann", recent_runs=9),
            RunQuota(tenant="acme", open_runs=7),
        ]
        assert await race_under_quotas(stores, quotas) == 7
