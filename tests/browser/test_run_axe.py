"""The run page in every state: for everybody, as far as axe can tell, and there again."""

from typing import Final

import pytest
from playwright.async_api import ViewportSize, expect

from tests.browser.bench import Bench, darkened, flaws
from tests.browser.scenes import SCENES, Scene, lost, running, waiting
from tests.browser.stage import Stage
from tests.browser.watching import (
    Watched,
    at_tool,
    survives_a_lost_connection,
    survives_a_reload,
)

pytestmark = [pytest.mark.once, pytest.mark.slow]

DESK: Final[ViewportSize] = {"width": 1100, "height": 900}
PHONE: Final[ViewportSize] = {"width": 360, "height": 740}


async def unflawed(seen: Watched) -> None:
    """See that axe finds nothing: in light, on a phone, and in dark, where colours differ."""
    assert await flaws(seen.page) == []
    await seen.page.set_viewport_size(PHONE)
    assert await flaws(seen.page) == []
    assert await seen.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    await seen.page.set_viewport_size(DESK)
    assert await darkened(seen.page) == []
    await seen.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_each_state_is_for_everybody_and_there_again_after_a_reload(
    bench: Bench, stage: Stage, scene: Scene
) -> None:
    """Nothing that is shown lives in the page alone, not even what is half written."""
    seen = await scene(bench, stage)
    await unflawed(seen)
    await survives_a_reload(seen.page, seen.run)
    await survives_a_lost_connection(seen.page, seen.run, seen.site)


async def test_a_lost_connection_is_for_everybody(bench: Bench, stage: Stage) -> None:
    """There is nothing to reload it from."""
    await unflawed(await lost(bench, stage))


@pytest.mark.parametrize("scene", [running, waiting], ids=lambda scene: scene.__name__)
async def test_on_a_phone_the_bar_leaves_room_to_read(
    bench: Bench, stage: Stage, scene: Scene
) -> None:
    """With all three buttons in sight."""
    seen = await scene(bench, stage)
    await seen.page.set_viewport_size(PHONE)
    await expect(seen.button("pause")).to_be_in_viewport()
    await expect(seen.button("cancel")).to_be_in_viewport()
    assert await seen.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    bar = await seen.page.locator("midrun-controls").bounding_box()
    assert bar is not None
    assert bar["height"] < PHONE["height"] * 0.28


async def test_colour_is_not_the_only_cue_where_colours_are_forced(
    bench: Bench, stage: Stage
) -> None:
    """Word, icon and border are still there."""
    seen = await at_tool(bench, stage)
    await seen.button("pause").click()
    await seen.says("Pausing")
    await seen.page.emulate_media(forced_colors="active")
    await expect(seen.badge).to_have_css("border-top-style", "dashed")
    await expect(seen.badge.locator("svg")).to_have_count(1)
    await expect(seen.button("pause")).to_have_css("border-top-style", "solid")
