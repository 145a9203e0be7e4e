"""The steps: streamed text, folded calls, and the state of each plan item."""

import json
import re

import pytest
from playwright.async_api import expect

from tests.browser.harness import Harness
from tests.browser.run_page import PLAN, match_text, open_run_page
from tests.browser.stage import Hold, Stage, Turn, Use

pytestmark = pytest.mark.once


async def test_words_are_shown_as_they_come_and_kept_where_they_were_cut_off(
    harness: Harness, stage: Stage
) -> None:
    """After a pause in mid-sentence and a resume, both ends of the cut are marked."""
    first: Turn = [Hold("before"), "Churn rose, and I am ", Hold("first"), "not sure why."]
    then: Turn = [Hold("again"), "The reason is ", Hold("second"), "price."]
    ui = await open_run_page(harness, stage, first, then)
    steps = ui.page.locator("midrun-steps")
    await stage.start("before").wait()
    await expect(steps).to_contain_text("Writing …")
    stage.gate("before").set()
    await expect(steps).to_contain_text("Churn rose, and I am")
    await expect(steps).not_to_contain_text("not sure why")
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await expect(steps).to_contain_text("interrupted here; the text above is kept")
    await ui.press("pause")
    await stage.start("again").wait()
    stage.gate("again").set()
    await expect(steps).to_contain_text("continued here")
    await expect(steps).to_contain_text("The reason is")
    stage.gate("second").set()
    await ui.expect_badge("Completed")
    await expect(ui.page.get_by_role("region", name="Result")).to_contain_text("price.")


async def test_each_reply_names_its_agent_after_a_handoff(
    harness: Harness, stage: Stage
) -> None:
    """So do the facts below the task, and the timeline."""
    desk = stage.play(["The bill is 5. ", Hold("end"), "Anything else?"], name="desk")
    first: Turn = ["One moment.", Use("hand_off_to_desk")]
    ui = await open_run_page(harness, stage, first, handoffs=[desk])
    await stage.start("end").wait()
    authors = ui.page.locator("midrun-steps .turn[data-role=assistant] .author")
    await expect(authors.first).to_have_text("actor")
    await expect(ui.page.locator(".facts")).to_contain_text("actor, handed over to desk")
    stage.gate("end").set()
    await ui.expect_badge("Completed")
    await expect(ui.page.get_by_role("region", name="Result")).to_contain_text("Anything else?")


async def test_a_folded_call_unfolds_to_its_reason_arguments_and_result(
    harness: Harness, stage: Stage
) -> None:
    """It unfolds to reason, arguments and result."""
    turn: Turn = [PLAN, Use("quick", name="memo")]
    ui = await open_run_page(harness, stage, turn, [Hold("end"), "Done."])
    await stage.start("end").wait()
    call = ui.page.locator("midrun-steps .call")
    await expect(call).to_contain_text("Done")
    await expect(call.get_by_text("memo done")).to_be_hidden()
    await call.locator("summary").first.click()
    await expect(call.get_by_text("memo done")).to_be_visible()
    await expect(call.locator(".fields")).to_have_text(match_text("Name memo"))
    await expect(call.locator("pre").first).to_be_hidden()  # the JSON, behind its toggle


async def test_each_item_of_the_plan_says_where_it_stands(
    harness: Harness, stage: Stage
) -> None:
    """Running, then needs you, then done."""
    onward = [Use("plan", marks={"1": "done", "2": "running"}), Use("mail", name="work")]
    ui = await open_run_page(harness, stage, [PLAN, Use("slow", name="first")], onward, "Sent.")
    items = ui.page.locator("midrun-steps ol > li")
    await expect(items).to_have_count(3)
    await expect(items.nth(0)).to_contain_text("Running")
    await expect(items.nth(2)).to_contain_text("Queued")
    stage.gate("first").set()
    await expect(items.nth(0)).to_contain_text("Done")
    await expect(items.nth(1)).to_contain_text("Needs you")
    await ui.button_named("Approve").click()
    await ui.expect_badge("Completed")
    await expect(items.nth(1)).to_contain_text("Left open")
    await expect(items.nth(2)).to_contain_text("Not started")


