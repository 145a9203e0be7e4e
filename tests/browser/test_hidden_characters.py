"""The page shows hidden characters and characters that turn the reading direction."""

from typing import Final

from playwright.async_api import expect

from midrun.text.hidden_characters import HIDDEN_RANGES, escape_hidden, show_hidden
from tests.browser.harness import Harness
from tests.browser.run_page import open_run_page
from tests.browser.stage import Stage, Use

ACCOUNT: Final = "ACC-\u202e9876543210"
SEEN: Final = "ACC-⟨U+202E⟩9876543210"

SHOW: Final = """async (texts) => {
  const {RANGES, exact, readable, editable} = await import("/static/template.js");
  return {ranges: RANGES, exact: texts.map(exact), prose: texts.map(readable),
    edited: texts.map(editable)};
}"""


async def test_an_approval_shows_every_hidden_character(harness: Harness, stage: Stage) -> None:
    """In its arguments and in the editor; an unchanged edit stores the same value."""
    ui = await open_run_page(harness, stage, Use("mail", name=ACCOUNT), "All done.")
    await ui.expect_badge("Waiting for you")
    card = ui.page.locator("midrun-asks .card")
    await expect(card.locator("pre")).to_contain_text(SEEN)
    await expect(ui.page.locator("midrun-steps")).to_contain_text(SEEN)
    assert ACCOUNT not in await ui.page.locator("midrun-run").evaluate(
        "run => run.shadowRoot.querySelector('midrun-asks').shadowRoot.textContent"
    )
    await ui.button_named("Edit…").click()
    field = ui.page.get_by_label("Name, as JSON")
    await expect(field).to_have_value('"ACC-\\u202e9876543210"')
    await ui.button_named("Edit as JSON").click()
    box = ui.page.get_by_label("Arguments of Mail, as JSON")
    await expect(box).to_have_value('{\n  "name": "ACC-\\u202e9876543210"\n}')
    await ui.button_named("Approve this").click()
    await ui.expect_badge("Completed")
    assert stage.completed == [ACCOUNT]


async def test_words_of_people_and_agents_stay_readable(harness: Harness, stage: Stage) -> None:
    """Arabic, Hebrew and emoji stay; an override character is shown, in prose too."""
    said = "שלום 👩‍🚀 می\u200cخو"
    ui = await open_run_page(harness, stage, f"{said} \u202eevil", task=f"{said} \u202etask")
    await ui.expect_badge("Completed")
    await expect(ui.page.get_by_role("heading", level=1)).to_have_text(f"{said} ⟨U+202E⟩task")
    await expect(ui.page.locator("midrun-result")).to_contain_text(f"{said} ⟨U+202E⟩evil")
    await expect(ui.page).to_have_title(f"✓ Completed — {said} ⟨U+202E⟩task")


async def test_page_and_terminal_show_the_same(harness: Harness, stage: Stage) -> None:
    """For the first and last character of each range, alone and inside a text."""
    codes = {
        code for first, last in HIDDEN_RANGES for code in (first, last, first - 1, last + 1)
    }
    chars = [chr(c) for c in sorted(codes) if c >= 0 and not 0xD800 <= c <= 0xDFFF]
    around = ("{}", "a{}b", "é{}é", "👩{0}{0}🚀", "1{}\u20e3", "❤\ufe0f{}", "🏴{}\U000e007f")
    texts = [form.format(char) for char in chars for form in around]
    page = await harness.page(await harness.site(stage.play("Done.")))
    shown = await page.evaluate(SHOW, texts)
    assert [tuple(each) for each in shown["ranges"]] == list(HIDDEN_RANGES)
    assert shown["exact"] == [show_hidden(text) for text in texts]
    assert shown["prose"] == [show_hidden(text, prose=True) for text in texts]
    assert all(escape_hidden(text) == text for text in shown["edited"])
