"""A time limit for the tests of redaction that drive whole runs."""

from collections.abc import AsyncIterator

import anyio
import pytest


@pytest.fixture
async def time_limit() -> AsyncIterator[None]:
    """Cancel a test after a minute."""
    with anyio.fail_after(60):
        yield
