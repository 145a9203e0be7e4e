"""Redirects and side questions from the page: sent, pending, applied, taken back, returned."""

import pytest
from playwright.async_api import expect

from tests.browser.bench import Bench
from tests.browser.stage import Hold, Stage, Turn, Use
from tests.browser.watching import PLAN, at_tool, watched

pytestmark = pytest.mark.once

TEXT = "Summarise what you have and stop"


async def test_a_redirect_waits_for_its_step_and_then_shows_what_changed(
    bench: Bench, stage: Stage
) -> None:
    """One line out, one line in; the tool that runs is let finish."""
    seen = await at_tool(bench, stage)
    await seen.writes(TEXT)
    await seen.page.keyboard.press("Enter")
    bar = seen.page.locator("midrun-controls")
    await expect(bar).to_contain_text(f"Redirect by you waits for the next step: “{TEXT}”")
    await expect(seen.button("redirect")).to_be_focused()
    assert stage.did == []
    stage.gate("work").set()
    await seen.says("Completed")
    await expect(seen.page.locator("midrun-timeline")).to_contain_text(f"Look around + {TEXT}")
    assert stage.did == ["work"]


async def test_a_redirect_can_be_taken_back(bench: Bench, stage: Stage) -> None:
    """Before it is applied; the run goes on as it would have."""
    seen = await at_tool(bench, stage)
    await seen.writes(TEXT)
    await seen.action("Redirect").last.click()
    await seen.action("Withdraw").click()
    await expect(seen.action("Withdraw")).to_have_count(0)
    stage.gate("work").set()
    await seen.says("Completed")
    view = await seen.run.view()
    assert view.output == "All done."


async def test_a_redirect_that_waits_can_be_hurried(bench: Bench, stage: Stage) -> None:
    """*Apply now* stops the call, and the words are not sent twice."""
    seen = await watched(
        bench, stage, [PLAN, Use("slow", name="work")], [Hold("new"), "Right."]
    )
    await stage.start("work").wait()
    await seen.writes(TEXT)
    await seen.page.keyboard.press("Enter")
    await seen.action("Apply now").click()
    await stage.start("new").wait()
    await expect(seen.page.locator("midrun-controls .diff")).to_contain_text(TEXT)
    await expect(seen.action("Withdraw")).to_have_count(0)
    assert stage.stopped == ["work"]
    stage.gate("new").set()
    await seen.says("Completed")


async def test_now_stops_the_current_call(bench: Bench, stage: Stage) -> None:
    """The person said now."""
    seen = await at_tool(bench, stage)
    await seen.writes(TEXT)
    await seen.page.get_by_label("Now — stop the current call").check()
    await seen.action("Redirect").last.click()
    await seen.says("Completed")
    assert (stage.stopped, stage.did) == (["work"], [])


async def test_a_side_question_holds_the_thought_and_comes_back(
    bench: Bench, stage: Stage
) -> None:
    """It is acknowledged at once; the frame is shown while it is answered."""
    answer: Turn = ["It was by Ames, ", Hold("aside"), "2019."]
    seen = await watched(bench, stage, [PLAN, Use("slow", name="work")], answer, "Going on.")
    await stage.start("work").wait()
    await seen.writes("What was that paper?")
    await seen.page.get_by_label("Side question").check()
    await expect(seen.page.get_by_label("Now — stop")).to_have_count(0)
    await expect(seen.page.get_by_label("What do you want to know?")).to_be_visible()
    await seen.action("Ask").click()
    await expect(seen.page.locator("midrun-controls")).to_contain_text("Hold on — finishing")
    stage.gate("work").set()
    await stage.start("aside").wait()
    await expect(seen.page.locator("midrun-controls")).not_to_contain_text("Hold on")
    frames = seen.page.locator("midrun-frames")
    await expect(frames).to_contain_text("Held topics (1 of 4)")
    await expect(frames).to_contain_text("Write a memo")
    await expect(frames).to_contain_text("held at step 1 of 3")
    top = seen.page.locator("midrun-controls .status")
    await expect(top).to_contain_text("held at step 1 of 3")  # it is not what is answered
    item = seen.page.locator("midrun-steps ol > li").first
    await expect(item.locator(".look").first).to_have_text("Held")
    stage.gate("aside").set()
    await seen.says("Completed")
    await expect(frames).to_be_hidden()
    await expect(seen.page.locator("midrun-timeline")).to_contain_text("Back to Write a memo")
    steps = seen.page.locator("midrun-steps .turn").get_by_text("Back to Write a memo")
    await expect(steps).to_have_count(1)
    await expect(steps.locator("em")).to_have_text("Write a memo")


async def test_a_held_thought_can_be_dropped(bench: Bench, stage: Stage) -> None:
    """By name: nobody drops what they do not see."""
    answer: Turn = ["By Ames, ", Hold("aside"), "2019."]
    seen = await watched(bench, stage, [PLAN, Use("slow", name="work")], answer)
    await stage.start("work").wait()
    await seen.run.say("What was that paper?", actor="olga")
    stage.gate("work").set()
    await stage.start("aside").wait()
    await seen.action("Drop").click()
    await expect(seen.page.locator("midrun-frames")).to_be_hidden()
    stage.gate("aside").set()
    await seen.says("Completed")


