"""The store in memory keeps the contract of every store."""

from collections.abc import AsyncIterator

import pytest

from midrun.ports.store import Store
from midrun.stores.memory import MemoryStore
from midrun.testing.store_suite import HandClock, StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    async def store(self, clock: HandClock) -> AsyncIterator[Store]:
        store = MemoryStore(clock=clock)
        yield store
        await store.close()