async def test_a_dropped_plan_item_is_counted_nowhere(harness: Harness, stage: Stage) -> None:
    """Rows, bar and timeline count the same."""
    plan = Use(
        "plan",
        items=["Look around", "Count votes", "Write the memo", "Send it"],
        marks={"1": "done", "2": "dropped", "3": "running"},
    )
    ui = await open_run_page(harness, stage, [plan, Use("slow", name="work")], "Sent.")
    items = ui.page.locator("midrun-steps ol > li")
    await expect(items.nth(1)).to_contain_text("Dropped")
    await expect(items.locator(".title > span")).to_have_text(
        ["1. Look around", "Count votes", "2. Write the memo", "3. Send it"]
    )
    bar = ui.page.locator("midrun-controls .status")
    await expect(bar).to_contain_text("plan 2/3")
    await expect(ui.page.locator("midrun-timeline")).to_contain_text("Look around (done)")
    await stage.start("work").wait()
    await ui.button("pause").click()
    await ui.expect_badge("Pausing, requested by you")
    stage.gate("work").set()
    await ui.expect_badge("Paused by you")
    await expect(bar).to_contain_text("plan 1/3 done")


async def test_the_bar_counts_as_the_rows_do_after_an_item_failed(
    harness: Harness, stage: Stage
) -> None:
    """A failed item counts as passed; a dropped one does not count."""
    items = ["Ask the old one", "Leave it out", "Ask the new one", "Write it up"]
    marks = {"1": "failed", "2": "dropped", "3": "running"}
    turn: Turn = [Use("plan", items=items, marks=marks), Use("slow", name="work")]
    ui = await open_run_page(harness, stage, turn, "Done.")
    await expect(ui.page.locator("midrun-controls")).to_contain_text("plan 2/3")
    rows = ui.page.locator("midrun-steps li")
    await expect(rows).to_have_text(
        [
            re.compile(r"Failed\s+1\. Ask the old one"),
            re.compile(r"Dropped\s+Leave it out"),
            re.compile(r"Running\s+2\. Ask the new one"),
            re.compile(r"Queued\s+3\. Write it up"),
        ]
    )


async def test_on_a_wide_screen_the_plan_is_a_rail_that_leads_to_its_items(
    harness: Harness, stage: Stage
) -> None:
    """The transcript then leaves out the items that have not begun."""
    long = "\n\n".join(f"Paragraph {n}." for n in range(60))
    turn: Turn = [long, PLAN, Use("slow", name="work")]
    ui = await open_run_page(harness, stage, turn, "Done.")
    await stage.start("work").wait()
    rail = ui.page.get_by_role("navigation", name="Plan")
    await expect(rail).to_be_hidden()
    await ui.page.set_viewport_size({"width": 1280, "height": 800})
    await expect(rail.get_by_role("button")).to_have_count(3)
    queued = ui.page.locator("midrun-steps [data-item='3']")
    await expect(queued).to_be_hidden()
    item = ui.page.locator("midrun-steps [data-item='1'] > details > summary")
    await ui.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await expect(item).not_to_be_in_viewport()
    await rail.get_by_role("button", name="Look around").click()
    await expect(item).to_be_in_viewport()


async def test_a_structured_result_is_shown_as_fields(harness: Harness, stage: Stage) -> None:
    """Records are a table; the end of a long text, and the JSON, are behind a toggle."""
    accounts = [{"name": "Acme", "left_at": 3}, {"name": "Bo", "left_at": 5}]
    text = "\n".join(f"Line {number} of many." for number in range(80))
    output = json.dumps({"title": "Churn", "accounts": accounts, "cut": 0.5, "text": text})
    ui = await open_run_page(harness, stage, output)
    await ui.expect_badge("Completed")
    result = ui.page.get_by_role("region", name="Result")
    await expect(result.locator("dt")).to_have_text(["Title", "Accounts", "Cut", "Text"])
    await expect(result.locator("th")).to_have_text(["Name", "Left at"])
    await expect(result.locator("td")).to_have_text(["Acme", "3", "Bo", "5"])
    await expect(result.get_by_text("Line 79 of many.").first).to_be_hidden()
    await result.get_by_text(f"Show all {len(text):,} characters").click()
    await expect(result.get_by_text("Line 79 of many.").first).to_be_visible()
    await expect(result.get_by_text("Show less")).to_be_visible()
    beginnings = result.get_by_text("Line 0 of many.").filter(visible=True)
    await expect(beginnings).to_have_count(1)  # the whole text takes the place of its beginning
    await expect(result.locator("pre")).to_be_hidden()
    await result.get_by_text("JSON").click()
    await expect(result.locator("pre")).to_contain_text('"name": "Acme"')
