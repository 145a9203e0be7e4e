"""A whole session without a mouse: the focus is never lost, and always visible."""

from typing import Final

import msgspec
from playwright.async_api import Page, expect

from tests.browser.harness import Harness, wait_until
from tests.browser.stage import Hold, Stage, Turn, Use

READ_FOCUS: Final = """() => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  const words = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent;
  // The composer shows its ring around the whole line. A heading or a panel has none: nothing
  // is typed into it.
  const hasRing = (one) => Boolean(one) && getComputedStyle(one).outlineStyle !== "none";
  const isShown = at.matches(":focus-visible") && (hasRing(at) || hasRing(at.form));
  const visible = isShown || at.matches("h1, h2, h3, section");
  return {tag: at.localName, words: words.replace(/\\s+/g, " ").trim(), visible};
}"""

MAX_TABS: Final = 80
"""More presses of Tab than any element is away."""


class Focus(msgspec.Struct, frozen=True):
    """The focused element, and whether its focus is visible."""

    tag: str
    words: str
    visible: bool


class Keyboard:
    """A viewer who uses only the keyboard."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def press(self, key: str) -> None:
        """Press a key."""
        await self.page.keyboard.press(key)

    async def focus(self) -> Focus:
        """Return the focused element."""
        return msgspec.convert(await self.page.evaluate(READ_FOCUS), Focus)

    async def expect_focus(self, words: str, tag: str = "") -> None:
        """Wait until this element has a visible focus."""

        async def is_there() -> bool:
            now = await self.focus()
            return now.words.startswith(words) and now.tag.startswith(tag) and now.visible

        await wait_until(is_there)

    async def tab_to(self, words: str, tag: str = "", *, key: str = "Tab") -> None:
        """Press Tab until this element has the focus; the focus is never lost on the way."""
        for _ in range(MAX_TABS):
            await self.press(key)
            now = await self.focus()
            assert now.tag != "body", f"lost on the way to {words}"
            assert now.visible, now
            if now.words.startswith(words) and now.tag.startswith(tag):
                return
        raise AssertionError(f"no way to {words}")


async def start_run(keyboard: Keyboard) -> None:
    """Open the form, close it, open it again, and start a run."""
    await keyboard.tab_to("New run")
    await keyboard.press("Enter")
    await keyboard.expect_focus("What should it do?")
    await keyboard.press("Escape")
    await keyboard.expect_focus("New run")
    await keyboard.press("Space")
    await keyboard.expect_focus("What should it do?")
    await keyboard.page.keyboard.type("Write the churn memo")
    await keyboard.tab_to("Start", "button")
    await keyboard.press("Enter")
    await keyboard.page.wait_for_url("**/runs/run_*")


async def pause_and_redirect(keyboard: Keyboard) -> None:
    """Pause in mid-sentence, and resume with an instruction; typed keys are no shortcuts."""
    await keyboard.tab_to("Pause")
    await keyboard.press("Space")
    await expect(keyboard.page.locator("midrun-steps")).to_contain_text("interrupted here")
    await keyboard.expect_focus("Resume")
    await keyboard.press("r")
    await keyboard.expect_focus("What should happen next?")
    await keyboard.page.keyboard.type("pcr")
    await keyboard.press("Escape")
    await keyboard.expect_focus("Redirect")
    await keyboard.press("r")
    await keyboard.expect_focus("What should happen next?")
    await keyboard.press("Control+a")
    await keyboard.page.keyboard.type("Leave out Acme.")
    await keyboard.press("Enter")


async def approve(keyboard: Keyboard) -> None:
    """Go from the bar to the card, and approve."""
    await keyboard.expect_focus("What should happen next?")
    await keyboard.tab_to("Answer…", key="Shift+Tab")
    await keyboard.press("a")
    await keyboard.expect_focus("Approve")
    await keyboard.press("Enter")
    await keyboard.expect_focus("Decided just now", "h2")


async def cancel(keyboard: Keyboard) -> None:
    """Open the cancel sheet, leave it, open it again, and cancel."""
    await keyboard.press("c")
    await keyboard.expect_focus("Cancel this run?")
    await keyboard.press("Escape")
    # The sheet closes once the run has resumed. Until then its heading, which begins with the
    # same word, has the focus, and a second "c" would be ignored.
    await keyboard.expect_focus("Cancel", "button")
    await keyboard.press("c")
    await keyboard.expect_focus("Cancel this run?")
    await keyboard.tab_to("Cancel and undo 2")
    await keyboard.press("Enter")


async def test_a_run_is_started_steered_answered_and_cancelled_by_keys_alone(
    harness: Harness, stage: Stage
) -> None:
    """From the list to the report, with keys only."""
    turns: tuple[Turn, ...] = (
        ["Churn ", Hold("mid"), "rose."],
        [Use("draft", name="memo"), Use("mail", name="bo")],
        Use("slow_draft", name="work"),
    )
    page = await harness.page(await harness.site(stage.play(*turns)))
    keyboard, badge = Keyboard(page), page.locator("midrun-controls .badge")
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    await expect(page.get_by_role("button", name="New run")).to_be_visible()  # loaded apart
    await start_run(keyboard)
    await expect(page.locator("midrun-steps")).to_contain_text("Churn")
    await pause_and_redirect(keyboard)
    await expect(badge).to_contain_text("Waiting for you")
    await approve(keyboard)
    await stage.start("work").wait()
    await expect(page.locator("midrun-controls #cancel")).to_contain_text("can undo 2 calls")
    await cancel(keyboard)
    await expect(badge).to_contain_text("Cancelled by you")
    await keyboard.expect_focus("", "section")  # the buttons are gone, the bar is not
    await expect(page.get_by_role("button", name="Read the report")).to_be_visible()
    await keyboard.tab_to("Read the report")
    await keyboard.press("Enter")
    await expect(page.locator("midrun-report h2")).to_be_focused()
    assert (stage.completed, stage.stopped) == (["memo", "bo"], ["work"])
    assert sorted(stage.undone) == ["memo", "work"]
