"""What tests of the runtime share: a place to open stores, and `verify` over all they hold."""

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
"""Seconds after which something that should have happened counts as never happening."""

LEASE = timedelta(seconds=30)
"""Long enough that no test loses a lease because the machine is slow."""


class Opener(Protocol):
    """Opens a `Midrun` on the test's own store; several share it, as processes would."""

    async def __call__(
        self, *agents: Agent, lease: timedelta = ..., key: bytes | None = ...
    ) -> Midrun: ...


@pytest.fixture
def path(kept: Path) -> Path:
    """Give the path that stands for the store of the test's runs."""
    return kept


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Opener]:
    """Give what opens a `Midrun`; afterwards every journal in the store is verified."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            yield _opener(stack, path)
        await verify_all(path)


def _opener(stack: AsyncExitStack, path: Path) -> Opener:
    async def open_one(
        *agents: Agent, lease: timedelta = LEASE, key: bytes | None = None
    ) -> Midrun:
        address, outside = kept_at(path), Environment(lease=lease)
        midrun = Midrun(address, agents=agents, key=key, outside=outside)
        return await stack.enter_async_context(midrun)

    return open_one


async def verify_all(path: Path) -> None:
    """Hold every journal of a store against the invariants."""
    async with Midrun(kept_at(path)) as midrun:
        for row in (await midrun.store.list_runs(RunQuery(limit=500))).items:
            verdict = await midrun.verify(row.run)
            assert verdict, str(verdict)
