"""Fixtures for tests of the driver."""

from collections.abc import AsyncIterator

import pytest

from midrun.testing.controllable_tools import ControllableTools
from tests.unit.driver.driver_context import DriverParts, open_driver_parts


@pytest.fixture
async def parts() -> AsyncIterator[DriverParts]:
    """Return a driver context with a store in memory."""
    async with open_driver_parts() as parts:
        yield parts


@pytest.fixture
def tools() -> ControllableTools:
    """Return tools that wait for the test."""
    return ControllableTools()
