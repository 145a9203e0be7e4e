"""Every state of the run page is usable by everybody, as far as axe can tell."""

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import expect

from midrun.stops import MaxSteps
from tests.server.conftest import PEOPLE
from tests.web.bench import Bench, darkened, flaws
from tests.web.stage import Hold, Stage, Turn, Use
from tests.web.watching import PLAN, Watched, at_tool, watched

pytestmark = [pytest.mark.once, pytest.mark.slow]

Scene = Callable[[Bench, Stage], Awaitable[Watched]]


async def unflawed(seen: Watched) -> None:
    """See that axe finds nothing, in light and in dark."""
    assert await flaws(seen.page) == []
    assert await darkened(seen.page) == []
    await seen.page.emulate_media(color_scheme="light")


async def running(bench: Bench, stage: Stage) -> Watched:
    """A tool at work, words before it."""
    turn: Turn = ["I look around. ", PLAN, Use("slow", name="work")]
    seen = await watched(bench, stage, turn, "Done.", bare=True)
    await stage.start("work").wait()
    return seen


async def pausing(bench: Bench, stage: Stage) -> Watched:
    """Asked for, and not yet so."""
    seen = await running(bench, stage)
    await unflawed(seen)
    await seen.button("pause").click()
    await seen.says("Pausing")
    return seen


async def paused(bench: Bench, stage: Stage) -> Watched:
    """In mid-sentence, with the composer open."""
    seen = await watched(bench, stage, ["I ", Hold("mid"), "think."], "So.", bare=True)
    await stage.start("mid").wait()
    await seen.button("pause").click()
    await seen.says("Paused")
    await seen.button("redirect").click()
    return seen


async def redirecting(bench: Bench, stage: Stage) -> Watched:
    """A redirect that waits, and the composer with its choices."""
    seen = await at_tool(bench, stage, bare=True)
    await seen.run.redirect("Another course", actor="ann")
    await expect(seen.action("Withdraw")).to_be_visible()
    await seen.button("redirect").click()
    return seen


async def waiting(bench: Bench, stage: Stage) -> Watched:
    """A question and an approval, being edited."""
    turn: Turn = [PLAN, Use("ask", question="Which?"), Use("mail", name="bo")]
    seen = await watched(bench, stage, turn, "Done.", bare=True)
    await seen.says("Waiting for you")
    await seen.action("Edit…").click()
    return seen


async def capped(bench: Bench, stage: Stage) -> Watched:
    """At its cap."""
    seen = await watched(
        bench, stage, [PLAN, Use("quick", name="a")], "x", stop=MaxSteps(1), bare=True
    )
    await seen.says("Paused at the step cap")
    return seen


async def confirming(bench: Bench, stage: Stage) -> Watched:
    """The cancel sheet."""
    seen = await at_tool(bench, stage, "slow_draft", bare=True)
    await seen.button("cancel").click()
    await seen.says("Pausing")
    return seen


async def cancelled(bench: Bench, stage: Stage) -> Watched:
    """The report."""
    seen = await confirming(bench, stage)
    await seen.action("Cancel and undo 1").click()
    await expect(seen.page.get_by_text("What happened to the work")).to_be_visible()
    return seen


async def failed(bench: Bench, stage: Stage) -> Watched:
    """An error."""
    seen = await watched(bench, stage, [PLAN, Use("fail", text="no")], bare=True)
    await seen.says("Failed")
    return seen


async def halted(bench: Bench, stage: Stage) -> Watched:
    """An operator's latch."""
    seen = await at_tool(bench, stage, bare=True)
    scope = f"run:{seen.run.id}"
    await seen.site.mid.halt("Fire", scope=scope, actor=PEOPLE["olga"])
    await seen.says("Halted")
    return seen


async def completed(bench: Bench, stage: Stage) -> Watched:
    """The result."""
    seen = await watched(bench, stage, "All done.", bare=True)
    await seen.says("Completed")
    return seen


async def taken_over(bench: Bench, stage: Stage) -> Watched:
    """Somebody at the wheel."""
    seen = await at_tool(bench, stage, bare=True)
    await seen.action("Take over").click()
    stage.gate("work").set()
    await expect(seen.page.get_by_label("Write as the assistant")).to_be_visible()
    return seen


async def aside(bench: Bench, stage: Stage) -> Watched:
    """A held thought."""
    answer: Turn = ["By Ames, ", Hold("aside"), "2019."]
    seen = await watched(bench, stage, [PLAN, Use("slow", name="work")], answer, bare=True)
    await stage.start("work").wait()
    await seen.run.say("Which paper?", actor="olga")
    stage.gate("work").set()
    await expect(seen.page.get_by_text("Held thoughts")).to_be_visible()
    return seen


async def lost(bench: Bench, stage: Stage) -> Watched:
    """The server does not answer."""
    seen = await at_tool(bench, stage, bare=True)
    await seen.page.context.set_offline(offline=True)
    seen.site.app.close()
    await seen.says("Connection lost")
    return seen


SCENES: tuple[Scene, ...] = (
    pausing,
    paused,
    redirecting,
    waiting,
    capped,
    confirming,
    cancelled,
    failed,
    halted,
    completed,
    taken_over,
    aside,
    lost,
)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_axe_finds_nothing(bench: Bench, stage: Stage, scene: Scene) -> None:
    """In light and in dark; and what a scene goes through, as well."""
    await unflawed(await scene(bench, stage))


@pytest.mark.parametrize("scene", [running, waiting], ids=lambda scene: scene.__name__)
async def test_it_fits_a_phone_without_scrolling_sideways(
    bench: Bench, stage: Stage, scene: Scene
) -> None:
    """Nor does the bar take the room in which one reads, with all three buttons in sight."""
    seen = await scene(bench, stage)
    await seen.page.set_viewport_size({"width": 360, "height": 740})
    await expect(seen.button("pause")).to_be_in_viewport()
    await expect(seen.button("cancel")).to_be_in_viewport()
    wide = await seen.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 360
    bar = await seen.page.locator("midrun-controls").bounding_box()
    assert bar is not None
    assert bar["height"] < 740 * 0.28
    assert await flaws(seen.page, "target-size", "scrollable-region-focusable") == []


async def test_colour_is_not_the_only_cue_where_colours_are_forced(
    bench: Bench, stage: Stage
) -> None:
    """Word, icon and border are still there."""
    seen = await at_tool(bench, stage)
    await seen.button("pause").click()
    await seen.says("Pausing")
    await seen.page.emulate_media(forced_colors="active")
    style = "node => getComputedStyle(node).borderTopStyle"
    assert await seen.badge.evaluate(style) == "dashed"
    assert await seen.badge.locator("svg").count() == 1
    assert await seen.button("pause").evaluate(style) == "solid"
