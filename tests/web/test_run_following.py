"""Following: at the end of the steps the end stays in sight; else the page stands still."""

import pytest
from playwright.async_api import Page, expect

from tests.web.bench import Bench
from tests.web.stage import Hold, Stage, Turn
from tests.web.watching import Watched, watched

pytestmark = pytest.mark.once

LONG = "One line of many.\n" * 25
"""Long enough that it, twice, does not fit above the bar; once, it does."""

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


async def covered(page: Page) -> float:
    """Return how many pixels of the newest words lie behind the bar."""
    newest = await page.locator("midrun-steps [data-turn]").last.bounding_box()
    bar = await page.locator("midrun-controls").bounding_box()
    assert newest is not None
    assert bar is not None
    return newest["y"] + newest["height"] - bar["y"]


async def test_new_words_are_seen_above_the_bar(bench: Bench, stage: Stage) -> None:
    """Whoever reads along need not scroll."""
    seen = await spoken(bench, stage)
    assert await covered(seen.page) <= 0
    await says_more(seen, stage)
    await expect(seen.page.get_by_text("The last line.").last).to_be_in_viewport()
    assert await covered(seen.page) <= 0
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
    assert await covered(page) <= 0


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
    before = await seen.page.evaluate("scrollY")
    await says_more(seen, stage)
    assert await seen.page.evaluate("scrollY") == before
