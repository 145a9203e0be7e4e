"""The contract of `Midrun` and `Run` as tests, for every implementation of their protocols.

    class TestMine(RunSuite):
        @pytest.fixture
        async def opened(self, tmp_path: Path) -> AsyncIterator[OpenHandle]:
            async with AsyncExitStack() as stack:

                async def open_one(*agents: Agent) -> AnyMidrun:
                    return await stack.enter_async_context(Mine(agents))

                yield open_one

It covers every control and refusal, receipts, waiting, the feed, asks, forks, threads and
taking over. Each module holds the tests of one topic; `suite.RunSuite` inherits them all.
"""

from midrun.testing.run_suite.fixtures import OLGA, OpenHandle, RunSuiteFixtures
from midrun.testing.run_suite.suite import RunSuite

__all__ = ["OLGA", "OpenHandle", "RunSuite", "RunSuiteFixtures"]
