"""Draw docs/images: the page in its main states, from a real server in a real browser.

    make screenshots

Every picture is reached by pressing what a person would press. An agent that waits at gates is
held where the picture is taken; the server's clock starts in the past, so that work takes time.
"""

import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
from playwright.async_api import Page, async_playwright, expect

from midrun.core.ids import Micros
from midrun.ports.environment import Environment, read_wall_clock
from midrun.runs.run import Run
from tests.browser.harness import CHROMIUM_FLAGS, TIMEOUT_S, BrowserProfiles, Harness, Site
from tests.browser.memo_agent import TASK, memo_agent
from tests.browser.stage import Hold, Stage, Turn, Use
from tools.programs import find

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
WIDTH: Final = 1100
PHONE: Final = 390

TASKS: Final = {"scholar": "Literature synthesis on battery recycling"}

SYNTHESIS: Final[tuple[Turn, ...]] = (
    Use(
        "plan",
        items=["Collect the papers", "Read them", "Compare the yields", "Write the synthesis"],
        marks={"1": "done", "2": "running"},
    ),
    ["Eleven of the fourteen papers recycle with acid. Their yields ", Hold("reading"), "."],
    ["It was the one by Sato on direct recycling: ", Hold("answering"), "chapter 3."],
    "Done.",
)


class Studio:
    """One server with one stage, whose clock is `late`: by the picture it has caught up."""

    def __init__(self, harness: Harness, late: int) -> None:
        self.harness = harness
        self.stage = Stage()
        self._ahead = -late * 1_000_000

    async def site(self) -> Site:
        """Serve the agents of the pictures."""
        play = self.stage.play
        outside = Environment(clock=self._clock, lease=timedelta(hours=1))
        return await self.harness.site(
            memo_agent(self.stage),
            memo_agent(self.stage, name="frugal", steps=3),
            play(Use("slow", name="crawl"), "Done.", name="crawler"),
            play(Use("ask", question="Refund order 7, 500 $?"), "Done.", name="clerk"),
            play("Sorted.", name="sorter"),
            play(*SYNTHESIS, name="scholar"),
            outside=outside,
        )

    def _clock(self) -> Micros:
        return Micros(read_wall_clock() + self._ahead)

    async def passed(self, name: str, seconds: int) -> None:
        """Wait until the run has come to the gate `name`, and has been there for a while."""
        await self.stage.start(name).wait()
        self._ahead += seconds * 1_000_000

    async def through(self, name: str, seconds: int) -> None:
        """Let the run go on from the gate `name`, after a while."""
        await self.passed(name, seconds)
        self.stage.gate(name).set()

    async def shot(self, page: Page, name: str, *, whole: bool = False) -> None:
        """Take a picture of the page as it is now, with what happened until then."""
        if await page.locator("midrun-timeline").count():
            await expect(page.locator("midrun-timeline li").first).to_be_visible()
        await page.mouse.move(0, 0)
        await page.evaluate("document.fonts.ready")
        path = IMAGES / f"{name}.png"
        await page.screenshot(path=path, full_page=whole, animations="disabled", caret="hide")
        print(path.name, flush=True)


Scene = Callable[[Studio], Awaitable[None]]


async def opened(
    studio: Studio, agent: str = "analyst", *, dark: bool = False, width: int = WIDTH
) -> tuple[Page, Run]:
    """Start a run and open its page."""
    site = await studio.site()
    run = await site.start(agent, TASKS.get(agent, TASK))
    page = await studio.harness.page(site, f"/runs/{run.id}", dark=dark, width=width)
    return page, run


def state(page: Page, text: str) -> Awaitable[None]:
    """Wait for the badge of the bar."""
    return expect(page.locator("midrun-controls .badge")).to_contain_text(text)


async def from_running_to_diff(studio: Studio) -> None:
    """Running, pausing, paused, the composer, and what the redirect changed."""
    page, run = await opened(studio)
    await studio.through("crm_list", 14)
    await studio.passed("sql_query", 23)
    await page.reload()  # the clock was moved, which nobody tells a page
    await state(page, "Running")
    await studio.shot(page, "running")
    await page.get_by_role("button", name="Pause").click()
    await state(page, "Pausing")
    await studio.shot(page, "pausing")
    studio.stage.gate("sql_query").set()
    await state(page, "Paused")
    await studio.shot(page, "paused")
    await page.get_by_role("button", name="Redirect").click()
    await page.get_by_label("What should happen next?").fill(
        "Leave out Acme; they are leaving anyway."
    )
    await studio.shot(page, "redirect")
    await page.get_by_role("button", name="Resume with this").click()
    await studio.passed("figures", 0)
    await expect(page.locator("midrun-controls .diff")).to_contain_text("Leave out Acme")
    await expect(page.get_by_text("412 customers, of whom")).to_be_visible()
    await studio.shot(page, "diff")
    assert (await run.view()).phase == "running"


