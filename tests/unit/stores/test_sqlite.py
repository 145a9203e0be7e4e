"""The store on SQLite keeps the contract of every store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from midrun.ports.store import Store
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.store_suite import HandClock, MarksSuite, StoreSuite
from midrun.testing.store_suite.fixtures import Reopen


class TestSqliteStore(StoreSuite, MarksSuite):
    @pytest.fixture
    async def store(self, clock: HandClock, tmp_path: Path) -> AsyncIterator[Store]:
        store = SqliteStore(tmp_path / "runs.db", clock=clock)
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, clock: HandClock, tmp_path: Path) -> AsyncIterator[Reopen]:
        opened: list[Store] = []

        async def again(store: Store) -> Store:
            await store.close()
            opened.append(SqliteStore(tmp_path / "runs.db", clock=clock))
            return opened[-1]

        yield again
        for store in opened:
            await store.close()
