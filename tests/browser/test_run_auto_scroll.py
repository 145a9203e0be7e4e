"""Auto-scroll: the page follows new content only while the reader is at the end."""

import pytest
from playwright.async_api import Page, expect

from tests.browser.harness import Harness, wait_until
from tests.browser.run_page import RunPage, open_run_page
from tests.browser.stage import Hold, Stage, Turn

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

SCROLL_REPORT_AFTER_NEW_TEXT = """() => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const steps = run.querySelector("midrun-steps").shadowRoot;
  const newest = [...steps.querySelectorAll("[data-turn]")].at(-1);
  newest.style.paddingBottom = "2000px";
  document.dispatchEvent(new Event("scroll"));
  newest.style.paddingBottom = "";
}"""

SHORTER_THEN_LONGER = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  const run = document.querySelector("midrun-run").shadowRoot;
  const steps = run.querySelector("midrun-steps").shadowRoot;
  const newest = [...steps.querySelectorAll("[data-turn]")].at(-1);
  newest.style.paddingBottom = "600px";
  scrollTo(0, 1e6);
  await frame();
  await frame();
  newest.style.paddingBottom = "";  // the layout of this frame moves the reader up
  setTimeout(() => (newest.style.paddingBottom = "900px"));
  await frame();  // and this one reports it
  newest.style.paddingBottom = "";
}"""

TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

TURN: Turn = ["So.", Hold("zero"), LONG, Hold("first"), LONG, "The last line.", Hold("second")]


async def open_long_run(harness: Harness, stage: Stage) -> RunPage:
    """Open the page of a run whose text fills the window."""
    ui = await open_run_page(harness, stage, TURN, "Done.")
    await stage.start("zero").wait()
    await expect(ui.page.locator("midrun-steps")).to_contain_text("So.")
    stage.gate("zero").set()
    await stage.start("first").wait()
    await expect(ui.page.locator("midrun-steps")).to_contain_text("One line of many.")
    return ui


async def stream_more(ui: RunPage, stage: Stage) -> None:
    """Let the agent stream the second half."""
    stage.gate("first").set()
    await stage.start("second").wait()
    await expect(ui.page.locator("midrun-steps")).to_contain_text("The last line.")


async def is_uncovered(page: Page) -> bool:
    """Tell whether the newest text is above the bar."""
    return await page.evaluate(UNCOVERED) is True


async def test_new_text_is_scrolled_above_the_bar(harness: Harness, stage: Stage) -> None:
    ui = await open_long_run(harness, stage)
    await wait_until(lambda: is_uncovered(ui.page))
    await stream_more(ui, stage)
    await expect(ui.page.get_by_text("The last line.").last).to_be_in_viewport()
    await wait_until(lambda: is_uncovered(ui.page))
    assert await ui.page.evaluate("scrollY") > 0


async def test_text_that_arrives_before_the_page_learns_of_its_own_scroll_is_followed(
    harness: Harness, stage: Stage
) -> None:
    """The browser reports a scroll one frame later; new text may be below the bar by then."""
    ui = await open_long_run(harness, stage)
    await wait_until(lambda: is_uncovered(ui.page))
    await ui.page.evaluate(SCROLL_REPORT_AFTER_NEW_TEXT)
    await ui.page.evaluate(SHORTER_THEN_LONGER)  # as when "Thinking …" becomes a text
    await stream_more(ui, stage)
    await wait_until(lambda: is_uncovered(ui.page))


async def test_a_page_opened_on_a_phone_follows(harness: Harness, stage: Stage) -> None:
    """Also if the newest text was below the bar from the start."""
    site = await harness.site(stage.play(TURN, "Done."))
    run = await site.start()
    stage.gate("zero").set()
    await stage.start("first").wait()
    page = await harness.page(site, f"/runs/{run.id}", width=390, height=500)
    ui = RunPage(site, run, page)
    await expect(page.get_by_role("heading", level=1)).not_to_be_in_viewport()
    await stream_more(ui, stage)
    await expect(page.get_by_text("The last line.").last).to_be_in_viewport()
    await wait_until(lambda: is_uncovered(page))


async def test_a_reader_who_scrolled_away_stays_there(harness: Harness, stage: Stage) -> None:
    ui = await open_long_run(harness, stage)
    await ui.page.set_viewport_size({"width": 1100, "height": 400})
    await ui.page.evaluate("scrollTo(0, 200)")
    await ui.page.evaluate("new Promise(requestAnimationFrame)")
    await ui.page.evaluate("scrollTo(0, 0)")
    await ui.page.evaluate("new Promise(requestAnimationFrame)")
    await stream_more(ui, stage)
    assert await ui.page.evaluate("scrollY") == 0


async def test_who_sends_a_text_is_taken_to_the_newest_text(
    harness: Harness, stage: Stage
) -> None:
    """Also after having scrolled away: the reply to the text comes there."""
    ui = await open_long_run(harness, stage)
    await ui.page.set_viewport_size({"width": 1100, "height": 400})
    await ui.page.evaluate("scrollTo(0, 200)")
    await ui.page.evaluate(TWO_FRAMES)
    await ui.page.evaluate("scrollTo(0, 0)")
    await expect(ui.button_named("↓ Newest")).to_be_visible()
    await ui.type_instruction("Shorter, please")
    await ui.page.keyboard.press("Enter")
    await wait_until(lambda: is_uncovered(ui.page))
    await expect(ui.button_named("↓ Newest")).to_have_count(0)


async def test_the_page_does_not_move_while_the_viewer_types(
    harness: Harness, stage: Stage
) -> None:
    ui = await open_long_run(harness, stage)
    await ui.type_instruction("Half a thou")
    await ui.page.evaluate(TWO_FRAMES)  # the bar has grown by the composer
    before = await ui.page.evaluate("scrollY")
    await stream_more(ui, stage)
    assert await ui.page.evaluate("scrollY") == before