async def from_cancel_to_report(studio: Studio) -> None:
    """The sheet that says what a cancel will undo, and the report of what it did."""
    page, run = await opened(studio)
    await studio.through("crm_list", 14)
    await studio.through("sql_query", 23)
    await studio.through("figures", 0)
    await studio.through("docs_create", 9)
    await studio.passed("sentence", 31)
    await page.reload()
    await state(page, "Running")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("button", name="Cancel and undo")).to_be_visible()
    await studio.shot(page, "cancel", whole=True)
    studio.stage.gate("undo").set()
    await page.get_by_role("button", name="Cancel and undo").click()
    await run.until("cancelled")
    await state(page, "Cancelled")
    await studio.shot(page, "report", whole=True)


async def asked(studio: Studio, name: str, width: int = WIDTH) -> None:
    """A person has to decide."""
    page, _ = await opened(studio, width=width)
    seconds = {"crm_list": 14, "sql_query": 23, "figures": 0, "docs_create": 9, "sentence": 31}
    for gate, passed in seconds.items():
        await studio.through(gate, passed)
    await state(page, "Waiting")
    await page.evaluate("scrollTo(0, 0)")
    await studio.shot(page, name)


async def waiting(studio: Studio) -> None:
    """Somebody's approval is needed."""
    await asked(studio, "waiting")


async def phone(studio: Studio) -> None:
    """The same in somebody's pocket."""
    await asked(studio, "phone", PHONE)


async def dark(studio: Studio) -> None:
    """A thought is held while a side question is answered; at night."""
    page, run = await opened(studio, "scholar", dark=True)
    await studio.passed("reading", 95)
    await page.reload()  # the clock was moved, which nobody tells a page
    await run.say("What was that paper from Tuesday?", urgency="now", actor="olga")
    await studio.passed("answering", 0)
    await expect(page.get_by_text("Held topics")).to_be_visible()
    await expect(page.get_by_text("It was the one by Sato")).to_be_visible()
    await studio.shot(page, "dark")


async def capped(studio: Studio) -> None:
    """A run that has come to its cap."""
    page, _ = await opened(studio, "frugal")
    await studio.through("crm_list", 14)
    await state(page, "Paused at the step cap")
    await studio.shot(page, "cap")


async def listed(studio: Studio) -> None:
    """The list, with something of everything."""
    site = await studio.site()
    await (await site.start("sorter", "Sort the mail of this morning")).until("completed")
    await site.start("crawler", "Crawl competitor pricing")
    await studio.passed("crawl", 75)
    paused = await site.start("analyst", TASK)
    await studio.through("crm_list", 14)
    await studio.passed("sql_query", 23)
    await paused.pause(actor="olga")
    await (await site.start("frugal", "Renewal forecast, Q4")).until("paused")
    await (await site.start("clerk", "Answer the customers of last night")).until("waiting")
    page = await studio.harness.page(site)
    await expect(page.locator("tbody tr")).to_have_count(5)
    await studio.shot(page, "list")


SCENES: Final[dict[Scene, int]] = {
    from_running_to_diff: 37,
    from_cancel_to_report: 77,
    waiting: 77,
    phone: 77,
    dark: 95,
    capped: 14,
    listed: 112,
}
"""What is drawn, and how many seconds of work come before it."""


async def main() -> int:
    """Draw every picture; tell whether the page's scripts had anything to complain of."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    expect.set_options(timeout=TIMEOUT_S * 1000)
    script_errors: list[str] = []
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=find(), args=CHROMIUM_FLAGS)
        for scene, late in SCENES.items():
            async with AsyncExitStack() as stack:
                studio = Studio(Harness(BrowserProfiles(browser), stack), late)
                stack.callback(studio.stage.open_all_gates)
                await scene(studio)
                script_errors += studio.harness.script_errors
        await browser.close()
    for complaint in script_errors:
        print(complaint, file=sys.stderr)
    return int(bool(script_errors))


if __name__ == "__main__":
    sys.exit(anyio.run(main))
