"""The local worker and its limits on the number of runs that it drives at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun
from midrun.core.controls import Pause, Withdraw
from midrun.core.ids import RunId
from midrun.core.run_head import Head, build_head
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.driver.journal_writer import load_run_state
from midrun.errors import JournalCorrupt, NoRoom, StoreDamaged
from midrun.ports.environment import Environment
from midrun.ports.store import RunRow, Store
from midrun.stores.memory import MemoryStore
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.scenario import LEASED_RUN, given
from midrun.testing.store_suite.fixtures import create_run
from midrun.testing.worker_suite import EngineSuite, OpenMidrun
from midrun.workers import local
from midrun.workers.concurrency_limits import ConcurrencyLimiter, Fleet
from tests.support.conditions import wait_until


class TestLocalWorker(EngineSuite):
    """The local worker passes the conformance suite."""

    @pytest.fixture
    async def opened(self, tmp_path: Path) -> AsyncIterator[OpenMidrun]:
        @asynccontextmanager
        async def open_midrun(*agents: Agent) -> AsyncIterator[Midrun]:
            environment = Environment(lease=timedelta(seconds=30))
            url = f"sqlite:///{tmp_path / 'runs.db'}"
            async with Midrun(url, agents=agents, outside=environment) as midrun:
                yield midrun

        with anyio.fail_after(60):
            yield open_midrun


async def test_a_run_whose_row_is_unreadable_does_not_stop_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep tries the run once and tries it again in the next sweep."""
    monkeypatch.setattr(local, "SWEEP_S", 0.01)
    damaged_run, tries, sweeps = RunId("run_x"), 0, 0
    get_row, list_due = MemoryStore.get_row, MemoryStore.list_due

    async def raise_for_damaged_run(store: MemoryStore, run: RunId) -> RunRow:
        nonlocal tries
        if run == damaged_run:
            tries += 1
            raise StoreDamaged("memory", "a torn page")
        return await get_row(store, run)

    async def count_sweep(store: MemoryStore, *, limit: int) -> object:
        nonlocal sweeps
        sweeps += tries > 0  # counted from the first try on
        return await list_due(store, limit=limit)

    monkeypatch.setattr(MemoryStore, "get_row", raise_for_damaged_run)
    monkeypatch.setattr(MemoryStore, "list_due", count_sweep)
    tools = ControllableTools()
    agent = tools.agent("Done.")
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[agent]) as midrun:
            await create_run(midrun.store, damaged_run)
            await wait_until(lambda: sweeps > 5)
            run = await midrun.start(agent, "go")
            await run.until("completed")


async def test_a_run_that_cannot_be_driven_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every sweep finds it again, and must not count it for the limit."""
    monkeypatch.setattr(local, "SWEEP_S", 0.01)
    broken_run, reads, sweeps = RunId("run_x"), 0, 0
    list_due = MemoryStore.list_due

    async def raise_for_broken_run(store: Store, run: RunId) -> State:
        nonlocal reads
        if run == broken_run:
            reads += 1
            raise JournalCorrupt(run, 1, "a torn entry")
        return await load_run_state(store, run)

    async def count_sweep(store: MemoryStore, *, limit: int) -> object:
        nonlocal sweeps
        sweeps += reads > 0  # counted from the first read on
        return await list_due(store, limit=limit)

    monkeypatch.setattr(local, "load_run_state", raise_for_broken_run)
    monkeypatch.setattr(MemoryStore, "list_due", count_sweep)
    agent = ControllableTools().agent("Done.", name="researcher")
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[agent], fleet=Fleet(here={"all": 1})) as midrun:
            head = Head(phase=Phase.QUEUED, agent=agent.name, task="compare")
            await create_run(midrun.store, broken_run, head=head)
            await wait_until(lambda: sweeps > 5)
            assert reads == 1
            run = await midrun.start(agent, "go")
            await run.until("completed")


def test_a_run_that_is_limited_again_before_its_lease_is_taken_waits() -> None:
    """A run that pauses is exempt from limits. The pause may be withdrawn before the append."""
    limiter = ConcurrencyLimiter(Fleet(limits={"agent:clerk": 1}))
    working = given(*LEASED_RUN).starts("c1")
    pausing = working.when(Pause())
    limiter.add_run(pausing.state.run, build_head(pausing.state))
    assert limiter.limits_for_lease(pausing.state) == {}
    limiter.limit_reached(NoRoom("run_2", "agent:clerk", 1))
    with pytest.raises(NoRoom) as refused:
        limiter.limits_for_lease(pausing.when(Withdraw(seq=pausing.state.seq)).state)
    assert not limiter.limit_reached(refused.value)
