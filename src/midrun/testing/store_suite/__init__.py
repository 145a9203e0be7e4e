"""The contract of a store as tests.

    class TestMyStore(StoreSuite):
        @pytest.fixture
        async def store(self, clock: ManualClock) -> AsyncIterator[Store]:
            store = MyStore(clock=clock)
            yield store
            await store.close()

A store that outlives its process also overrides the `reopen` fixture. A store that keeps the
cursors of followers also inherits `FollowerCursorSuite`, and one that keeps push targets
`PushTargetSuite`. Each module holds the tests of one topic; `suite.StoreSuite` inherits the
other modules.
"""

from midrun.testing.store_suite.cursors import FollowerCursorSuite, PushTargetSuite
from midrun.testing.store_suite.fixtures import ManualClock, StoreSuiteFixtures
from midrun.testing.store_suite.suite import StoreSuite

__all__ = [
    "FollowerCursorSuite",
    "ManualClock",
    "PushTargetSuite",
    "StoreSuite",
    "StoreSuiteFixtures",
]
