"""The contract of `Midrun` and `Run`, kept by both: at home, and by `connect` over HTTP."""

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest

from midrun import Agent, Midrun
from midrun.ports.environment import Environment
from midrun.ports.store import RunQuery
from midrun.runs.protocols import AnyMidrun
from midrun.testing.run_suite import OpenHandle, RunSuite
from tests.unit.client.conftest import Connected, Serve
from tests.unit.server.conftest import KEY


class TestAtHome(RunSuite):
    @pytest.fixture
    def opened(self, stack: AsyncExitStack, tmp_path: Path) -> OpenHandle:
        """Give what opens a `Midrun`; afterwards every journal is verified."""
        address = f"sqlite:///{tmp_path / 'runs.db'}"

        async def open_one(*agents: Agent) -> AnyMidrun:
            outside = Environment(lease=timedelta(seconds=30))
            mid = Midrun(address, agents=agents, outside=outside)
            await stack.enter_async_context(mid)
            stack.push_async_callback(_verify, mid)
            return mid

        return open_one


class TestOverHttp(RunSuite):
    checkpoint_key: ClassVar[bytes | None] = KEY

    @pytest.fixture
    def opened(self, serve: Serve, connected: Connected) -> OpenHandle:
        """Give what serves agents, and connects to the server as olga."""

        async def open_one(*agents: Agent) -> AnyMidrun:
            return await connected(await serve(*agents))

        return open_one


async def _verify(mid: Midrun) -> None:
    for row in (await mid.store.list_runs(RunQuery(limit=500))).items:
        verdict = await mid.verify(row.run)
        assert verdict, str(verdict)
