"""A button that goes away because it was pressed takes nobody's focus with it."""

from typing import Final

import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser import scenes
from tests.browser.bench import Bench, comes_true, later
from tests.browser.lists import badge, row
from tests.browser.scenes import Scene
from tests.browser.stage import Stage, Use
from tests.browser.test_by_keyboard import Hands
from tests.browser.watching import SETTLED_MS, at_tool
from tests.unit.server.conftest import PEOPLE

FIRST: Final = "the first of the three"


PRESSED: Final[tuple[tuple[Scene, tuple[str, ...]], ...]] = (
    (scenes.redirecting, ("Withdraw", "Discard")),
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


def named(pressed: object) -> str:
    """Return what a test is called after."""
    return pressed.__name__ if callable(pressed) else ", ".join(map(str, pressed))  # type: ignore[call-overload,attr-defined]  # texts, or a scene


async def press(page: Page, button: Locator) -> None:
    """Press a button by its key, and wait until it is none; then something has the focus."""
    await button.focus()
    await page.keyboard.press("Enter")

    async def is_gone() -> bool:
        return bool(await button.evaluate_all("all => all.every(({disabled}) => disabled)"))

    await comes_true(is_gone)
    for _ in range(2):  # what is disabled loses the focus with the next frame
        await page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    now = await Hands(page).focus()
    assert now.tag != "body"


@pytest.mark.parametrize(("scene", "pressed"), PRESSED, ids=named)
async def test_on_the_page_of_a_run(
    bench: Bench, stage: Stage, scene: Scene, pressed: tuple[str, ...]
) -> None:
    """It goes to what took the button's place, to the title of its panel, or to the bar."""
    seen = await scene(bench, stage)
    for name in pressed:
        await press(seen.page, seen.button("pause") if name == FIRST else seen.action(name))


async def test_where_another_run_is_shown_in_its_place(bench: Bench, stage: Stage) -> None:
    """As an embedded page does when somebody presses *Run again*."""
    seen = await at_tool(bench, stage)
    other = await seen.site.start("actor", "Write another")
    await seen.button("redirect").focus()
    await seen.page.locator("midrun-run").evaluate("(run, id) => (run.run = id)", str(other.id))
    await expect(seen.page.get_by_role("heading", name="Write another")).to_be_visible()
    assert (await Hands(seen.page).focus()).tag != "body"


async def test_in_the_list_of_runs(bench: Bench, stage: Stage) -> None:
    """It goes to what opened a sheet, to the run of the row, or to the title."""
    site = await bench.site(stage.play(Use("slow", name="work"), "Done."))
    await site.start(task="Write a memo")
    await stage.start("work").wait()
    page = await bench.page(site, clock=True)
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
    await later(page, SETTLED_MS)
    await page.keyboard.press("Enter")
    await expect(badge(page, "Write a memo")).to_have_text("Completed")
    await Hands(page).rest_on("Write a memo", "a")


async def test_where_halts_are_lifted(bench: Bench, stage: Stage) -> None:
    """One of two, and the last: the panel is gone then, and it is said that it was lifted."""
    site = await bench.site(stage.play("Done."))
    for scope in ("label:x", "agent:actor"):
        await site.mid.halt("Fire", scope=scope, actor=PEOPLE["olga"])
    page = await bench.page(site)
    for what in ("Every run of the agent actor", "Every run labelled x"):
        await press(page, page.get_by_role("button", name=f"Lift the halt: {what}"))
        await expect(page.get_by_text(f"Lifted the halt: {what}.")).to_be_visible()
    await Hands(page).rest_on("Runs", "h1")
