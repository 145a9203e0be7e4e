"""What tests of the page share: one Chromium, profiles like new, a real server.

Server, browser and test live on one event loop, so a test holds a tool at a gate, looks at the
page, opens the gate, and looks again. Nobody sleeps.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from playwright.async_api import async_playwright, expect

from tests.browser.bench import FLAGS, PATIENCE_S, Bench, Profiles
from tests.browser.stage import Stage
from tools.programs import find

expect.set_options(timeout=PATIENCE_S * 1000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a browser: it takes seconds, and the Python version is nothing to it."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("slow")
            item.add_marker("once")


@pytest.fixture(scope="session")
async def profiles() -> AsyncIterator[Profiles]:
    """Give those of this process's Chromium; without one every test of the page fails."""
    async with async_playwright() as driver:
        made = await driver.chromium.launch(executable_path=find(), args=FLAGS)
        yield Profiles(made)
        await made.close()


@pytest.fixture
async def bench(profiles: Profiles) -> AsyncIterator[Bench]:
    """Give what serves and opens pages; afterwards no script may have complained."""
    with anyio.fail_after(PATIENCE_S * 4):
        async with AsyncExitStack() as stack:
            made = Bench(profiles, stack)
            yield made
            assert not made.complaints


@pytest.fixture
async def stage(bench: Bench) -> AsyncIterator[Stage]:
    """Give a stage; what waits on it at the end is let go, so that nobody waits for it."""
    del bench  # only to be over before it
    made = Stage()
    yield made
    made.let_go()
