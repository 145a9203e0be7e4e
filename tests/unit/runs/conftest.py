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
from tests.support.store_choice import kept_at

PATIENCE = 60
"""Seconds after which a fact that a test waits for counts as one that never comes true."""

LEASE = timedelta(seconds=30)
"""Long enough that no test loses a lease because the machine is slow."""


class Opener(Protocol):
    """Opens a `Midrun` on the test's own store; each stands for another process."""

    async def __call__(
        self, *agents: Agent, lease: timedelta = ..., key: bytes | None = ...
    ) -> Midrun: ...


@pytest.fixture
def path(kept: Path) -> Path:
    """Return the path that stands for the store of the test's runs."""
    return kept


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Opener]:
    """Return a function that opens a `Midrun`; verify every journal in the store afterwards."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            yield _make_opener(stack, path)
        await verify_all(path)


def _make_opener(stack: AsyncExitStack, path: Path) -> Opener:
    async def open_one(
        *agents: Agent, lease: timedelta = LEASE, key: bytes | None = None
    ) -> Midrun:
        address, environment = kept_at(path), Environment(lease=lease)
        midrun = Midrun(address, agents=agents, key=key, outside=environment)
        return await stack.enter_async_context(midrun)

    return open_one


async def verify_all(path: Path) -> None:
    """Verify every journal of a store."""
    async with Midrun(kept_at(path)) as midrun:
        for row in (await midrun.store.list_runs(RunQuery(limit=500))).items:
            verdict = await midrun.verify(row.run)
            assert verdict, str(verdict)
