"""One zygote for the tests of a module; those that harm theirs start their own."""

from collections.abc import AsyncIterator

import pytest

from midrun.driver.subprocess.zygote_client import Zygote


@pytest.fixture(scope="module")
async def zygote() -> AsyncIterator[Zygote]:
    """A zygote that has started nothing yet."""
    async with Zygote() as zygote:
        yield zygote
