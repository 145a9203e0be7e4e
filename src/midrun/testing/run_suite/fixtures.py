"""What the tests of a handle start from: a way to open one, a stage, and somebody who asks."""

from collections.abc import AsyncIterator
from typing import ClassVar, Protocol

import pytest

from midrun.agents.agent import Agent
from midrun.core.values import Actor
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.values import Happened
from midrun.testing.controllable_tools import Stage

OLGA = Actor(name="olga", role="operator")
"""Who asks. Over HTTP this must be whom the token belongs to."""


class Opened(Protocol):
    """Opens a handle of runs of these agents, on a store of the test's own."""

    async def __call__(self, *agents: Agent) -> AnyMidrun: ...


class Setting:
    """The fixtures that every part of the suite is given."""

    checkpoint_key: ClassVar[bytes | None] = None  # of what `opened` opens

    @pytest.fixture
    def opened(self) -> Opened:
        """Give what opens the handle under test."""
        raise NotImplementedError

    @pytest.fixture
    async def stage(self, opened: Opened) -> AsyncIterator[Stage]:
        """Give a stage; at the end nobody is left waiting on it."""
        del opened  # only to be over before it
        made = Stage()
        yield made
        made.release_all()


async def kinds(run: AnyRun) -> list[str]:
    """Return the kinds of the entries that a run which has ended consists of."""
    return [item.kind async for item in run.feed() if isinstance(item, Happened)]
