"""Every word on the page is true while the worker is killed behind it.

The worker is another process, and is really killed. Nobody waits for its lease to run out: when
it is dead, the clock of all others is put forward. What the bar says is noted from the first
word to the last, and held against the journal up to the entry that it was drawn from.
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
from midrun.ports.environment import Outside
from midrun.runs.run import Run
from midrun.server import Tokens, app
from tests.browser import truth, worker
from tests.browser.bench import Bench, Site, flaws, later, listening
from tests.browser.clocks import Clock
from tests.browser.watching import SETTLED_MS, survives_a_lost_connection, survives_a_reload
from tests.support.processes import ROOT
from tests.unit.server.conftest import PEOPLE, token_of

pytestmark = [pytest.mark.once, pytest.mark.slow]

LOOK_MS = 5_000
"""How long the page trusts what it has seen of a run that is driven."""


LEAP = timedelta(seconds=40)
"""Longer than the lease of the worker, and short enough to be told in seconds."""


class Scene:
    """A page, and the worker behind it, which will not live long."""

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
        self._said = BufferedByteReceiveStream(process.stdout)

    @property
    def badge(self) -> Locator:
        """Where the run stands."""
        return self.bar.locator(".badge")

    async def worker_says(self, what: str) -> None:
        """Wait until the worker has come there."""
        assert (await self._said.receive_until(b"\n", 1000)).decode() == what

    async def presses(self, name: str) -> None:
        """Press one of the three buttons, not right after it has changed its meaning."""
        await later(self.page, SETTLED_MS)
        await self.bar.locator(f"#{name}").click()

    async def kill(self) -> None:
        """Kill the worker; it is gone when this returns, and its lease with it."""
        self.process.kill()
        await self.process.wait()
        self.clock.put_forward(LEAP)

    async def is_lost(self) -> None:
        """Wait until the page says that nobody hears from the worker."""
        await later(self.page, LOOK_MS)
        await expect(self.badge).to_contain_text("No word from the worker")
        await expect(self.bar.locator("#cancel")).to_contain_text("when the worker returns")
        await expect(self.page.locator("midrun-steps")).not_to_contain_text("Running")
        await expect(self.bar).not_to_contain_text("is still running")

    @asynccontextmanager
    async def another_worker(self) -> AsyncIterator[None]:
        """Have another worker, which gets things done."""
        outside = Outside(lease=timedelta(hours=6), clock=self.clock)
        async with Midrun(self.address, agents=[worker.poster()], outside=outside):
            yield

    async def told(self) -> list[str]:
        """Return all that the badge has said, which was all true."""
        return await truth.check(self.page, self.site.mid.store, self.run.id)

    async def is_there_again(self) -> None:
        """See that the page, which comes again and whose server comes back, shows the same."""
        await survives_a_lost_connection(self.page, self.run, self.site)
        await self.told()
        await survives_a_reload(self.page, self.run)
        await truth.listen(self.page)


@pytest.fixture
async def scene(bench: Bench, tmp_path: Path) -> AsyncIterator[Scene]:
    """Give a run whose worker, elsewhere, is in the middle of a call, and its page."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    command = [sys.executable, "-m", "tests.browser.worker", address]
    clock = Clock()
    async with AsyncExitStack() as stack:
        outside = Outside(clock=clock)
        opened = Midrun(address, agents=[worker.poster()], engine=None, outside=outside)
        mid = await stack.enter_async_context(opened)
        made = app(mid, auth=Tokens({token_of("olga"): PEOPLE["olga"]}))
        site = Site(mid, made, await stack.enter_async_context(listening(made)))
        run = await mid.start("poster", "Say hello", actor=PEOPLE["olga"])
        root = ROOT
        process = await stack.enter_async_context(await anyio.open_process(command, cwd=root))
        stack.callback(lambda: process.returncode is None and process.kill())
        page = await bench.page(site, f"/runs/{run.id}", clock=True, bare=True)
        seen = Scene(address, clock, site, run, page, process)
        await expect(seen.badge).to_be_visible()
        await truth.listen(page)
        await seen.worker_says("posting hello")
        await expect(seen.badge).to_contain_text("Running")
        yield seen
        await page.close()


async def test_killed_while_running(scene: Scene) -> None:
    """No word from the worker; then another finds the call, and nobody knows if it happened."""
    await scene.kill()
    await scene.is_lost()
    await expect(scene.bar).to_contain_text("it was Running")
    await scene.is_there_again()
    first = await scene.badge.inner_text()
    await later(scene.page, 3_000)
    await expect(scene.badge).not_to_have_text(first)  # it counts the seconds
    await expect(scene.badge).to_contain_text("for at least")  # it may be longer
    assert await flaws(scene.page) == []
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Check one call")
        await expect(scene.bar).to_contain_text("Did post go through?")
        assert await flaws(scene.page) == []
        await scene.is_there_again()
        await scene.bar.get_by_role("button", name="It did", exact=True).click()
        await expect(scene.badge).to_contain_text("Completed")
    told = await scene.told()
    assert [word for word in told if not word.startswith("No word")][-1] == "Completed"


async def test_killed_while_pausing(scene: Scene) -> None:
    """A pause that was asked for is never said to have happened before it has."""
    await scene.presses("pause")
    await expect(scene.badge).to_contain_text("Pausing by you")
    await scene.kill()
    await scene.is_lost()
    await expect(scene.bar).to_contain_text("it was Pausing")
    await scene.is_there_again()
    assert not any(word.startswith("Paused") for word in await scene.told())
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Paused by you")
    await expect(scene.bar.locator("#cancel")).to_contain_text(
        "1 call may or may not have happened"
    )
    await scene.told()


async def test_killed_while_paused(scene: Scene) -> None:
    """Nothing is lost with the process: what is paused stays so, and is resumed elsewhere."""
    await scene.run.pause(now=True, actor=PEOPLE["olga"])
    await expect(scene.badge).to_contain_text("Paused by you")
    await scene.kill()
    for _ in range(8):  # more than a look at a run that rests
        await later(scene.page, LOOK_MS)
    await expect(scene.badge).to_contain_text("Paused by you")
    await scene.presses("pause")
    await expect(scene.badge).to_contain_text("Queued")
    await expect(scene.bar).to_contain_text("no worker is there to take it")
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Completed")
    assert not any(word.startswith("No word") for word in await scene.told())


async def test_killed_while_cancelling(scene: Scene) -> None:
    """An undo that was cut short is not said to be done; the next worker does it again."""
    await scene.presses("cancel")
    await scene.page.get_by_role("button", name="Cancel and undo 1").click()
    await scene.worker_says("undoing")
    await expect(scene.badge).to_contain_text("Cancelling by you — undoing 1 of 1")
    await scene.kill()
    await scene.is_lost()
    await expect(scene.bar).to_contain_text("it was Cancelling")
    await scene.is_there_again()
    assert not any(word.startswith("Cancelled") for word in await scene.told())
    async with scene.another_worker():
        await expect(scene.badge).to_contain_text("Cancelled by you")
    report = scene.page.locator("midrun-report")
    await expect(report).to_contain_text('draft {"text":"hello"}')
    await scene.told()
