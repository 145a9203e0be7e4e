"""Every text on the page is true while the worker behind it is killed.

The worker is another process, and is really killed. No test waits for its lease to expire:
once it is dead, the clock of all other processes is advanced. Everything the bar shows is
recorded, and compared with the journal up to the entry that it was rendered from.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from playwright.async_api import Locator, Page, expect

from midrun import Midrun
from midrun.ports.environment import Environment
from midrun.runs.run import Run
from midrun.server import Tokens, app
from midrun.text.status import WORKER_LOST_WORD
from tests.browser import bar_recorder, worker
from tests.browser.harness import (
    Harness,
    Site,
    advance_clock,
    find_violations,
    serve_app,
    wait_until,
)
from tests.browser.run_page import (
    PRESS_DELAY_MS,
    check_reconnect,
    check_reload,
    open_run_page,
)
from tests.browser.server_clock import Clock
from tests.browser.stage import Stage
from tests.support.paths import ROOT
from tests.unit.server.conftest import ACTORS, make_token

pytestmark = [pytest.mark.once, pytest.mark.slow]

LEAP = timedelta(seconds=40)
"""Longer than the lease of the worker, and short enough to be told in seconds."""


class Scene:
    """A page and the worker process behind it."""

    def __init__(
        self, address: str, clock: Clock, site: Site, run: Run, page: Page, process: Process
    ) -> None:
        assert process.stdout is not None
        self.address = address
        self.clock = clock
        self.site = site
        self.run = run
        self.page = page
        self.bar = page.locator("midrun-controls")
        self.process = process
        self._stdout = BufferedByteReceiveStream(process.stdout)

    @property
    def badge(self) -> Locator:
        """The badge of the control bar."""
        return self.bar.locator(".badge")

    async def expect_line(self, line: str) -> None:
        """Wait until the worker has printed this line."""
        assert (await self._stdout.receive_until(b"\n", 1000)).decode() == line

    async def press(self, name: str) -> None:
        """Press one of the four buttons once it accepts clicks."""
        await advance_clock(self.page, PRESS_DELAY_MS)
        await self.bar.locator(f"#{name}").click()

    async def kill(self) -> None:
        """Kill the worker; when this returns, its lease has expired."""
        self.process.kill()
        await self.process.wait()
        self.clock.advance(LEAP)

    async def expect_lost(self) -> None:
        """Wait until the page says that the worker is silent."""
        await expect(self.badge).to_contain_text(WORKER_LOST_WORD)
        await expect(self.bar.locator("#cancel")).to_contain_text("when the worker returns")
        await expect(self.page.locator("midrun-steps")).not_to_contain_text("Running")
        await expect(self.bar).not_to_contain_text("is still running")

    @asynccontextmanager
    async def another_worker(self) -> AsyncIterator[None]:
        """Start another worker, which completes its calls."""
        outside = Environment(lease=timedelta(hours=6), clock=self.clock)
        async with Midrun(self.address, agents=[worker.poster()], outside=outside):
            yield

    async def check_bar(self) -> list[str]:
        """Check all recorded texts; return the badges."""
        return await bar_recorder.check_recorded(self.page, self.site.mid.store, self.run.id)

    async def check_page_again(self) -> None:
        """Check the page after a reload and after a lost connection."""
        await check_reconnect(self.page, self.run, self.site)
        await self.check_bar()
        await check_reload(self.page, self.run)
        await bar_recorder.record_bar(self.page)


@pytest.fixture
async def scene(harness: Harness, tmp_path: Path) -> AsyncIterator[Scene]:
    """Yield a run whose worker is in the middle of a call, and its page."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    command = [sys.executable, "-m", "tests.browser.worker", address]
    clock = Clock()
    async with AsyncExitStack() as stack:
        outside = Environment(clock=clock)
        opened = Midrun(address, agents=[worker.poster()], engine=None, outside=outside)
        mid = await stack.enter_async_context(opened)
        made = app(mid, auth=Tokens({make_token("olga"): ACTORS["olga"]}))
        site = Site(mid, made, await stack.enter_async_context(serve_app(made)))
        run = await mid.start("poster", "Say hello", actor=ACTORS["olga"])
        root = ROOT
        process = await stack.enter_async_context(await anyio.open_process(command, cwd=root))
        stack.callback(lambda: process.returncode is None and process.kill())
        page = await harness.page(site, f"/runs/{run.id}", clock=True, bypass_csp=True)
        ui = Scene(address, clock, site, run, page, process)
        await expect(ui.badge).to_be_visible()
        await bar_recorder.record_bar(page)
        await ui.expect_line("posting hello")
        await expect(ui.badge).to_contain_text("Running")
        yield ui
        await page.close()


