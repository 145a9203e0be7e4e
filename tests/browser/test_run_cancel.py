"""Cancelling from the page: what it would undo is said first, what it did is reported."""

from datetime import timedelta

import pytest
from playwright.async_api import expect

from midrun.ports.environment import Outside
from tests.browser.bench import Bench, later
from tests.browser.stage import Stage, Use
from tests.browser.watching import PLAN, SETTLED_MS, Watched, at_tool, exactly, watched

pytestmark = pytest.mark.once


async def with_effects(bench: Bench, stage: Stage) -> Watched:
    """Open the page of a run that did things, with a draft in flight."""
    done = [
        PLAN,
        Use("draft", name="memo"),
        Use("quick", name="post"),
        Use("lock", name="table"),
    ]
    now = [Use("plan", marks={"1": "done", "2": "running"}), Use("slow_draft", name="work")]
    seen = await watched(bench, stage, done, now, "All done.")
    await stage.start("work").wait()
    await expect(seen.button("cancel")).to_contain_text(
        "can undo 2 calls, releases lock, 1 call can't be undone"
    )
    return seen


@pytest.mark.parametrize("how", ["click", "key"])
async def test_one_tap_or_key_never_cancels(bench: Bench, stage: Stage, how: str) -> None:
    """A cancel cannot be taken back, also where the run has changed nothing yet."""
    seen = await at_tool(bench, stage, "read")
    await (seen.button("cancel").click() if how == "click" else seen.page.keyboard.press("c"))
    sheet = seen.page.locator("midrun-cancel-sheet")
    await expect(sheet).to_contain_text("It has changed nothing that a cancel could undo.")
    await seen.says("Pausing by you")
    await seen.page.keyboard.press("Escape")
    await seen.says("Running")
    await seen.button("cancel").click()
    await seen.says("Pausing by you")
    await sheet.get_by_role("button", name="Cancel", exact=True).click()
    await seen.says("Cancelled by you")


async def test_a_halted_run_is_cancelled_through_the_sheet_too(
    bench: Bench, stage: Stage
) -> None:
    """The cancel is carried out when the halt is lifted."""
    seen = await at_tool(bench, stage, "read")
    await seen.site.mid.halt("fire drill", actor="operator:olga")
    await seen.says("Halted")
    await seen.button("cancel").click()
    sheet = seen.page.locator("midrun-cancel-sheet")
    await sheet.get_by_role("button", name="Cancel", exact=True).click()
    await expect(sheet).to_have_count(0)
    await expect(seen.button("cancel")).to_contain_text("Asked for")


async def test_the_sheet_holds_the_run_and_names_what_will_happen(
    bench: Bench, stage: Stage
) -> None:
    """Nothing new starts while somebody reads; *keep running* lets it go on."""
    seen = await with_effects(bench, stage)
    await seen.button("cancel").click()
    sheet = seen.page.locator("midrun-cancel-sheet")
    await seen.says("Pausing by you")
    await expect(sheet.get_by_role("heading")).to_be_focused()
    for text in ("It can undo:", 'draft {"name":"memo"}', 'slow_draft {"name":"work"}'):
        await expect(sheet).to_contain_text(text)
    await expect(sheet).to_contain_text("It cannot undo:")
    await expect(sheet).to_contain_text("It releases in any case:")
    await expect(seen.page.locator("midrun-controls")).to_contain_text("Held while you decide")
    stage.gate("work").set()
    await seen.says("Paused by you")
    await expect(sheet).to_be_visible()
    await sheet.get_by_role("button", name="Keep running").click()
    await seen.says("Completed")
    assert stage.undone == []


async def test_escape_keeps_it_running(bench: Bench, stage: Stage) -> None:
    """Esc never stops a run."""
    seen = await with_effects(bench, stage)
    await seen.button("cancel").click()
    await seen.says("Pausing by you")
    await seen.page.keyboard.press("Escape")
    await seen.says("Running")
    await expect(seen.button("cancel")).to_be_focused()


