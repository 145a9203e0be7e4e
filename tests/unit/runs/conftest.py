"""Fixtures for tests of whole runs: open a `Midrun` on a new store, and verify its journals."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import anyio
import pytest

from midrun import Agent, Midrun
from midrun.ports.environment import Environment
from midrun.ports.store import RunQuery
from tests.support.store_choice import get_store_url

TIMEOUT_S = 60
"""Seconds after which a fact that a test waits for counts as one that never comes true."""

LONG_LEASE = timedelta(seconds=30)
"""Long enough that no test loses a lease because the machine is slow."""


class OpenMidrun(Protocol):
    """Opens a `Midrun` on the test's own store; each stands for another process."""

    async def __call__(
        self, *agents: Agent, lease: timedelta = ..., key: bytes | None = ...
    ) -> Midrun: ...


@pytest.fixture
def path(store_path: Path) -> Path:
    """Return the path that stands for the store of the test's runs."""
    return store_path


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[OpenMidrun]:
    """Return a function that opens a `Midrun`; verify every journal in the store afterwards."""
    with anyio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            yield _make_opener(stack, path)
        await verify_journals(path)


def _make_opener(stack: AsyncExitStack, path: Path) -> OpenMidrun:
    async def open_one(
        *agents: Agent, lease: timedelta = LONG_LEASE, key: bytes | None = None
    ) -> Midrun:
        address, environment = get_store_url(path), Environment(lease=lease)
        midrun = Midrun(address, agents=agents, key=key, outside=environment)
        return await stack.enter_async_context(midrun)

    return open_one


async def verify_journals(path: Path) -> None:
    """Verify every journal of a store."""
    async with Midrun(get_store_url(path)) as midrun:
        for row in (await midrun.store.list_runs(RunQuery(limit=500))).items:
            verdict = await midrun.verify(row.run)
            assert verdict, str(verdict)
