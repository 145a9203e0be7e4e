"""Following: at the end of the steps the end stays in sight; else the page stands still."""

import pytest
from playwright.async_api import Page, expect

from tests.browser.bench import Bench, comes_true
from tests.browser.stage import Hold, Stage, Turn
from tests.browser.watching import Watched, watched

pytestmark = pytest.mark.once

LONG = "One line of many.\n" * 25
"""Long enough that it, twice, does not fit above the bar; once, it does."""

UNCOVERED = """() => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const bar = run.querySelector("midrun-controls");
  const steps = run.querySelector("midrun-steps").shadowRoot;
  const newest = [...steps.querySelectorAll("[data-turn]")].at(-1);
  return newest.getBoundingClientRect().bottom <= bar.getBoundingClientRect().top;
}"""

TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

TURN: Turn = ["So.", Hold("zero"), LONG, Hold("first"), LONG, "The last line.", Hold("second")]


async def spoken(bench: Bench, stage: Stage) -> Watched:
    """Open the page of a run that has said as much as fits."""
    seen = await watched(bench, stage, TURN, "Done.")
    await stage.start("zero").wait()
    await expect(seen.page.locator("midrun-steps")).to_contain_text("So.")
    stage.gate("zero").set()
    await stage.start("first").wait()
    await expect(seen.page.locator("midrun-steps")).to_contain_text("One line of many.")
    return seen


async def says_more(seen: Watched, stage: Stage) -> None:
    """Let the agent say the second half."""
    stage.gate("first").set()
    await stage.start("second").wait()
    await expect(seen.page.locator("midrun-steps")).to_contain_text("The last line.")


async def is_uncovered(page: Page) -> bool:
    """Tell whether the newest words lie above the bar."""
    return await page.evaluate(UNCOVERED) is True


async def test_new_words_are_seen_above_the_bar(bench: Bench, stage: Stage) -> None:
    """Whoever reads along need not scroll."""
    seen = await spoken(bench, stage)
    await comes_true(lambda: is_uncovered(seen.page))
    await says_more(seen, stage)
    await expect(seen.page.get_by_text("The last line.").last).to_be_in_viewport()
    await comes_true(lambda: is_uncovered(seen.page))
    assert await seen.page.evaluate("scrollY") > 0


async def test_whoever_comes_on_a_phone_reads_along(bench: Bench, stage: Stage) -> None:
    """Also where the newest words were below the bar from the first."""
    site = await bench.site(stage.play(TURN, "Done."))
    run = await site.start()
    stage.gate("zero").set()
    await stage.start("first").wait()
    page = await bench.page(site, f"/runs/{run.id}", width=390, height=500)
    seen = Watched(site, run, page)
    await expect(page.get_by_role("heading", level=1)).not_to_be_in_viewport()
    await says_more(seen, stage)
    await expect(page.get_by_text("The last line.").last).to_be_in_viewport()
    await comes_true(lambda: is_uncovered(page))


async def test_whoever_scrolled_away_is_left_where_they_are(bench: Bench, stage: Stage) -> None:
    """They read something else."""
    seen = await spoken(bench, stage)
    await seen.page.set_viewport_size({"width": 1100, "height": 400})
    await seen.page.evaluate("scrollTo(0, 200)")
    await seen.page.evaluate("new Promise(requestAnimationFrame)")
    await seen.page.evaluate("scrollTo(0, 0)")
    await seen.page.evaluate("new Promise(requestAnimationFrame)")
    await says_more(seen, stage)
    assert await seen.page.evaluate("scrollY") == 0


async def test_whoever_writes_is_left_where_they_are(bench: Bench, stage: Stage) -> None:
    """A page that moves under one's hands is worse than one that does not follow."""
    seen = await spoken(bench, stage)
    await seen.writes("Half a thou")
    await seen.page.evaluate(TWO_FRAMES)  # the bar has grown by the composer
    before = await seen.page.evaluate("scrollY")
    await says_more(seen, stage)
    assert await seen.page.evaluate("scrollY") == before