async def test_a_paused_run_resumes_with_what_is_written(bench: Bench, stage: Stage) -> None:
    """One press, one command: nothing happens between resuming and the new course."""
    seen = await watched(
        bench, stage, ["I think ", Hold("mid"), "so."], [Hold("new"), "Right."]
    )
    await stage.start("mid").wait()
    await seen.button("pause").click()
    await seen.says("Paused by you")
    await seen.writes(TEXT)
    await expect(seen.page.get_by_label("Now — stop")).to_have_count(0)
    await seen.action("Resume with this").click()
    await stage.start("new").wait()
    await expect(seen.page.locator("midrun-controls .diff")).to_contain_text(TEXT)
    stage.gate("new").set()
    await seen.says("Completed")
    steps = seen.page.locator("midrun-steps")
    await expect(steps).to_contain_text("interrupted here")
    await expect(steps).not_to_contain_text("continued here")  # it answers something else


async def test_a_change_of_course_is_news_until_the_next_step(
    bench: Bench, stage: Stage
) -> None:
    """Only what is dropped is crossed out: the plan still has its item."""
    new: Turn = [Hold("new"), Use("quick", name="a")]
    seen = await watched(
        bench, stage, [PLAN, Use("slow", name="work")], new, [Hold("next"), "Right."]
    )
    await stage.start("work").wait()
    await seen.writes(TEXT)
    await seen.page.keyboard.press("Enter")
    await expect(seen.action("Withdraw")).to_be_visible()
    stage.gate("work").set()
    await stage.start("new").wait()
    diff = seen.page.locator("midrun-controls .diff")
    await expect(diff).to_contain_text(TEXT)
    await expect(diff).not_to_contain_text("Look around")
    stage.gate("new").set()
    await stage.start("next").wait()
    await expect(diff).to_have_count(0)


async def test_a_redirect_that_resumes_does_not_say_that_nothing_changed(
    bench: Bench, stage: Stage
) -> None:
    """The words are the change."""
    seen = await watched(bench, stage, ["I ", Hold("mid"), "think."], [Hold("new"), "Right."])
    await stage.start("mid").wait()
    await seen.button("pause").click()
    await seen.says("Paused by you")
    await seen.run.redirect(TEXT, actor="olga")
    await stage.start("new").wait()
    timeline = seen.page.locator("midrun-timeline")
    await expect(timeline).to_contain_text("with a new instruction")
    await expect(timeline).not_to_contain_text("no changes")


async def test_a_draft_survives_news_and_a_reload(bench: Bench, stage: Stage) -> None:
    """Nobody types twice because something happened."""
    seen = await at_tool(bench, stage)
    await seen.writes("Half a thou")
    await seen.run.pause(actor="ann")
    await seen.says("Pausing by ann")
    box = seen.page.get_by_label("What should happen next?")
    await expect(box).to_have_value("Half a thou")
    await expect(box).to_be_focused()
    await seen.page.reload()
    await seen.says("Pausing by ann")
    await seen.button("redirect").click()
    await expect(box).to_have_value("Half a thou")
    await seen.page.keyboard.press("Escape")
    await expect(box).to_have_count(0)
    await seen.button("redirect").click()
    await expect(box).to_have_value("")
    assert (await seen.run.view()).phase == "pausing"


async def test_words_on_what_nobody_has_seen_are_not_sent(bench: Bench, stage: Stage) -> None:
    """The text stays; the person looks again and decides."""
    seen = await at_tool(bench, stage)
    await seen.writes(TEXT)
    await seen.page.route("**/seen", lambda route: route.abort())  # the page knows nothing new
    await seen.run.pause(actor="ann")
    await seen.page.keyboard.press("Enter")
    alert = seen.page.get_by_role("alert")
    await expect(alert).to_contain_text("the run changed meanwhile")
    await expect(seen.page.get_by_label("What should happen next?")).to_have_value(TEXT)
    assert not (await seen.run.view()).pending


async def test_words_that_came_too_late_come_back(bench: Bench, stage: Stage) -> None:
    """It finished first; the text can start a run of its own."""
    seen = await watched(bench, stage, [PLAN, Use("slow", name="work")], "More.")
    await stage.start("work").wait()
    await seen.run.say("And mail it to Bo", urgency="later", actor="olga")
    await seen.writes(TEXT)
    await seen.page.keyboard.press("Enter")
    await expect(seen.action("Withdraw")).to_have_count(2)
    await seen.run.cancel(actor="olga")
    await seen.says("Cancelled by you")
    bar = seen.page.locator("midrun-controls")
    await expect(bar).to_contain_text(f"It was cancelled first. Your text: “{TEXT}”")
    await seen.action("Start a follow-up run").last.click()
    await seen.page.wait_for_url(lambda url: not url.endswith(str(seen.run.id)))
    await expect(seen.page.get_by_role("heading", level=1)).to_have_text(TEXT)
