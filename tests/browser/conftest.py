"""Fixtures for tests of the page: one Chromium, clean profiles, a real server.

Server, browser and test share one event loop. A test holds a tool at a gate, checks the page,
opens the gate, and checks again; no test sleeps.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from playwright.async_api import async_playwright, expect

from midrun.server import feed_routes, run_updates
from tests.browser.harness import CHROMIUM_FLAGS, TIMEOUT_S, BrowserProfiles, Harness
from tests.browser.stage import Stage
from tools.programs import find

QUICK_POLL_S = 0.2

expect.set_options(timeout=TIMEOUT_S * 1000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here: each takes seconds, and none depends on the Python version."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("slow")
            item.add_marker("once")


@pytest.fixture(scope="session")
async def profiles() -> AsyncIterator[BrowserProfiles]:
    """Yield the profiles of one Chromium; without it every test here fails."""
    async with async_playwright() as driver:
        made = await driver.chromium.launch(executable_path=find(), args=CHROMIUM_FLAGS)
        yield BrowserProfiles(made)
        await made.close()


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server look often for facts that append no entry, so that no test waits."""
    for module in (run_updates, feed_routes):
        monkeypatch.setattr(module, "DRIVEN_POLL_S", QUICK_POLL_S)
    monkeypatch.setattr(run_updates, "RESTING_POLL_S", QUICK_POLL_S)


@pytest.fixture
async def harness(profiles: BrowserProfiles) -> AsyncIterator[Harness]:
    """Yield a harness; check afterwards that no script has failed."""
    with anyio.fail_after(TIMEOUT_S * 4):
        async with AsyncExitStack() as stack:
            made = Harness(profiles, stack)
            yield made
            assert not made.script_errors


@pytest.fixture
async def stage(harness: Harness) -> AsyncIterator[Stage]:
    """Yield a stage; open all its gates afterwards, so that the run can end."""
    del harness  # so that this fixture ends first
    made = Stage()
    yield made
    made.open_all_gates()
