"""The store on Postgres keeps the contract of every store."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from midrun.ports.store import Store
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite import ManualClock, StoreSuite
from midrun.testing.store_suite.cursors import FollowerCursorSuite
from midrun.testing.store_suite.fixtures import ReopenStore

EMPTY = """
    DO $$
    BEGIN
        IF to_regclass('midrun_runs') IS NOT NULL THEN
            SET LOCAL session_replication_role = replica;  -- entries would not go otherwise
            TRUNCATE midrun_runs, midrun_entries, midrun_labels, midrun_snapshots, midrun_news,
                     midrun_holders, midrun_halts, midrun_followers, midrun_marks, midrun_chunks
                     RESTART IDENTITY;
        END IF;
    END
    $$
"""


@pytest.fixture(scope="module")
def place(postgres: Postgres) -> str:
    """Give a schema for all of these tests: making one takes longer than most of them."""
    return postgres.url()


@pytest.mark.once
class TestPostgresStore(StoreSuite, FollowerCursorSuite):
    @pytest.fixture
    def url(self, place: str) -> str:
        """Give the address of an empty store."""
        with psycopg.connect(place, autocommit=True) as db:
            db.execute(EMPTY)
        return place

    @pytest.fixture
    async def store(self, clock: ManualClock, url: str) -> AsyncIterator[Store]:
        store = await PostgresStore.open(url, clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, clock: ManualClock, url: str) -> AsyncIterator[ReopenStore]:
        opened: list[Store] = []

        async def again(store: Store) -> Store:
            await store.close()
            opened.append(await PostgresStore.open(url, clock=clock))
            return opened[-1]

        yield again
        for store in opened:
            await store.close()