async def test_killed_while_running(scene: Scene) -> None:
    """The page shows the silence; the next worker finds the call, whose outcome is unknown."""
    await scene.kill()
    await scene.expect_lost()
    await expect(scene.bar).to_contain_text("it was Running")
    await scene.check_page_again()
    first = await scene.badge.inner_text()
    await advance_clock(scene.page, 3_000)
    await expect(scene.badge).not_to_have_text(first)  # it counts the seconds
    await expect(scene.badge).to_contain_text("for at least")  # it may be longer
    assert await find_violations(scene.page) == []
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Check one call")
        await expect(scene.bar).to_contain_text("Did Post: text “hello” go through?")
        assert await find_violations(scene.page) == []
        await scene.check_page_again()
        await scene.bar.get_by_role("button", name="It did", exact=True).click()
        await expect(scene.badge).to_contain_text("Completed")
    badges = await scene.check_bar()
    assert [word for word in badges if not word.startswith(WORKER_LOST_WORD)][-1] == "Completed"


async def test_killed_while_pausing(scene: Scene) -> None:
    """A requested pause is never shown as done before it is."""
    await scene.press("pause")
    await expect(scene.badge).to_contain_text("Pausing, requested by you")
    await scene.kill()
    await scene.expect_lost()
    await expect(scene.bar).to_contain_text("it was Pausing")
    await scene.check_page_again()
    assert not any(word.startswith("Paused") for word in await scene.check_bar())
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Paused by you")
    assert len((await scene.run.view()).controls["cancel"].unsure) == 1
    await scene.check_bar()


async def test_killed_while_paused(scene: Scene) -> None:
    """A paused run stays paused, and is resumed by another worker."""
    await scene.run.pause(now=True, actor=ACTORS["olga"])
    await expect(scene.badge).to_contain_text("Paused by you")
    await scene.kill()
    await expect(scene.badge).to_contain_text("Paused by you")
    await scene.press("pause")
    await expect(scene.badge).to_contain_text("Queued")
    await expect(scene.bar).to_contain_text("no worker is available")
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Completed")
    assert not any(word.startswith(WORKER_LOST_WORD) for word in await scene.check_bar())


async def test_killed_while_cancelling(scene: Scene) -> None:
    """An interrupted undo is not shown as done; the next worker repeats it."""
    await scene.press("cancel")
    await scene.page.get_by_role("button", name="Cancel and undo 1").click()
    await scene.expect_line("undoing")
    await expect(scene.badge).to_contain_text("Cancelling, requested by you — undoing 1 of 1")
    await scene.kill()
    await scene.expect_lost()
    await expect(scene.bar).to_contain_text("it was Cancelling")
    await scene.check_page_again()
    assert not any(word.startswith("Cancelled") for word in await scene.check_bar())
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Cancelled by you")
    report = scene.page.locator("midrun-report")
    await expect(report).to_contain_text("Draft: text “hello”")
    await scene.check_bar()


async def test_a_deleted_run_says_who_deleted_it_and_has_no_buttons(
    harness: Harness, stage: Stage
) -> None:
    """The feed of a finished run has ended, so the page asks when it is looked at."""
    ui = await open_run_page(harness, stage, "Done.")
    await ui.expect_badge("Completed")
    await ui.run.delete("as ann asked", actor="operator:olga")
    told = ui.page.get_by_role("alert")

    async def is_told() -> bool:
        await ui.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        return await told.count() > 0

    await wait_until(is_told)
    await expect(told).to_contain_text("Deleted by olga on")
    await expect(told).to_contain_text("as ann asked")
    await expect(ui.page.locator("midrun-run").get_by_role("button")).to_have_count(0)
    await told.get_by_role("link", name="All runs").click()
    await expect(ui.page.locator("midrun-runs")).to_contain_text("No runs yet.")
