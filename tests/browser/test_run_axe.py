"""The run page in every state is accessible, and the same after a reload."""

from typing import Final

import pytest
from playwright.async_api import ViewportSize, expect

from tests.browser.harness import Harness, find_dark_violations, find_violations
from tests.browser.run_page import (
    RunPage,
    check_reconnect,
    check_reload,
    open_at_tool,
)
from tests.browser.scenes import SCENES, Scene, lost, running, waiting
from tests.browser.stage import Stage

pytestmark = [pytest.mark.once, pytest.mark.slow]

DESK: Final[ViewportSize] = {"width": 1100, "height": 900}
PHONE: Final[ViewportSize] = {"width": 360, "height": 740}
TABLET: Final[ViewportSize] = {"width": 820, "height": 1180}
WIDE: Final[ViewportSize] = {"width": 1920, "height": 1080}


async def check_accessibility(ui: RunPage) -> None:
    """Check that axe finds no violation: in light, wide, tablet, phone, and in dark."""
    assert await find_violations(ui.page) == []
    await ui.page.set_viewport_size(WIDE)
    assert await find_violations(ui.page) == []
    for size in (TABLET, PHONE):
        await ui.page.set_viewport_size(size)
        assert await find_violations(ui.page) == []
        assert await ui.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    await ui.page.set_viewport_size(DESK)
    assert await find_dark_violations(ui.page) == []
    await ui.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_each_state_is_accessible_and_survives_a_reload(
    harness: Harness, stage: Stage, scene: Scene
) -> None:
    """Drafts included."""
    ui = await scene(harness, stage)
    await check_accessibility(ui)
    await check_reload(ui.page, ui.run)
    await check_reconnect(ui.page, ui.run, ui.site)


async def test_a_lost_connection_is_accessible(harness: Harness, stage: Stage) -> None:
    await check_accessibility(await lost(harness, stage))


@pytest.mark.parametrize("scene", [running, waiting], ids=lambda scene: scene.__name__)
async def test_on_a_phone_the_bar_leaves_room_to_read(
    harness: Harness, stage: Stage, scene: Scene
) -> None:
    """With all four buttons in sight."""
    ui = await scene(harness, stage)
    await ui.page.set_viewport_size(PHONE)
    await expect(ui.button("pause")).to_be_in_viewport()
    await expect(ui.button("cancel")).to_be_in_viewport()
    assert await ui.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    bar = await ui.page.locator("midrun-controls").bounding_box()
    assert bar is not None
    assert bar["height"] < PHONE["height"] * 0.28


async def test_colour_is_not_the_only_cue_where_colours_are_forced(
    harness: Harness, stage: Stage
) -> None:
    """Word, icon and border remain."""
    ui = await open_at_tool(harness, stage)
    await ui.button("pause").click()
    await ui.expect_badge("Pausing")
    await ui.page.emulate_media(forced_colors="active")
    await expect(ui.badge).to_have_css("border-top-style", "dashed")
    await expect(ui.badge.locator("svg")).to_have_count(1)
    await expect(ui.button("pause")).to_have_css("border-top-style", "solid")
