"""Keyboard shortcuts, and announcements for screen readers."""

import pytest
from playwright.async_api import expect

from tests.browser.harness import Harness, discard_profile
from tests.browser.run_page import open_at_tool, open_run_page
from tests.browser.scenes import unsure
from tests.browser.stage import Hold, Stage
from tests.unit.server.conftest import ACTORS

pytestmark = pytest.mark.once


async def test_p_r_s_and_c_are_the_four_buttons(harness: Harness, stage: Stage) -> None:
    """On our own page with the focus anywhere; typed text never controls the run."""
    ui = await open_at_tool(harness, stage)
    await ui.page.keyboard.press("r")
    box = ui.page.get_by_label("What should happen next?")
    await expect(box).to_be_focused()
    await ui.page.keyboard.type("pcr")
    await expect(box).to_have_value("pcr")
    await ui.page.keyboard.press("Escape")
    assert (await ui.run.view()).phase == "running"
    await ui.page.keyboard.press("s")
    await expect(ui.page.get_by_label("What do you want to know?")).to_be_focused()
    await ui.page.keyboard.press("Escape")
    await ui.page.keyboard.press("p")
    await ui.expect_badge("Pausing, requested by you")
    assert not (await ui.run.view()).pending


async def test_a_goes_to_a_call_of_unknown_outcome_too(harness: Harness, stage: Stage) -> None:
    """Its row is on the bar. Not while the cancel sheet is open."""
    ui = await unsure(harness, stage)
    await ui.button("cancel").click()
    sheet = ui.page.locator("midrun-cancel-sheet")
    await expect(sheet).to_be_visible()
    await ui.page.keyboard.press("a")
    await expect(ui.button_named("It did")).not_to_be_focused()
    await ui.page.keyboard.press("Escape")
    await expect(sheet).to_have_count(0)
    await ui.page.keyboard.press("a")
    await expect(ui.button_named("It did")).to_be_focused()


async def test_typing_goes_on_after_a_text_was_sent(harness: Harness, stage: Stage) -> None:
    """The letters stay text: none of them pauses the run or opens the cancel sheet."""
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction("Leave out Acme.")
    await ui.page.keyboard.press("Enter")
    await expect(ui.button_named("Withdraw")).to_be_visible()
    await ui.page.keyboard.type("can you check")
    box = ui.page.get_by_label("What should happen next?")
    await expect(box).to_have_value("can you check")
    await box.press("Enter")
    await expect(ui.button_named("Withdraw")).to_have_count(2)
    await ui.page.keyboard.type("the price")
    await expect(box).to_have_value("the price")
    await ui.button_named("Now").click()
    await expect(box).to_be_focused()
    await expect(ui.page.locator("midrun-cancel-sheet")).to_have_count(0)


async def test_a_halt_in_mid_typing_makes_no_letter_a_shortcut(
    harness: Harness, stage: Stage
) -> None:
    """The field keeps the focus and the text, and takes no more."""
    ui = await open_at_tool(harness, stage)
    await ui.button("redirect").click()
    await ui.page.keyboard.type("can you ")
    scope, olga = f"run:{ui.run.id}", ACTORS["olga"]
    await ui.site.mid.halt("The far end is on fire", scope=scope, actor=olga)
    await ui.expect_badge("Halted by you")
    box = ui.page.get_by_label("What should happen next?")
    await expect(box).not_to_be_editable()
    await ui.page.keyboard.type("check")
    await expect(box).to_be_focused()
    await expect(box).to_have_value("can you ")
    await expect(ui.page.locator("midrun-cancel-sheet")).to_have_count(0)
    await ui.site.mid.lift(scope=scope, actor=olga)


async def test_escape_never_stops_a_run(harness: Harness, stage: Stage) -> None:
    """Also while a button has the focus."""
    ui = await open_at_tool(harness, stage)
    for _ in range(3):
        await ui.page.keyboard.press("Escape")
    await ui.button("pause").focus()
    await ui.page.keyboard.press("Escape")
    assert (await ui.run.view()).phase == "running"


async def test_elsewhere_on_a_page_keys_are_not_ours(harness: Harness, stage: Stage) -> None:
    """Without `global-keys` they work only inside the element."""
    ui = await open_at_tool(harness, stage)
    await ui.page.evaluate(
        "document.querySelector('midrun-run').removeAttribute('global-keys')"
    )
    await ui.page.locator("body").press("p")
    await ui.page.locator("header a").first.press("c")
    assert (await ui.run.view()).phase == "running"
    await ui.page.locator("midrun-timeline summary").press("p")
    await ui.expect_badge("Pausing, requested by you")


async def test_changes_of_state_are_announced_once_and_politely(
    harness: Harness, stage: Stage
) -> None:
    """One live region, for states only: not for the text of the agent."""
    ui = await open_run_page(harness, stage, ["I think ", Hold("mid"), "so."], "So.")
    status = ui.page.get_by_role("status")
    await stage.start("mid").wait()
    await expect(status).to_have_count(1)
    await expect(status).to_have_text("Running.")
    await ui.button("pause").click()
    await expect(status).to_have_text("Paused. Everything is kept.")
    await ui.press("pause")
    await expect(status).to_have_text("Completed.")
    await expect(ui.page.locator("[aria-live='assertive']")).to_have_count(0)


async def test_the_title_has_the_status_and_the_task_of_the_run(
    harness: Harness, stage: Stage
) -> None:
    """So that a tab can be found, and shows when it needs the viewer."""
    ui = await open_at_tool(harness, stage)
    await expect(ui.page).to_have_title("▶ Running — Write a memo")
    await ui.button("pause").click()
    await ui.expect_badge("Pausing, requested by you")
    stage.gate("work").set()
    await expect(ui.page).to_have_title("⏸ Paused — Write a memo")


async def test_buttons_declare_their_key_and_their_expanded_state(
    harness: Harness, stage: Stage
) -> None:
    """For screen readers."""
    ui = await open_at_tool(harness, stage)
    await expect(ui.button("pause")).to_have_attribute("aria-keyshortcuts", "P")
    await expect(ui.button("cancel")).to_have_attribute("aria-expanded", "false")
    await expect(ui.button("pause")).to_have_accessible_name(
        "Pause Stops after “Slow”. Everything is kept; nothing is spent meanwhile."
    )
    await ui.button("cancel").click()
    await expect(ui.button("cancel")).to_have_attribute("aria-expanded", "true")


async def test_global_shortcuts_can_be_switched_off(harness: Harness, stage: Stage) -> None:
    """`?` shows the keys and the setting; the browser stores it."""
    ui = await open_at_tool(harness, stage)
    discard_profile(ui.page)
    await ui.page.keyboard.press("?")
    await ui.page.get_by_label("anywhere on this page").uncheck()
    await ui.page.reload()
    await ui.expect_badge("Running")
    await ui.page.locator("header a").first.press("p")
    await ui.page.locator("midrun-timeline summary").press("r")
    await expect(ui.page.get_by_label("What should happen next?")).to_be_focused()
    assert (await ui.run.view()).phase == "running"
