"""The time limit of these tests."""

from collections.abc import AsyncIterator

import anyio
import pytest

TIME_LIMIT_SECONDS = 60


@pytest.fixture
async def _time_limit() -> AsyncIterator[None]:
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        yield
