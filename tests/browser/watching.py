"""What tests of the run page say over and over."""

import re
from difflib import unified_diff
from typing import Final, Literal

from playwright.async_api import Locator, Page, expect

from midrun.ports.environment import Outside
from midrun.runs.run import Run
from tests.browser.bench import Bench, Site, comes_true, later
from tests.browser.stage import Stage, Turn, Use

PLAN: Final = Use(
    "plan", items=["Look around", "Write the memo", "Send it"], marks={"1": "running"}
)
IS_UP_TO_DATE: Final = """seq => {
  const {run, events, isLoading} = document.querySelector("midrun-run")?.store ?? {};
  return run?.seq === seq && events.at(-1)?.seq === seq && !isLoading;
}"""
PASSING: Final = re.compile(
    r"( ·)? ?(for )?(at least )?\b\d+ (s|min)\b( ·)?|\b\d+ seconds?\b|\d\d:\d\d:\d\d"
)
"""What is another at the next look: clocks, ages (at first there is none), what is left."""

GAPS: Final = re.compile(r"(?<=\S) {2,}")

SETTLED_MS: Final = 500
"""A button that has just changed its meaning takes no click for a little less than this."""


class Watched:
    """A run and a page that shows it."""

    def __init__(self, site: Site, run: Run, page: Page) -> None:
        self.site = site
        self.run = run
        self.page = page

    @property
    def path(self) -> str:
        """Where its page is."""
        return f"/runs/{self.run.id}"

    @property
    def badge(self) -> Locator:
        """Where the run stands."""
        return self.page.locator("midrun-controls .badge")

    def button(self, name: Literal["pause", "redirect", "cancel"]) -> Locator:
        """Return one of the three buttons, whatever it is called now."""
        return self.page.locator(f"midrun-controls #{name}")

    def action(self, name: str) -> Locator:
        """Return a button by what it says."""
        return self.page.get_by_role("button", name=name, exact=True)

    async def press(self, name: Literal["pause", "redirect", "cancel"]) -> None:
        """Press one of the three buttons, not right after it has changed its meaning."""
        await later(self.page, SETTLED_MS)
        await self.button(name).click()

    async def says(self, word: str) -> None:
        """Wait until the badge says `word`."""
        await expect(self.badge).to_contain_text(word)

    async def writes(self, text: str) -> None:
        """Open the composer, and write into it."""
        await self.button("redirect").click()
        await self.page.get_by_label("What should happen next?").fill(text)


async def watched(
    bench: Bench,
    stage: Stage,
    *turns: Turn,
    who: str = "olga",
    task: str = "Write a memo",
    bare: bool = False,
    dark: bool = False,
    outside: Outside | None = None,
    **options: object,
) -> Watched:
    """Start a run that plays `turns`, and open its page."""
    agent = stage.play(*turns, **options)  # type: ignore[arg-type]  # the agent checks them
    site = await bench.site(agent, outside=outside)
    run = await site.start("actor", task, by=who)
    page = await bench.page(site, f"/runs/{run.id}", who=who, clock=True, bare=bare, dark=dark)
    await expect(page.locator("midrun-controls .badge")).to_be_visible()
    return Watched(site, run, page)


async def at_tool(bench: Bench, stage: Stage, name: str = "slow", **options: object) -> Watched:
    """Open the page of a run whose tool is held at the gate "work"."""
    seen = await watched(bench, stage, [PLAN, Use(name, name="work")], "All done.", **options)  # type: ignore[arg-type]  # as `watched` takes them
    await stage.start("work").wait()
    await seen.says("Running")
    return seen


async def drawn(page: Page) -> str:
    """Return all that is drawn of the run, as those read it who do not see it."""
    text = await page.locator("midrun-run").aria_snapshot()
    lines = GAPS.sub(" ", PASSING.sub(" ", text)).splitlines()
    return "\n".join(line for line in lines if line.strip() not in {"", "- text:"})


async def survives_a_reload(page: Page, run: Run) -> None:
    """See that the page shows the same of the run as soon as it has come again.

    Raises:
        AssertionError: it shows something else; its text says what.
    """
    before = await _all_drawn(page, run)
    await page.reload()
    await _is_drawn_again(page, before)


async def survives_a_lost_connection(page: Page, run: Run, site: Site) -> None:
    """See that the page shows the same of the run once the server is there again.

    A run that is over has told all: there is no connection to lose.

    Raises:
        AssertionError: as `survives_a_reload`.
    """
    if (await run.view()).phase in {"completed", "cancelled"}:
        return
    before = await _all_drawn(page, run)
    await page.route("**/v1/**", lambda route: route.abort())
    site.app.close()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Connection lost")
    site.reopen()
    await page.unroute("**/v1/**")
    await _is_drawn_again(page, before)


async def _all_drawn(page: Page, run: Run) -> str:
    """Return what is drawn when the page knows all that there is to know."""
    seq = (await run.view()).seq
    await page.wait_for_function(IS_UP_TO_DATE, arg=seq)
    before = ""
    while before != (before := await drawn(page)):
        await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    return before


async def _is_drawn_again(page: Page, before: str) -> None:
    after = ""

    async def is_the_same() -> bool:
        nonlocal after
        after = await drawn(page)
        return after == before

    try:
        await comes_true(is_the_same)
    except TimeoutError:
        differs = unified_diff(before.splitlines(), after.splitlines(), lineterm="")
        raise AssertionError("\n".join(differs)) from None


def exactly(text: str) -> re.Pattern[str]:
    """Return what matches this text and no other, however it is spaced."""
    return re.compile(r"\s*" + r"\s*".join(map(re.escape, text.split())) + r"\s*")
