"""A whole story without a mouse: nobody's focus is lost, and all can see where it is."""

from typing import Final

import msgspec
from playwright.async_api import Page, expect

from tests.browser.bench import Bench, comes_true
from tests.browser.stage import Hold, Stage, Turn, Use

AT: Final = """() => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  const words = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent;
  const seen = at.matches(":focus-visible") && getComputedStyle(at).outlineStyle !== "none";
  return {tag: at.localName, words: words.replace(/\\s+/g, " ").trim(), seen};
}"""

FAR: Final = 80
"""More presses of a key than anything is away."""


class Focus(msgspec.Struct, frozen=True):
    """What has the focus, and whether one sees that."""

    tag: str
    words: str
    seen: bool


class Hands:
    """Two hands on a keyboard."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def press(self, key: str) -> None:
        """Press a key."""
        await self.page.keyboard.press(key)

    async def focus(self) -> Focus:
        """Return what has the focus now."""
        return msgspec.convert(await self.page.evaluate(AT), Focus)

    async def rest_on(self, words: str, tag: str = "") -> None:
        """Wait until the focus is there, for all to see."""

        async def is_there() -> bool:
            now = await self.focus()
            return now.words.startswith(words) and now.tag.startswith(tag) and now.seen

        await comes_true(is_there)

    async def go_to(self, words: str, tag: str = "") -> None:
        """Press Tab until the focus is there; on the way it is always somewhere."""
        for _ in range(FAR):
            await self.press("Tab")
            now = await self.focus()
            assert now.tag != "body", f"lost on the way to {words}"
            assert now.seen, now
            if now.words.startswith(words) and now.tag.startswith(tag):
                return
        raise AssertionError(f"no way to {words}")


async def started(hands: Hands) -> None:
    """Start a run from the list; on second thoughts, again."""
    await hands.go_to("New run")
    await hands.press("Enter")
    await hands.rest_on("What should it do?")
    await hands.press("Escape")
    await hands.rest_on("New run")
    await hands.press("Space")
    await hands.rest_on("What should it do?")
    await hands.page.keyboard.type("Write the churn memo")
    await hands.go_to("Start", "button")
    await hands.press("Enter")
    await hands.page.wait_for_url("**/runs/run_*")


async def paused_and_redirected(hands: Hands) -> None:
    """Pause in mid-sentence, and resume with other words; keys do not control while typing."""
    await hands.go_to("Pause")
    await hands.press("Space")
    await expect(hands.page.locator("midrun-steps")).to_contain_text("interrupted here")
    await hands.rest_on("Resume")
    await hands.press("r")
    await hands.rest_on("What should happen next?")
    await hands.page.keyboard.type("pcr")
    await hands.press("Escape")
    await hands.rest_on("Redirect")
    await hands.press("r")
    await hands.rest_on("What should happen next?")
    await hands.page.keyboard.type("Leave out Acme.")
    await hands.press("Enter")


async def approved(hands: Hands) -> None:
    """Go from the bar to the card, and decide."""
    await hands.rest_on("Redirect")
    await hands.press("Shift+Tab")
    await hands.press("Shift+Tab")
    await hands.rest_on("Answer…")
    await hands.press("Enter")
    await hands.rest_on("Approve")
    await hands.press("Enter")
    await hands.rest_on("Decided just now", "h2")


async def cancelled(hands: Hands) -> None:
    """Cancel; on second thoughts not; then after all."""
    await hands.press("c")
    await hands.rest_on("Cancel this run?")
    await hands.press("Escape")
    await hands.rest_on("Cancel")
    await hands.press("c")
    await hands.rest_on("Cancel this run?")
    await hands.go_to("Cancel and undo 2")
    await hands.press("Enter")


async def test_a_run_is_started_steered_answered_and_cancelled_by_keys_alone(
    bench: Bench, stage: Stage
) -> None:
    """From the list to the report; every press is one that a person without a mouse has."""
    turns: tuple[Turn, ...] = (
        ["Churn rose, and I am ", Hold("mid"), "not sure why."],
        [Use("draft", name="memo"), Use("mail", name="bo")],
        Use("slow_draft", name="work"),
    )
    page = await bench.page(await bench.site(stage.play(*turns)))
    hands, badge = Hands(page), page.locator("midrun-controls .badge")
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    await started(hands)
    await expect(page.locator("midrun-steps")).to_contain_text("Churn rose, and I am")
    await paused_and_redirected(hands)
    await expect(badge).to_contain_text("Waiting for you")
    await approved(hands)
    await stage.start("work").wait()
    await expect(page.locator("midrun-controls #cancel")).to_contain_text("can undo 2 calls")
    await cancelled(hands)
    await expect(badge).to_contain_text("Cancelled by you")
    await hands.rest_on("", "section")  # the buttons are gone, the bar is not
    await hands.go_to("Read the report")
    await hands.press("Enter")
    await hands.rest_on("What happened to the work", "h2")
    assert (stage.did, stage.stopped) == (["memo", "bo"], ["work"])
    assert sorted(stage.undone) == ["memo", "work"]
