"""The task list: what the agent says as it says it, and what it did, folded."""

import re

import pytest
from playwright.async_api import expect

from tests.browser.bench import Bench
from tests.browser.stage import Hold, Stage, Turn, Use
from tests.browser.watching import PLAN, watched

pytestmark = pytest.mark.once


async def test_words_are_shown_as_they_come_and_kept_where_they_were_cut_off(
    bench: Bench, stage: Stage
) -> None:
    """Pause in mid-sentence, resume: both ends of the cut are marked."""
    first: Turn = [Hold("before"), "Churn rose, and I am ", Hold("first"), "not sure why."]
    then: Turn = [Hold("again"), "The reason is ", Hold("second"), "price."]
    seen = await watched(bench, stage, first, then)
    steps = seen.page.locator("midrun-steps")
    await stage.start("before").wait()
    await expect(steps).to_contain_text("writing …")
    stage.gate("before").set()
    await expect(steps).to_contain_text("Churn rose, and I am")
    await expect(steps).not_to_contain_text("not sure why")
    await seen.button("pause").click()
    await seen.says("Paused by you")
    await expect(steps).to_contain_text("interrupted here; the text above is kept")
    await seen.press("pause")
    await stage.start("again").wait()
    stage.gate("again").set()
    await expect(steps).to_contain_text("continued here")
    await expect(steps).to_contain_text("The reason is")
    stage.gate("second").set()
    await seen.says("Completed")
    await expect(seen.page.get_by_role("region", name="Result")).to_contain_text("price.")


async def test_a_call_is_folded_and_says_why_with_what_and_what_came_of_it(
    bench: Bench, stage: Stage
) -> None:
    """Arguments and result are there for who wants them."""
    turn: Turn = [PLAN, Use("quick", name="memo")]
    seen = await watched(bench, stage, turn, [Hold("end"), "Done."])
    await stage.start("end").wait()
    call = seen.page.locator("midrun-steps .call")
    await expect(call).to_contain_text("Done")
    await expect(call.get_by_text("memo done")).to_be_hidden()
    await call.locator("summary").click()
    await expect(call.get_by_text("memo done")).to_be_visible()
    await expect(call.locator("dl")).to_contain_text('"name": "memo"')


async def test_each_item_of_the_plan_says_where_it_stands(bench: Bench, stage: Stage) -> None:
    """Running, then needs you, then done: as the agent and the run go on."""
    onward = [Use("plan", marks={"1": "done", "2": "running"}), Use("mail", name="work")]
    seen = await watched(bench, stage, [PLAN, Use("slow", name="first")], onward, "Sent.")
    items = seen.page.locator("midrun-steps ol > li")
    await expect(items).to_have_count(3)
    await expect(items.nth(0)).to_contain_text("Running")
    await expect(items.nth(2)).to_contain_text("Queued")
    stage.gate("first").set()
    await expect(items.nth(0)).to_contain_text("Done")
    await expect(items.nth(1)).to_contain_text("Needs you")
    await seen.action("Approve").click()
    await seen.says("Completed")
    await expect(items.nth(1)).to_contain_text("Left open")
    await expect(items.nth(2)).to_contain_text("Not started")


async def test_what_was_dropped_is_no_step_anywhere(bench: Bench, stage: Stage) -> None:
    """The rows, the bar and the timeline count alike."""
    plan = Use(
        "plan",
        items=["Look around", "Count votes", "Write the memo", "Send it"],
        marks={"1": "done", "2": "dropped", "3": "running"},
    )
    seen = await watched(bench, stage, [plan, Use("slow", name="work")], "Sent.")
    items = seen.page.locator("midrun-steps ol > li")
    await expect(items.nth(1)).to_contain_text("Dropped")
    await expect(items.locator(".title > span")).to_have_text(
        ["1. Look around", "Count votes", "2. Write the memo", "3. Send it"]
    )
    bar = seen.page.locator("midrun-controls .status")
    await expect(bar).to_contain_text("step 2 of 3")
    await expect(seen.page.locator("midrun-timeline")).to_contain_text("1 of 3 done")
    await stage.start("work").wait()
    await seen.button("pause").click()
    await seen.says("Pausing by you")
    stage.gate("work").set()
    await seen.says("Paused by you")
    await expect(bar).to_contain_text("1 of 3 done")


async def test_the_bar_counts_as_the_rows_do_after_an_item_failed(
    bench: Bench, stage: Stage
) -> None:
    """What failed lies behind, as what is done does; what was dropped is no step."""
    items = ["Ask the old one", "Leave it out", "Ask the new one", "Write it up"]
    marks = {"1": "failed", "2": "dropped", "3": "running"}
    turn: Turn = [Use("plan", items=items, marks=marks), Use("slow", name="work")]
    seen = await watched(bench, stage, turn, "Done.")
    await expect(seen.page.locator("midrun-controls")).to_contain_text("step 2 of 3")
    rows = seen.page.locator("midrun-steps li")
    await expect(rows).to_have_text(
        [
            re.compile(r"Failed\s+1\. Ask the old one"),
            re.compile(r"Dropped\s+Leave it out"),
            re.compile(r"Running\s+2\. Ask the new one"),
            re.compile(r"Queued\s+3\. Write it up"),
        ]
    )
