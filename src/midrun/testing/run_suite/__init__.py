"""The contract of `Midrun` and `Run`, as tests, for whatever has their interface.

    class TestMine(RunSuite):
        @pytest.fixture
        async def opened(self, tmp_path: Path) -> AsyncIterator[Opened]:
            async with AsyncExitStack() as stack:

                async def open_one(*agents: Agent) -> AnyMidrun:
                    return await stack.enter_async_context(Mine(agents))

                yield open_one

Every control, every refusal, receipts, waiting, the feed, asks, forks, threads, take-over.
"""

from midrun.testing.run_suite.fixtures import OLGA, Opened, Setting
from midrun.testing.run_suite.suite import RunSuite

__all__ = ["OLGA", "Opened", "RunSuite", "Setting"]
