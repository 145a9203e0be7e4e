"""The store on SQLite keeps the contract of every store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from midrun.ports.store import Store
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite import FollowerCursorSuite, ManualClock, StoreSuite
from midrun.testing.store_suite.fixtures import ReopenStore


class TestSqliteStore(StoreSuite, FollowerCursorSuite):
    @pytest.fixture
    async def store(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "runs.db", clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[ReopenStore]:
        opened: list[Store] = []

        async def again(store: Store) -> Store:
            await store.close()
            opened.append(SqliteStore(tmp_path / "runs.db", clock=clock))
            return opened[-1]

        yield again
        for store in opened:
            await store.close()