async def test_a_cancel_undoes_and_reports_in_three_columns(bench: Bench, stage: Stage) -> None:
    """What was undone is not also called done; the columns are there, empty or not."""
    seen = await with_effects(bench, stage)
    await seen.button("cancel").click()
    await seen.says("Pausing by you")
    await seen.action("Cancel and undo 2").click()
    await seen.says("Cancelled by you")
    report = seen.page.locator("midrun-report")
    columns = report.locator(".columns > div")
    await expect(columns).to_have_text(
        [
            exactly('Done and kept quick {"name":"post"}'),
            exactly('Undone slow_draft {"name":"work"} draft {"name":"memo"}'),
            exactly("Could not be undone Nothing."),
        ]
    )
    await expect(report).to_contain_text('Released: lock {"name":"table"}')
    last = report.get_by_text("No model or tool calls were made after")
    await expect(last).to_contain_text("except undoing and releasing.")
    assert sorted(stage.undone) == ["memo", "work"]
    assert stage.released == ["table"]
    states = seen.page.locator("midrun-steps ol > li")
    await expect(states.first).to_contain_text("Undone")
    await expect(states.nth(2)).to_contain_text("Not started")
    await seen.page.set_viewport_size({"width": 1100, "height": 400})
    await seen.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(report.get_by_role("heading").first).not_to_be_in_viewport()
    await seen.action("Read the report").click()
    await expect(report.get_by_role("heading").first).to_be_in_viewport()
    await expect(report.get_by_role("heading").first).to_be_focused()


async def test_a_cancel_may_keep_the_changes(bench: Bench, stage: Stage) -> None:
    """Only what was in flight is undone."""
    seen = await with_effects(bench, stage)
    await seen.button("cancel").click()
    await seen.says("Pausing by you")
    await seen.action("Cancel, keep changes").click()
    await seen.says("Cancelled by you")
    assert stage.undone == ["work"]
    report = seen.page.locator("midrun-report .columns > div").first
    await expect(report).to_have_text(
        exactly('Done and kept Look around draft {"name":"memo"} quick {"name":"post"}')
    )


async def test_a_hold_that_nobody_ends_ends_by_itself(bench: Bench, stage: Stage) -> None:
    """And the sheet says so: it is no longer true."""
    seen = await with_effects(bench, stage)
    await seen.button("cancel").click()
    await seen.says("Pausing by you")
    await seen.run.resume(actor="ann")  # what its time being up does, and anybody may do
    await expect(seen.page.locator("midrun-cancel-sheet")).to_have_count(0)
    await expect(seen.page.locator("midrun-controls")).to_contain_text(
        "No decision came in time, so the run resumed."
    )
    await seen.says("Running")


async def test_c_twice_cancels(bench: Bench, stage: Stage) -> None:
    """The second confirms what the sheet says first."""
    seen = await with_effects(bench, stage)
    await seen.page.keyboard.press("c")
    await seen.page.keyboard.press("c")  # too soon: nothing could have been read
    await seen.says("Pausing by you")
    await expect(seen.page.locator("midrun-cancel-sheet")).to_be_visible()
    await later(seen.page, SETTLED_MS)
    await seen.page.keyboard.press("c")
    await seen.says("Cancelled by you")
    assert sorted(stage.undone) == ["memo", "work"]


async def test_what_could_not_be_undone_is_shown_and_tried_again(
    bench: Bench, stage: Stage
) -> None:
    """Until an operator leaves it as it is."""
    turns = ([PLAN, Use("stuck_draft", name="work")], "All done.")
    hurried = Outside(lease=timedelta(seconds=30), chance=lambda: -1.0)  # attempts do not wait
    seen = await watched(bench, stage, *turns, outside=hurried)
    await stage.start("work").wait()
    await seen.button("cancel").click()
    await seen.action("Cancel and undo 1").click()
    await seen.says("Cancelled by you — 1 undo failed")
    column = seen.page.locator("midrun-report .columns > div").last
    await expect(column).to_contain_text("the far end refused to undo")
    before = (await seen.run.view()).seq
    await seen.action("Retry undo").click()
    timeline = seen.page.locator("midrun-timeline")
    await expect(timeline).to_contain_text("undo.retried")
    after = (await seen.run.until("cancelled")).seq  # it failed again
    await expect(timeline).to_contain_text(f"#{after}")
    await seen.says("Cancelled by you — 1 undo failed")
    assert after > before
    await seen.action("Leave it as it is").click()
    await expect(seen.action("Retry undo")).to_have_count(0)
    await seen.says("Cancelled by you")


async def test_a_cancel_that_lost_a_race_is_named(bench: Bench, stage: Stage) -> None:
    """The loser wanted to undo; the winner did not."""
    seen = await with_effects(bench, stage)
    await seen.button("cancel").click()
    await seen.says("Pausing by you")
    await seen.page.route("**/seen", lambda route: route.abort())  # it has not heard yet
    await seen.run.cancel(undo="in_flight", actor="ann")
    await seen.action("Cancel and undo 2").click()
    await expect(seen.page.locator("midrun-controls")).to_contain_text(
        "Your cancel was not used: ann cancelled first."
    )
    assert stage.undone == ["work"]
