"""One zygote for the tests of a module; a test that kills or freezes it starts its own."""

from collections.abc import AsyncIterator

import pytest

from midrun.driver.subprocess.zygote_client import Zygote


@pytest.fixture(scope="module")
async def zygote() -> AsyncIterator[Zygote]:
    """Return a zygote that is shared by the tests of the module."""
    async with Zygote() as zygote:
        yield zygote
