"""A reader of the page sees what is stored: nothing hides, nothing turns the direction."""

from typing import Final

from playwright.async_api import expect

from midrun.codec.hidden_characters import RANGES, escape_hidden, show_hidden
from tests.browser.bench import Bench
from tests.browser.stage import Stage, Use
from tests.browser.watching import watched

ACCOUNT: Final = "ACC-\u202e9876543210"
SEEN: Final = "ACC-⟨U+202E⟩9876543210"

SHOW: Final = """async (texts) => {
  const {RANGES, exact, readable, editable} = await import("/static/template.js");
  return {ranges: RANGES, exact: texts.map(exact), prose: texts.map(readable),
    edited: texts.map(editable)};
}"""


async def test_an_approval_shows_every_hidden_character(bench: Bench, stage: Stage) -> None:
    """In its arguments, also where they are edited; an edit as it stands stores the same."""
    seen = await watched(bench, stage, Use("mail", name=ACCOUNT), "All done.")
    await seen.says("Waiting for you")
    card = seen.page.locator("midrun-asks .card")
    await expect(card.locator("pre")).to_contain_text(SEEN)
    await expect(seen.page.locator("midrun-steps")).to_contain_text(SEEN)
    assert ACCOUNT not in await seen.page.locator("midrun-run").evaluate(
        "run => run.shadowRoot.querySelector('midrun-asks').shadowRoot.textContent"
    )
    await seen.action("Edit…").click()
    box = seen.page.get_by_label("Arguments of mail, as JSON")
    await expect(box).to_have_value('{\n  "name": "ACC-\\u202e9876543210"\n}')
    await seen.action("Approve this").click()
    await seen.says("Completed")
    assert stage.did == [ACCOUNT]


async def test_words_of_people_and_agents_stay_readable(bench: Bench, stage: Stage) -> None:
    """Arabic, Hebrew and emoji as they are; an override is shown in prose, too."""
    said = "שלום 👩‍🚀 می\u200cخو"
    seen = await watched(bench, stage, f"{said} \u202eevil", task=f"{said} \u202etask")
    await seen.says("Completed")
    await expect(seen.page.get_by_role("heading", level=1)).to_have_text(f"{said} ⟨U+202E⟩task")
    await expect(seen.page.locator("midrun-steps")).to_contain_text(f"{said} ⟨U+202E⟩evil")
    await expect(seen.page).to_have_title(f"✓ Completed — {said} ⟨U+202E⟩task")


async def test_page_and_terminal_show_the_same(bench: Bench, stage: Stage) -> None:
    """One list: the first and the last of every range, alone and where it could belong."""
    codes = {code for first, last in RANGES for code in (first, last, first - 1, last + 1)}
    chars = [chr(c) for c in sorted(codes) if c >= 0 and not 0xD800 <= c <= 0xDFFF]
    around = ("{}", "a{}b", "é{}é", "👩{0}{0}🚀", "1{}\u20e3", "❤\ufe0f{}", "🏴{}\U000e007f")
    texts = [form.format(char) for char in chars for form in around]
    page = await bench.page(await bench.site(stage.play("Done.")))
    shown = await page.evaluate(SHOW, texts)
    assert [tuple(each) for each in shown["ranges"]] == list(RANGES)
    assert shown["exact"] == [show_hidden(text) for text in texts]
    assert shown["prose"] == [show_hidden(text, prose=True) for text in texts]
    assert all(escape_hidden(text) == text for text in shown["edited"])
