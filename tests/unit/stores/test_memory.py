"""The store in memory keeps the contract of every store."""

from collections.abc import AsyncIterator

import pytest

from midrun.ports.store import Store
from midrun.stores.memory import MemoryStore
from midrun.testing.store_suite import FollowerCursorSuite, ManualClock, StoreSuite


class TestMemoryStore(StoreSuite, FollowerCursorSuite):
    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[Store]:
        store = MemoryStore(clock=clock)
        yield store
        await store.close()


class TestMemoryStoreWithAKey(StoreSuite):
    """A key changes the hashes and nothing else."""

    @pytest.fixture
    async def store(self, clock: ManualClock) -> AsyncIterator[Store]:
        store = MemoryStore(clock=clock, key=b"kept where the store is not")
        yield store
        await store.close()
