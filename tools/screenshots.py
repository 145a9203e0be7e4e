"""Make docs/images: screenshots of the page in its main states, with a real server.

    make screenshots

The script clicks the same buttons as a person. The agent waits at gates while a screenshot is
taken. The server's clock starts in the past and is moved forward, so that calls have durations.
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
    """One server with one stage. Its clock starts `late` seconds in the past."""

    def __init__(self, harness: Harness, late: int) -> None:
        self.harness = harness
        self.stage = Stage()
        self._ahead = -late * 1_000_000

    async def site(self) -> Site:
        """Serve the agents of the screenshots."""
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

    async def pass_time_at(self, name: str, seconds: int) -> None:
        """Wait until the run is at the gate `name`, and move the clock by `seconds`."""
        await self.stage.start(name).wait()
        self._ahead += seconds * 1_000_000

    async def pass_gate(self, name: str, seconds: int) -> None:
        """Do as `pass_time_at`, then let the run continue from the gate."""
        await self.pass_time_at(name, seconds)
        self.stage.gate(name).set()

    async def save_screenshot(self, page: Page, name: str) -> None:
        """Write a screenshot of the page, once its transcript is visible."""
        if await page.locator("midrun-steps").count():
            await expect(page.locator("midrun-steps li").first).to_be_visible()
        await expect(page.locator("midrun-asks [inert]")).to_have_count(0)
        await page.mouse.move(0, 0)
        await page.evaluate("document.fonts.ready")
        path = IMAGES / f"{name}.png"
        await page.screenshot(path=path, animations="disabled", caret="hide")
        print(path.name, flush=True)


Scene = Callable[[Studio], Awaitable[None]]


async def open_run_page(
    studio: Studio, agent: str = "analyst", *, dark: bool = False, width: int = WIDTH
) -> tuple[Page, Run]:
    """Start a run and open its page."""
    site = await studio.site()
    run = await site.start(agent, TASKS.get(agent, TASK))
    page = await studio.harness.page(site, f"/runs/{run.id}", dark=dark, width=width)
    return page, run


def expect_badge(page: Page, text: str) -> Awaitable[None]:
    """Wait until the badge of the control bar contains `text`."""
    return expect(page.locator("midrun-controls .badge")).to_contain_text(text)


async def from_running_to_diff(studio: Studio) -> None:
    """Show running, pausing, paused, the composer, and the diff of a redirect."""
    page, run = await open_run_page(studio)
    await studio.pass_gate("crm_list", 14)
    await studio.pass_time_at("sql_query", 23)
    await page.reload()  # the page does not notice that the clock was moved
    await expect_badge(page, "Running")
    await studio.save_screenshot(page, "running")
    await page.get_by_role("button", name="Pause").click()
    await expect_badge(page, "Pausing")
    await studio.save_screenshot(page, "pausing")
    studio.stage.gate("sql_query").set()
    await expect_badge(page, "Paused")
    await studio.save_screenshot(page, "paused")
    await page.get_by_role("button", name="Redirect").click()
    await page.get_by_label("What should happen next?").fill(
        "Leave out Acme; they are leaving anyway."
    )
    await studio.save_screenshot(page, "redirect")
    await page.get_by_role("button", name="Resume with this").click()
    await studio.pass_time_at("figures", 0)
    await expect(page.locator("midrun-controls .diff")).to_contain_text("Leave out Acme")
    await expect(page.get_by_text("412 customers, of whom")).to_be_visible()
    await studio.save_screenshot(page, "diff")
    assert (await run.view()).phase == "running"


async def from_cancel_to_report(studio: Studio) -> None:
    """Show the preview of a cancel, and its report."""
    page, run = await open_run_page(studio)
    await studio.pass_gate("crm_list", 14)
    await studio.pass_gate("sql_query", 23)
    await studio.pass_gate("figures", 0)
    await studio.pass_gate("docs_create", 9)
    await studio.pass_time_at("sentence", 31)
    await page.reload()
    await expect_badge(page, "Running")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("button", name="Cancel and undo")).to_be_visible()
    await studio.save_screenshot(page, "cancel")
    studio.stage.gate("undo").set()
    await page.get_by_role("button", name="Cancel and undo").click()
    await run.until("cancelled")
    await expect_badge(page, "Cancelled")
    await page.evaluate("scrollTo(0, 0)")
    await studio.save_screenshot(page, "report")


async def shoot_approval(studio: Studio, name: str, width: int = WIDTH) -> None:
    """Show a run that waits for an approval."""
    page, _ = await open_run_page(studio, width=width)
    seconds = {"crm_list": 14, "sql_query": 23, "figures": 0, "docs_create": 9, "sentence": 31}
    for gate, duration in seconds.items():
        await studio.pass_gate(gate, duration)
    await expect_badge(page, "Waiting")
    await page.evaluate("scrollTo(0, 0)")
    await studio.save_screenshot(page, name)


async def waiting(studio: Studio) -> None:
    """Show a run that waits for an approval, on a wide screen."""
    await shoot_approval(studio, "waiting")


async def phone(studio: Studio) -> None:
    """Show the same on a phone."""
    await shoot_approval(studio, "phone", PHONE)


async def dark(studio: Studio) -> None:
    """Show a held topic during a side question, in dark mode."""
    page, run = await open_run_page(studio, "scholar", dark=True)
    await studio.pass_time_at("reading", 95)
    await page.reload()  # the page does not notice that the clock was moved
    await run.say("What was that paper from Tuesday?", urgency="now", actor="olga")
    await studio.pass_time_at("answering", 0)
    await expect(page.get_by_text("Held topics")).to_be_visible()
    await expect(page.get_by_text("It was the one by Sato")).to_be_visible()
    await studio.save_screenshot(page, "dark")


async def cap(studio: Studio) -> None:
    """Show a run that is paused at its cap."""
    page, _ = await open_run_page(studio, "frugal")
    await studio.pass_gate("crm_list", 14)
    await expect_badge(page, "Paused at the turn cap")
    await studio.save_screenshot(page, "cap")


async def run_list(studio: Studio) -> None:
    """Show the list with runs in several phases."""
    site = await studio.site()
    await (await site.start("sorter", "Sort the mail of this morning")).until("completed")
    await site.start("crawler", "Crawl competitor pricing")
    await studio.pass_time_at("crawl", 75)
    paused = await site.start("analyst", TASK)
    await studio.pass_gate("crm_list", 14)
    await studio.pass_time_at("sql_query", 23)
    await paused.pause(actor="olga")
    await (await site.start("frugal", "Renewal forecast, Q4")).until("paused")
    await (await site.start("clerk", "Answer the customers of last night")).until("waiting")
    page = await studio.harness.page(site)
    await expect(page.locator("tbody tr")).to_have_count(5)
    await studio.save_screenshot(page, "list")


SCENES: Final[dict[Scene, int]] = {
    from_running_to_diff: 37,
    from_cancel_to_report: 77,
    waiting: 77,
    phone: 77,
    dark: 95,
    cap: 14,
    run_list: 112,
}
"""Scene → seconds by which its clock is moved forward."""


async def main() -> int:
    """Make all screenshots; return 1 if the page's scripts reported errors."""
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
