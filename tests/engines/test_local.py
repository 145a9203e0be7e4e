"""The local engine keeps the engine's contract."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun
from midrun.ports.outside import Outside
from midrun.testing.engine_suite import EngineSuite, Opener


class TestLocal(EngineSuite):
    @pytest.fixture
    async def opened(self, tmp_path: Path) -> AsyncIterator[Opener]:
        @asynccontextmanager
        async def open_one(*agents: Agent) -> AsyncIterator[Midrun]:
            outside = Outside(lease=timedelta(seconds=30))
            address = f"sqlite:///{tmp_path / 'runs.db'}"
            async with Midrun(address, agents=agents, outside=outside) as midrun:
                yield midrun

        with anyio.fail_after(60):
            yield open_one
