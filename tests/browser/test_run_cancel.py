"""Cancelling from the page: the sheet that lists the effects, and the report."""

from datetime import timedelta

import pytest
from playwright.async_api import Route, expect

from midrun.ports.environment import Environment
from tests.browser.harness import Harness, advance_clock
from tests.browser.run_page import (
    PLAN,
    PRESS_DELAY_MS,
    RunPage,
    hold_feed,
    match_text,
    open_at_tool,
    open_run_page,
)
from tests.browser.stage import Stage, Use

pytestmark = pytest.mark.once


async def open_with_effects(harness: Harness, stage: Stage) -> RunPage:
    """Open the page of a run with effects and a draft in flight."""
    done = [
        PLAN,
        Use("draft", name="memo"),
        Use("quick", name="post"),
        Use("lock", name="table"),
    ]
    now = [Use("plan", marks={"1": "done", "2": "running"}), Use("slow_draft", name="work")]
    ui = await open_run_page(harness, stage, done, now, "All done.")
    await stage.start("work").wait()
    await expect(ui.button("cancel")).to_contain_text(
        "can undo 2 calls, releases “Lock”, 1 call can't be undone"
    )
    return ui


@pytest.mark.parametrize("how", ["click", "key"])
async def test_one_tap_or_key_never_cancels(harness: Harness, stage: Stage, how: str) -> None:
    """A cancel is final, even if the run has changed nothing yet."""
    ui = await open_at_tool(harness, stage, "read")
    await (ui.button("cancel").click() if how == "click" else ui.page.keyboard.press("c"))
    sheet = ui.page.locator("midrun-cancel-sheet")
    await expect(sheet).to_contain_text("It has changed nothing that a cancel could undo.")
    await ui.expect_badge("Pausing, requested by you")
    await ui.page.keyboard.press("Escape")
    await ui.expect_badge("Running")
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await sheet.get_by_role("button", name="End the run").click()
    await ui.expect_badge("Cancelled by you")


async def test_a_halted_run_is_cancelled_through_the_sheet_too(
    harness: Harness, stage: Stage
) -> None:
    """The cancel is carried out when the halt is lifted."""
    ui = await open_at_tool(harness, stage, "read")
    await ui.site.mid.halt("fire drill", actor="operator:olga")
    await ui.expect_badge("Halted")
    await ui.button("cancel").click()
    sheet = ui.page.locator("midrun-cancel-sheet")
    await sheet.get_by_role("button", name="End the run").click()
    await expect(sheet).to_have_count(0)
    await expect(ui.button("cancel")).to_contain_text("Requested")


async def test_the_cancel_sheet_pauses_the_run_and_lists_the_consequences(
    harness: Harness, stage: Stage
) -> None:
    """Nothing new starts while the sheet is open; *Keep running* ends the hold."""
    ui = await open_with_effects(harness, stage)
    await ui.button("cancel").click()
    sheet = ui.page.locator("midrun-cancel-sheet")
    await ui.expect_badge("Pausing, requested by you")
    await expect(sheet.get_by_role("heading")).to_be_focused()
    for text in ("It can undo:", "Draft: name “memo”", "Slow draft: name “work”"):
        await expect(sheet).to_contain_text(text)
    await expect(sheet).to_contain_text("It cannot undo:")
    await expect(sheet).to_contain_text("Released in any case:")
    await expect(ui.page.locator("midrun-controls")).to_contain_text("Paused while you decide")
    stage.gate("work").set()
    await ui.expect_badge("Paused by you")
    await expect(sheet).to_be_visible()
    await sheet.get_by_role("button", name="Keep running").click()
    await ui.expect_badge("Completed")
    assert stage.undone == []


async def test_escape_keeps_it_running(harness: Harness, stage: Stage) -> None:
    """Esc never stops a run."""
    ui = await open_with_effects(harness, stage)
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await ui.page.keyboard.press("Escape")
    await ui.expect_badge("Running")
    await expect(ui.button("cancel")).to_be_focused()


async def test_a_cancel_undoes_and_reports_in_three_columns(
    harness: Harness, stage: Stage
) -> None:
    """An undone call is not listed as done; empty columns are shown."""
    ui = await open_with_effects(harness, stage)
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await ui.button_named("Cancel and undo 2").click()
    await ui.expect_badge("Cancelled by you")
    report = ui.page.locator("midrun-report")
    columns = report.locator(".columns > div")
    await expect(columns).to_have_text(
        [
            match_text("Done and kept Quick: name “post”"),
            match_text("Undone Slow draft: name “work” Draft: name “memo”"),
            match_text("Could not be undone Nothing."),
        ]
    )
    await expect(report).to_contain_text("Released Lock: name “table”")
    last = report.get_by_text("No model or tool calls were made after")
    await expect(last).to_contain_text("except undoing and releasing.")
    assert sorted(stage.undone) == ["memo", "work"]
    assert stage.released == ["table"]
    states = ui.page.locator("midrun-steps ol > li")
    await expect(states.first).to_contain_text("Undone")
    await expect(states.nth(2)).to_contain_text("Not started")
    await ui.page.set_viewport_size({"width": 1100, "height": 400})
    await ui.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(report.get_by_role("heading").first).not_to_be_in_viewport()
    await ui.button_named("Read the report").click()
    await expect(report.get_by_role("heading").first).to_be_in_viewport()
    await expect(report.get_by_role("heading").first).to_be_focused()


