"""Fixtures for tests of the driver."""

from collections.abc import AsyncIterator

import pytest

from midrun import Agent
from midrun.driver import dispatcher, run_loop
from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.driver.driver_context import (
    LONG_GRACE,
    Dispatch,
    DispatcherTest,
    DriverParts,
    open_driver_parts,
)


@pytest.fixture
async def parts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DriverParts]:
    """Return a driver context with a store in memory; appends that fail are retried at once."""
    monkeypatch.setattr(run_loop, "STORE_RETRY_S", 0.0)
    monkeypatch.setattr(dispatcher, "LATE_RESULT_TIMEOUT_S", 0.05)
    async with open_driver_parts() as parts:
        yield parts


@pytest.fixture
def tools() -> ControllableTools:
    """Return tools that wait for the test."""
    return ControllableTools()


@pytest.fixture
def slow_agent(tools: ControllableTools) -> Agent:
    """Return an agent that calls `slow("a")`, which waits for its gate, and then answers."""
    return tools.agent(Use("slow", name="a"), "Done.", grace=LONG_GRACE)


@pytest.fixture
async def dispatch(parts: DriverParts) -> Dispatch:
    """Return a function that makes a dispatcher for an agent, under a live lease."""
    await parts.heartbeat.ensure_fresh()
    return lambda agent: DispatcherTest(parts, agent)
