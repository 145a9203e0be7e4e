"""Long texts, long words and right-to-left scripts on the run page."""

from typing import Final

from playwright.async_api import expect

from tests.browser.harness import Harness
from tests.browser.run_page import open_run_page
from tests.browser.stage import Hold, Stage, Use

ADDRESS: Final = "https://example.com/" + "a" * 400
MEMO: Final = "اكتب مذكرة عن الربع الثالث (Q3) ثم أرسلها"
STARTS: Final = """(node, words) => {
  const texts = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const at = texts.currentNode.data.indexOf(words);
    if (at < 0) continue;
    const left = (index) => {
      const letter = document.createRange();
      letter.setStart(texts.currentNode, index);
      letter.setEnd(texts.currentNode, index + 1);
      return letter.getBoundingClientRect().left;
    };
    return left(at) > left(at + words.length - 1) ? "right" : "left";
  }
}"""
"""Where its first letter stands, seen from the last, with other letters between."""


async def test_a_long_task_is_cut_until_it_is_expanded(harness: Harness, stage: Stage) -> None:
    """Only for the eye: a screen reader gets the whole task."""
    task = "\n".join(f"{number}. Look there." for number in range(1, 41))
    ui = await open_run_page(harness, stage, ["I look.", Hold("mid")], task=task)
    title = ui.page.get_by_role("heading", level=1)
    await expect(title).to_contain_text("40. Look there.")
    cut = await title.bounding_box()
    more = ui.button_named("Show the whole task")
    await expect(more).to_have_attribute("aria-expanded", "false")
    await more.click()
    await expect(ui.button_named("Show less")).to_have_attribute("aria-expanded", "true")
    whole = await title.bounding_box()
    assert cut is not None
    assert whole is not None
    assert whole["height"] > cut["height"] * 5
    await expect(ui.page).to_have_title("▶ Running — 1. Look there.")


async def test_a_short_task_is_whole(harness: Harness, stage: Stage) -> None:
    ui = await open_run_page(harness, stage, ["I look.", Hold("mid")])
    await expect(ui.page.get_by_role("heading", level=1)).to_have_text("Write a memo")
    await expect(ui.button_named("Show the whole task")).to_have_count(0)


async def test_words_run_as_their_script_does_and_nothing_is_cut_off_sideways(
    harness: Harness, stage: Stage
) -> None:
    """Arabic starts at the right; long words are broken, on a phone too."""
    plan = Use("plan", items=[MEMO, ADDRESS, "W" * 200], marks={"1": "running"})
    ui = await open_run_page(
        harness, stage, [MEMO, plan, Use("ask", question=f"{MEMO}\n{ADDRESS}")], task=MEMO
    )
    await ui.expect_badge("Waiting for you")
    steps = ui.page.locator("midrun-steps")
    for words in (
        ui.page.get_by_role("heading", level=1),
        steps.locator(".title").first,
        steps.locator("p.text").first,
        ui.page.locator("midrun-asks .question p.text"),
    ):
        await expect(words).to_contain_text(MEMO)
        assert await words.evaluate(STARTS, MEMO) == "right"
    await ui.page.set_viewport_size({"width": 360, "height": 740})
    assert await ui.page.evaluate("document.documentElement.scrollWidth") <= 360
    await expect(ui.button("cancel")).to_be_in_viewport()
