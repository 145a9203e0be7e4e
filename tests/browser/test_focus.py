"""A button that disappears when it is pressed does not lose the keyboard focus."""

from typing import Final

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser import scenes
from tests.browser.harness import Harness, advance_clock, wait_until
from tests.browser.run_list import badge, row
from tests.browser.run_page import PRESS_DELAY_MS, open_at_tool
from tests.browser.scenes import Scene
from tests.browser.stage import Stage, Use
from tests.browser.test_by_keyboard import Keyboard
from tests.unit.server.conftest import ACTORS

FIRST: Final = "the first of the four"


PRESSED: Final[tuple[tuple[Scene, tuple[str, ...]], ...]] = (
    (scenes.redirecting, ("Withdraw", "Now")),
    (scenes.redirecting, ("Apply now",)),
    (scenes.pausing, ("Stop this call now",)),
    (scenes.confirming, ("Keep running",)),
    (scenes.confirming, ("Cancel, keep changes",)),
    (scenes.aside, ("Go back to it",)),
    (scenes.aside, ("Drop",)),
    (scenes.waiting, ("Discard", "Decline…", "Back", "Approve", "Answer")),
    (scenes.unsure, ("It did",)),
    (scenes.capped, (FIRST,)),
    (scenes.stuck, ("Leave it as it is",)),
    (scenes.running, ("Take over",)),
    (scenes.taken_over, ("Write", "Hand back")),
)


def name_case(pressed: object) -> str:
    """Return the id of a test case."""
    return pressed.__name__ if callable(pressed) else ", ".join(map(str, pressed))  # type: ignore[call-overload,attr-defined]  # texts, or a scene


async def press(page: Page, button: Locator) -> None:
    """Press a button with Enter; wait until it is gone or disabled. The focus is not lost."""
    await button.focus()
    await page.keyboard.press("Enter")

    async def is_gone() -> bool:
        return bool(await button.evaluate_all("all => all.every(({disabled}) => disabled)"))

    await wait_until(is_gone)
    for _ in range(2):  # a disabled button loses the focus with the next frame
        await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    now = await Keyboard(page).focus()
    assert now.tag != "body"


@pytest.mark.parametrize(("scene", "pressed"), PRESSED, ids=name_case)
async def test_on_the_page_of_a_run(
    harness: Harness, stage: Stage, scene: Scene, pressed: tuple[str, ...]
) -> None:
    """The focus goes to the replacement of the button, the title of its panel, or the bar."""
    ui = await scene(harness, stage)
    for name in pressed:
        # A card that has just moved takes no press.
        await expect(ui.page.locator("midrun-asks [inert]")).to_have_count(0)
        await press(ui.page, ui.button("pause") if name == FIRST else ui.button_named(name))


async def test_where_another_run_is_shown_in_its_place(harness: Harness, stage: Stage) -> None:
    """An embedded page does this after *Run again*."""
    ui = await open_at_tool(harness, stage)
    other = await ui.site.start("actor", "Write another")
    await ui.button("redirect").focus()
    await ui.page.locator("midrun-run").evaluate("(run, id) => (run.run = id)", str(other.id))
    await expect(ui.page.get_by_role("heading", name="Write another")).to_be_visible()
    assert (await Keyboard(ui.page).focus()).tag != "body"


async def test_in_the_list_of_runs(harness: Harness, stage: Stage) -> None:
    """The focus goes to the opener of a sheet, the link of the row, or the title."""
    site = await harness.site(stage.play(Use("slow", name="work"), "Done."))
    await site.start(task="Write a memo")
    await stage.start("work").wait()
    page = await harness.page(site, clock=True)
    for opener, closer in (
        ("New run", "Discard"),
        ("Halt…", "Back"),
        ("Pause all", "Pause 1 run"),
    ):
        await page.get_by_role("button", name=opener).click()
        await press(page, page.get_by_role("button", name=closer))
    quick = row(page, "Write a memo").get_by_role("button")
    await expect(quick).to_have_text("Keep running")
    await quick.focus()
    stage.gate("work").set()
    await expect(quick).to_have_text("Resume")
    await advance_clock(page, PRESS_DELAY_MS)
    await page.keyboard.press("Enter")
    await expect(badge(page, "Write a memo")).to_have_text("Completed")
    await Keyboard(page).expect_focus("Write a memo", "a")


async def test_where_halts_are_lifted(harness: Harness, stage: Stage) -> None:
    """First one of two, then the last one, which removes the panel."""
    site = await harness.site(stage.play("Done."))
    for scope in ("label:x", "agent:actor"):
        await site.mid.halt("Fire", scope=scope, actor=ACTORS["olga"])
    page = await harness.page(site)
    for what in ("Every run of the agent actor", "Every run labelled x"):
        await press(page, page.get_by_role("button", name=f"Lift the halt: {what}"))
        await expect(page.get_by_text(f"Lifted the halt: {what}.")).to_be_visible()
    await Keyboard(page).expect_focus("Runs", "h1")