async def test_the_page_of_a_finished_run_repeats_requests_that_failed(
    harness: Harness, stage: Stage
) -> None:
    """The feed has ended, so no event causes another request."""
    ui = await open_with_effects(harness, stage)
    failed: list[str] = []

    async def fail_once(route: Route) -> None:
        if failed:
            await route.continue_()
        else:
            failed.append(route.request.url)
            await route.abort()

    await ui.page.route("**/v1/runs/*/report", fail_once)
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await ui.button_named("Cancel and undo 2").click()
    await expect(ui.page.get_by_role("heading", name="Report")).to_be_visible()
    await expect(ui.page.locator("midrun-steps ol > li").first).to_contain_text("Undone")
    assert failed


async def test_a_cancel_may_keep_the_changes(harness: Harness, stage: Stage) -> None:
    """Only what was in flight is undone."""
    ui = await open_with_effects(harness, stage)
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await ui.button_named("Cancel, keep changes").click()
    await ui.expect_badge("Cancelled by you")
    assert stage.undone == ["work"]
    report = ui.page.locator("midrun-report .columns > div").first
    await expect(report).to_have_text(
        match_text("Done and kept Look around Draft: name “memo” Quick: name “post”")
    )


async def test_a_hold_without_a_decision_expires(harness: Harness, stage: Stage) -> None:
    """The sheet closes with a message."""
    ui = await open_with_effects(harness, stage)
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await ui.run.resume(actor="ann")  # its timer does the same
    await expect(ui.page.locator("midrun-cancel-sheet")).to_have_count(0)
    await expect(ui.page.locator("midrun-controls")).to_contain_text(
        "No decision came in time, so the run resumed."
    )
    await ui.expect_badge("Running")


async def test_no_letter_confirms_a_cancel(harness: Harness, stage: Stage) -> None:
    """Only a button of the sheet does; also after a reload with the sheet open."""
    ui = await open_with_effects(harness, stage)
    sheet = ui.page.locator("midrun-cancel-sheet")
    await ui.page.keyboard.press("c")
    await ui.expect_badge("Pausing, requested by you")
    for _ in range(2):
        await expect(sheet).to_be_visible()
        await advance_clock(ui.page, PRESS_DELAY_MS)
        await ui.page.keyboard.press("c")
        await ui.page.reload()
    await expect(sheet).to_be_visible()
    assert (await ui.run.view()).phase == "pausing"
    await sheet.get_by_role("button", name="Cancel and undo 2").press("Enter")
    await ui.expect_badge("Cancelled by you")
    assert sorted(stage.undone) == ["memo", "work"]


async def test_a_failed_undo_is_shown_and_can_be_retried(
    harness: Harness, stage: Stage
) -> None:
    """Until an operator accepts it."""
    turns = ([PLAN, Use("stuck_draft", name="work")], "All done.")
    hurried = Environment(
        lease=timedelta(seconds=30), random_unit=lambda: -1.0
    )  # attempts do not wait
    ui = await open_run_page(harness, stage, *turns, outside=hurried)
    await stage.start("work").wait()
    await ui.button("cancel").click()
    await ui.button_named("Cancel and undo 1").click()
    await ui.expect_badge("Cancelled by you — 1 undo failed")
    column = ui.page.locator("midrun-report .columns > div").last
    await expect(column).to_contain_text("the far end refused to undo")
    before = (await ui.run.view()).seq
    await ui.show_every_entry()
    await ui.button_named("Retry undo").click()
    timeline = ui.page.locator("midrun-timeline")
    await expect(timeline).to_contain_text("you asked to retry the failed cleanup")
    after = (await ui.run.until("cancelled")).seq  # it failed again
    await expect(timeline).to_contain_text(f"#{after}")
    await ui.expect_badge("Cancelled by you — 1 undo failed")
    assert after > before
    await ui.button_named("Leave it as it is").click()
    await expect(ui.button_named("Retry undo")).to_have_count(0)
    await ui.expect_badge("Cancelled by you")


async def test_a_cancel_that_lost_a_race_is_named(harness: Harness, stage: Stage) -> None:
    """The loser wanted to undo; the winner did not."""
    ui = await open_with_effects(harness, stage)
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await hold_feed(ui.page)  # the page does not know it yet
    await ui.run.cancel(undo="in_flight", actor="ann")
    await ui.button_named("Cancel and undo 2").click()
    await expect(ui.page.locator("midrun-controls")).to_contain_text(
        "Your cancel was not used: ann cancelled first."
    )
    assert stage.undone == ["work"]
