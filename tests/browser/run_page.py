"""Helpers for tests of the run page."""

import re
from collections.abc import Sequence
from difflib import unified_diff
from typing import Final, Literal, TypeAlias

from playwright.async_api import Locator, Page, expect

from midrun.ports.environment import Environment
from midrun.runs.run import Run
from tests.browser.harness import Harness, Site, advance_clock, wait_until
from tests.browser.stage import Stage, Turn, Use

ButtonName: TypeAlias = Literal["pause", "redirect", "ask", "cancel"]

PLAN: Final = Use(
    "plan", items=["Look around", "Write the memo", "Send it"], marks={"1": "running"}
)
IS_UP_TO_DATE: Final = """seq => {
  const {run, events} = document.querySelector("midrun-run")?.store ?? {};
  return run?.seq === seq && events.at(-1)?.seq === seq;
}"""
HOLD_FEED: Final = """() => {
  const decode = TextDecoder.prototype.decode;
  let held = "";
  TextDecoder.prototype.decode = function (...args) {
    held += decode.apply(this, args);
    return "";
  };
  globalThis.releaseFeed = () => {
    TextDecoder.prototype.decode = function (...args) {
      const text = held + decode.apply(this, args);
      held = "";
      return text;
    };
  };
}"""
CHANGING_TEXT: Final = re.compile(
    r"( ·)? ?(for )?(at least )?\b\d+ (s|min)\b( ·)?|\b\d+ seconds?\b|\d\d:\d\d:\d\d"
)
"""Texts that change with time: clocks, ages (none in the first second), countdowns."""

SPACES: Final = re.compile(r"(?<=\S) {2,}")

PRESS_DELAY_MS: Final = 500
"""A button that has just changed its meaning ignores clicks for a little less than this."""


class RunPage:
    """A run and a page that shows it."""

    def __init__(self, site: Site, run: Run, page: Page) -> None:
        self.site = site
        self.run = run
        self.page = page

    @property
    def path(self) -> str:
        """The path of the page."""
        return f"/runs/{self.run.id}"

    @property
    def badge(self) -> Locator:
        """The badge of the control bar."""
        return self.page.locator("midrun-controls .badge")

    def button(self, name: ButtonName) -> Locator:
        """Return one of the four buttons, whatever its label is."""
        return self.page.locator(f"midrun-controls #{name}")

    def button_named(self, name: str) -> Locator:
        """Return a button by its label."""
        return self.page.get_by_role("button", name=name, exact=True)

    async def press(self, name: ButtonName) -> None:
        """Press one of the four buttons once it accepts clicks."""
        await advance_clock(self.page, PRESS_DELAY_MS)
        await self.button(name).click()

    async def show_every_entry(self) -> None:
        """Show the journal in the timeline: every entry with its number, newest first."""
        await self.page.locator("midrun-timeline summary").click()
        await self.page.get_by_role("button", name="Every entry").click()

    async def expect_badge(self, word: str) -> None:
        """Wait until the badge contains `word`."""
        await expect(self.badge).to_contain_text(word)

    async def type_instruction(self, text: str) -> None:
        """Go to the composer and type an instruction."""
        await self.button("redirect").click()
        await self.page.get_by_label("What should happen next?").fill(text)

    async def type_question(self, text: str) -> None:
        """Go to the composer and type a side question."""
        await self.button("ask").click()
        await self.page.get_by_label("What do you want to know?").fill(text)


async def open_run_page(
    harness: Harness,
    stage: Stage,
    *turns: Turn,
    who: str = "olga",
    task: str = "Write a memo",
    bypass_csp: bool = False,
    dark: bool = False,
    outside: Environment | None = None,
    **options: object,
) -> RunPage:
    """Start a run that plays `turns`, and open its page."""
    agent = stage.play(*turns, **options)  # type: ignore[arg-type]  # the agent checks them
    site = await harness.site(agent, outside=outside)
    run = await site.start("actor", task, by=who)
    page = await harness.page(
        site, f"/runs/{run.id}", who=who, clock=True, bypass_csp=bypass_csp, dark=dark
    )
    await expect(page.locator("midrun-controls .badge")).to_be_visible()
    return RunPage(site, run, page)


async def open_at_tool(
    harness: Harness,
    stage: Stage,
    name: str = "slow",
    turns: Sequence[Turn] = (),
    **options: object,
) -> RunPage:
    """Open the page of a run whose tool is held at the gate "work"; then it plays `turns`."""
    turn: Turn = [PLAN, Use(name, name="work")]
    ui = await open_run_page(harness, stage, turn, *turns, "All done.", **options)  # type: ignore[arg-type]  # checked there
    await stage.start("work").wait()
    await ui.expect_badge("Running")
    return ui


async def hold_feed(page: Page) -> None:
    """Keep everything that the feed brings from the page; requests are still answered."""
    await page.evaluate(HOLD_FEED)


async def release_feed(page: Page) -> None:
    """Give the page what was held, with the next event of its feed."""
    await page.evaluate("releaseFeed()")


async def read_text(page: Page) -> str:
    """Return the accessibility tree of the run as text, without times."""
    text = await page.locator("midrun-run").aria_snapshot()
    lines = SPACES.sub(" ", CHANGING_TEXT.sub(" ", text)).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip() not in {"", "- text:"})


async def check_reload(page: Page, run: Run) -> None:
    """Check that the page shows the same after a reload.

    Raises:
        AssertionError: it shows something else; the message is a diff.
    """
    before = await _read_settled(page, run)
    await page.reload()
    await _expect_text(page, before)


async def check_reconnect(page: Page, run: Run, site: Site) -> None:
    """Check that the page shows the same after a lost connection.

    The feed of a finished run has ended, so there is no connection to lose.

    Raises:
        AssertionError: as `check_reload`.
    """
    if (await run.view()).phase in {"completed", "cancelled"}:
        return
    before = await _read_settled(page, run)
    await page.route("**/v1/**", lambda route: route.abort())
    site.app.close()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Connection lost")
    site.reopen()
    await page.unroute("**/v1/**")
    await _expect_text(page, before)


async def _read_settled(page: Page, run: Run) -> str:
    """Wait until the page is up to date and stops changing; return its text."""
    seq = (await run.view()).seq
    await page.wait_for_function(IS_UP_TO_DATE, arg=seq)
    before = ""
    while before != (before := await read_text(page)):
        await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    return before


async def _expect_text(page: Page, before: str) -> None:
    after = ""

    async def is_the_same() -> bool:
        nonlocal after
        after = await read_text(page)
        return after == before

    try:
        await wait_until(is_the_same)
    except TimeoutError:
        differs = unified_diff(before.splitlines(), after.splitlines(), lineterm="")
        raise AssertionError("\n".join(differs)) from None


def match_text(text: str) -> re.Pattern[str]:
    """Return a pattern that matches exactly this text, with any spacing."""
    return re.compile(r"\s*" + r"\s*".join(map(re.escape, text.split())) + r"\s*")
