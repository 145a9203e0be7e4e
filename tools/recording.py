"""Make docs/images/midrun.webp: ten seconds of the page, for the README and the site.

    make screenshots

A person pauses an agent in mid-sentence, redirects it, asks a side question, and cancels the
run, which undoes a booking. The agent waits at gates, so each frame shows a known state. The
script says how long the frame is shown.
"""

import sys
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Final

import anyio
from PIL import Image
from playwright.async_api import Locator, Page, async_playwright, expect

from midrun import Agent, Call, tool
from tests.browser.harness import CHROMIUM_FLAGS, TIMEOUT_S, BrowserProfiles, Harness
from tests.browser.stage import HeldModel, Hold, Stage, Turn, Use
from tools.programs import find

RECORDING: Final = Path(__file__).parents[1] / "docs" / "images" / "midrun.webp"
WIDTH: Final = 1100
HEIGHT: Final = 800
TASK: Final = "Plan the team meeting in Lisbon, with dinner for twelve"
REDIRECT: Final = "Only restaurants that cook without meat."
QUESTION: Final = "What do the rooms cost?"

BLINK_MS: Final = 120
LOOK_MS: Final = 500
READ_MS: Final = 900

FIRST_WORDS: Final = ("I compare the restaurants ", "near the hotel. ", "The best for twelve ")
LATER_WORDS: Final = ("Two of them ", "have a vegetarian menu ", "and take twelve people.")
TURNS: Final[tuple[Turn, ...]] = (
    Use("plan", items=["Book the hotel", "Choose a restaurant", "Invite the team"]),
    [
        Use("plan", marks={"1": "done", "2": "running"}),
        Use("book_rooms", hotel="Hotel Mar", rooms=12),
    ],
    [part for at, words in enumerate(FIRST_WORDS) for part in (words, Hold(f"first {at}"))],
    [
        *(
            part
            for at, words in enumerate(LATER_WORDS)
            for part in (words, Hold(f"later {at}"))
        ),
        Use("plan", marks={"2": "done", "3": "running"}),
    ],
    ["The twelve rooms cost **1,480 €** for two nights.", Hold("answer")],
    ["I write the invitations:", Hold("back")],
    "Done.",
)


class Recording:
    """The frames of the recording, each with the time for which it is shown."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._frames: list[Image.Image] = []
        self._durations: list[int] = []

    async def add_frame(self, duration_ms: int) -> None:
        """Add the current state of the page."""
        picture = await self.page.screenshot(animations="disabled", caret="hide")
        self._frames.append(Image.open(BytesIO(picture)).convert("RGB"))
        self._durations.append(duration_ms)

    async def click(self, button: Locator) -> None:
        """Click a button; the frame before shows it with the keyboard's focus."""
        await button.focus()
        await self.add_frame(LOOK_MS)
        await button.click()

    async def type_text(self, field: Locator, text: str) -> None:
        """Type a text, with one frame for each word."""
        words = text.split(" ")
        for count in range(1, len(words) + 1):
            await field.fill(" ".join(words[:count]))
            await self.add_frame(BLINK_MS)

    def save(self, path: Path) -> None:
        """Write the frames as an animated picture that repeats for ever."""
        first, *others = self._frames
        first.save(
            path, save_all=True, append_images=others, duration=self._durations,
            loop=0, quality=70, method=6, minimize_size=True,
        )  # fmt: skip
        seconds, size = sum(self._durations) / 1000, path.stat().st_size
        print(f"{path.name}: {len(self._frames)} frames, {seconds:.1f} s, {size} bytes")


def make_agent(stage: Stage) -> Agent:
    """Return an agent that books rooms, which can be undone, and then writes."""

    async def cancel_rooms(call: Call, args: object, result: object) -> None:
        del call, args, result

    async def book_rooms(hotel: str, rooms: int) -> str:
        """Book rooms in a hotel."""
        return f"{rooms} rooms in {hotel} are booked."

    booking = tool(book_rooms, undo=cancel_rooms, title="Book {rooms} rooms in {hotel}")
    return Agent("planner", model=HeldModel(stage, TURNS), tools=[booking])


async def record(page: Page, stage: Stage) -> Recording:
    """Play the scene."""
    made = Recording(page)
    badge = page.locator("midrun-controls .badge")

    async def show_words(name: str, words: tuple[str, ...]) -> None:
        for at, said in enumerate(words):
            await stage.start(f"{name} {at}").wait()
            await expect(page.get_by_text(said.strip())).to_be_visible()
            await made.add_frame(BLINK_MS if at < len(words) - 1 else LOOK_MS)
            if at < len(words) - 1:
                stage.gate(f"{name} {at}").set()

    await show_words("first", FIRST_WORDS)
    await made.click(page.get_by_role("button", name="Pause"))
    await expect(badge).to_contain_text("Paused")
    await made.add_frame(READ_MS)
    await made.click(page.get_by_role("button", name="Redirect"))
    await made.type_text(page.get_by_label("What should happen next?"), REDIRECT)
    await made.click(page.get_by_role("button", name="Resume with this"))
    await show_words("later", LATER_WORDS)
    await made.click(page.get_by_role("button", name="Ask"))
    await made.type_text(page.get_by_role("textbox").last, QUESTION)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("waits for the next turn")).to_be_visible()
    await made.add_frame(LOOK_MS)
    stage.gate("later 2").set()
    await stage.start("answer").wait()
    await expect(page.get_by_text("1,480 €")).to_be_visible()
    await made.add_frame(READ_MS)
    stage.gate("answer").set()
    await stage.start("back").wait()
    await made.add_frame(LOOK_MS)
    await made.click(page.get_by_role("button", name="Cancel"))
    undo = page.get_by_role("button", name="Cancel and undo")
    await expect(undo).to_be_visible()
    await made.add_frame(READ_MS)
    await made.click(undo)
    await expect(badge).to_contain_text("Cancelled")
    await page.evaluate("scrollTo(0, 0)")
    await made.add_frame(2 * READ_MS)
    return made


async def main() -> int:
    """Make the recording; return 1 if the page's scripts reported errors."""
    expect.set_options(timeout=TIMEOUT_S * 1000)
    async with async_playwright() as driver, AsyncExitStack() as stack:
        browser = await driver.chromium.launch(executable_path=find(), args=CHROMIUM_FLAGS)
        harness = Harness(BrowserProfiles(browser), stack)
        stage = Stage()
        stack.callback(stage.open_all_gates)
        site = await harness.site(make_agent(stage))
        run = await site.start("planner", TASK)
        page = await harness.page(site, f"/runs/{run.id}", width=WIDTH, height=HEIGHT)
        with anyio.fail_after(TIMEOUT_S):
            recording = await record(page, stage)
        recording.save(RECORDING)
    for complaint in harness.script_errors:
        print(complaint, file=sys.stderr)
    return int(bool(harness.script_errors))


if __name__ == "__main__":
    sys.exit(anyio.run(main))
