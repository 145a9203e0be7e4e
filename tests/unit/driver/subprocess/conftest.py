"""One zygote for the tests of a module; a test that kills or freezes it starts its own.

All tests run twice: with the facilities of Linux, and with only those that macOS has, too.
"""

from collections.abc import AsyncIterator, Iterator

import pytest

from midrun.driver.subprocess.zygote_client import Zygote
from midrun.ports import platform


@pytest.fixture(scope="module", params=["Linux", "macOS"], autouse=True)
def platform_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the tests of the module with the facilities of this platform."""
    actual, name = platform.CURRENT, str(request.param)
    platform.CURRENT = platform.PLATFORMS[name]
    yield name
    platform.CURRENT = actual


@pytest.fixture(scope="module")
async def zygote(platform_name: str) -> AsyncIterator[Zygote]:
    """Return a zygote that is shared by the tests of the module."""
    del platform_name
    async with Zygote() as zygote:
        yield zygote
