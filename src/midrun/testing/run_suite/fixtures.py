"""Fixtures of the run suite: an opener of handles, controllable tools, an actor."""

from collections.abc import AsyncIterator
from typing import ClassVar, Protocol

import pytest

from midrun.agents.agent import Agent
from midrun.core.values import Actor
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.values import FeedEntry
from midrun.testing.controllable_tools import ControllableTools

OLGA = Actor(name="olga", role="operator")
"""The actor of all controls. Over HTTP it must be the owner of the token."""


class OpenHandle(Protocol):
    """Opens a handle for runs of these agents, on the store of one test."""

    async def __call__(self, *agents: Agent) -> AnyMidrun: ...


class RunSuiteFixtures:
    """Fixtures of all tests of the run suite."""

    checkpoint_key: ClassVar[bytes | None] = None  # of the handles that `opened` opens

    @pytest.fixture
    def opened(self) -> OpenHandle:
        """Return the opener of the handle under test; override it."""
        raise NotImplementedError

    @pytest.fixture
    async def stage(self, opened: OpenHandle) -> AsyncIterator[ControllableTools]:
        """Yield controllable tools; open all their gates at the end."""
        del opened  # so that this fixture ends first
        made = ControllableTools()
        yield made
        made.open_all_gates()


async def list_entry_kinds(run: AnyRun) -> list[str]:
    """Return the kinds of all entries of a finished run."""
    return [item.kind async for item in run.feed() if isinstance(item, FeedEntry)]
