"""The local engine keeps the engine's contract."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun
from midrun.core.ids import RunId
from midrun.errors import StoreDamaged
from midrun.ports.environment import Environment
from midrun.ports.store import RunRow
from midrun.stores.memory import MemoryStore
from midrun.testing.store_suite.fixtures import create_run
from midrun.testing.worker_suite import EngineSuite, OpenMidrun
from midrun.workers import local
from tests.crash.facts import becomes
from tests.unit.runs.stage import ControllableTools


class TestLocal(EngineSuite):
    @pytest.fixture
    async def opened(self, tmp_path: Path) -> AsyncIterator[OpenMidrun]:
        @asynccontextmanager
        async def open_one(*agents: Agent) -> AsyncIterator[Midrun]:
            outside = Environment(lease=timedelta(seconds=30))
            address = f"sqlite:///{tmp_path / 'runs.db'}"
            async with Midrun(address, agents=agents, outside=outside) as midrun:
                yield midrun

        with anyio.fail_after(60):
            yield open_one


async def test_a_run_that_cannot_be_looked_at_does_not_hold_up_the_look_at_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is tried once in a look, and again in the next: not for as long as it fails."""
    monkeypatch.setattr(local, "SWEEP_S", 0.01)
    tried, looked, row, due = RunId("run_x"), [0, 0], MemoryStore.get_row, MemoryStore.list_due

    async def damaged(store: MemoryStore, run: RunId) -> RunRow:
        if run == tried:
            looked[0] += 1
            raise StoreDamaged("memory", "a torn page")
        return await row(store, run)

    async def counted(store: MemoryStore, *, limit: int) -> object:
        looked[1] += looked[0] > 0
        return await due(store, limit=limit)

    monkeypatch.setattr(MemoryStore, "get_row", damaged)
    monkeypatch.setattr(MemoryStore, "list_due", counted)
    stage = ControllableTools()
    agent = stage.agent("Done.")
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[agent]) as midrun:
            await create_run(midrun.store, tried)
            await becomes(lambda: looked[1] > 5)
            run = await midrun.start(agent, "go")
            await run.until("completed")
