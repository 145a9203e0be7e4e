"""Words as they come: long ones, addresses, another script, more than anybody reads at once."""

from typing import Final

from playwright.async_api import expect

from tests.browser.bench import Bench
from tests.browser.stage import Hold, Stage, Use
from tests.browser.watching import watched

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


async def test_a_long_task_is_cut_until_somebody_wants_to_read_it(
    bench: Bench, stage: Stage
) -> None:
    """A task may be a page; the run is what one came for. Whoever listens hears all of it."""
    task = "\n".join(f"{number}. Look there." for number in range(1, 41))
    seen = await watched(bench, stage, ["I look.", Hold("mid")], task=task)
    title = seen.page.get_by_role("heading", level=1)
    await expect(title).to_contain_text("40. Look there.")
    cut = await title.bounding_box()
    more = seen.action("Show the whole task")
    await expect(more).to_have_attribute("aria-expanded", "false")
    await more.click()
    await expect(seen.action("Show less")).to_have_attribute("aria-expanded", "true")
    whole = await title.bounding_box()
    assert cut is not None
    assert whole is not None
    assert whole["height"] > cut["height"] * 5
    await expect(seen.page).to_have_title("▶ Running — 1. Look there.")


async def test_a_short_task_is_whole(bench: Bench, stage: Stage) -> None:
    """Nothing to press where there is nothing more."""
    seen = await watched(bench, stage, ["I look.", Hold("mid")])
    await expect(seen.page.get_by_role("heading", level=1)).to_have_text("Write a memo")
    await expect(seen.action("Show the whole task")).to_have_count(0)


async def test_words_run_as_their_script_does_and_nothing_is_cut_off_sideways(
    bench: Bench, stage: Stage
) -> None:
    """Arabic begins at the right, and what is of one piece is broken, also on a phone."""
    plan = Use("plan", items=[MEMO, ADDRESS, "W" * 200], marks={"1": "running"})
    seen = await watched(
        bench, stage, [MEMO, plan, Use("ask", question=f"{MEMO}\n{ADDRESS}")], task=MEMO
    )
    await seen.says("Waiting for you")
    steps = seen.page.locator("midrun-steps")
    for words in (
        seen.page.get_by_role("heading", level=1),
        steps.locator(".title").first,
        steps.locator("p.text").first,
        seen.page.locator("midrun-asks .question"),
    ):
        await expect(words).to_contain_text(MEMO)
        assert await words.evaluate(STARTS, MEMO) == "right"
    await seen.page.set_viewport_size({"width": 360, "height": 740})
    assert await seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    await expect(seen.button("cancel")).to_be_in_viewport()
