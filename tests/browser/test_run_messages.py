"""Redirects and side questions from the page: sent, pending, applied, withdrawn, returned."""

import anyio
import pytest
from playwright.async_api import Route, expect

from tests.browser.harness import Harness
from tests.browser.run_page import PLAN, hold_feed, open_at_tool, open_run_page
from tests.browser.stage import Hold, Stage, Turn, Use

pytestmark = pytest.mark.once

TEXT = "Summarise what you have and stop"


async def test_a_redirect_waits_for_its_step_and_then_shows_the_change(
    harness: Harness, stage: Stage
) -> None:
    """The running tool may finish; then one line out, one line in."""
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction(TEXT)
    await ui.page.keyboard.press("Enter")
    bar = ui.page.locator("midrun-controls")
    await expect(bar).to_contain_text(f"Redirect by you waits for the next turn: “{TEXT}”")
    await expect(ui.page.get_by_label("What should happen next?")).to_be_focused()
    assert stage.completed == []
    stage.gate("work").set()
    await ui.expect_badge("Completed")
    await expect(ui.page.locator("midrun-timeline")).to_contain_text(
        f"the agent received the new instruction “{TEXT}”"
    )
    assert stage.completed == ["work"]


async def test_a_redirect_can_be_taken_back(harness: Harness, stage: Stage) -> None:
    """Before it is applied."""
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction(TEXT)
    await ui.button_named("Redirect").click()
    await ui.button_named("Withdraw").click()
    await expect(ui.button_named("Withdraw")).to_have_count(0)
    stage.gate("work").set()
    await ui.expect_badge("Completed")
    view = await ui.run.view()
    assert view.output == "All done."


async def test_a_redirect_that_waits_can_be_hurried(harness: Harness, stage: Stage) -> None:
    """*Apply now* stops the call; the redirect is applied once."""
    ui = await open_run_page(
        harness, stage, [PLAN, Use("slow", name="work")], [Hold("new"), "Right."]
    )
    await stage.start("work").wait()
    await ui.type_instruction(TEXT)
    await ui.page.keyboard.press("Enter")
    await ui.button_named("Apply now").click()
    await stage.start("new").wait()
    await expect(ui.page.locator("midrun-controls .diff")).to_contain_text(TEXT)
    await expect(ui.button_named("Withdraw")).to_have_count(0)
    assert stage.stopped == ["work"]
    stage.gate("new").set()
    await ui.expect_badge("Completed")


@pytest.mark.parametrize("how", ["click", "keys"])
async def test_now_stops_the_current_call(harness: Harness, stage: Stage, how: str) -> None:
    """With the button, or with Ctrl+Enter."""
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction(TEXT)
    if how == "keys":
        await ui.page.keyboard.press("Control+Enter")
    else:
        await ui.button_named("Now").click()
    await ui.expect_badge("Completed")
    assert (stage.stopped, stage.completed) == (["work"], [])


async def test_a_side_question_holds_the_topic_and_returns_to_it(
    harness: Harness, stage: Stage
) -> None:
    """It is acknowledged at once; the held topic is shown while it is answered."""
    answer: Turn = ["It was by Ames, ", Hold("aside"), "2019."]
    ui = await open_run_page(
        harness, stage, [PLAN, Use("slow", name="work")], answer, "Going on."
    )
    await stage.start("work").wait()
    await ui.type_question("What was that paper?")
    await expect(ui.button_named("Now")).to_have_count(0)
    await ui.button_named("Ask").click()
    await expect(ui.page.locator("midrun-controls")).to_contain_text("Hold on — finishing")
    stage.gate("work").set()
    await stage.start("aside").wait()
    await expect(ui.page.locator("midrun-controls")).not_to_contain_text("Hold on")
    frames = ui.page.locator("midrun-frames")
    await expect(frames).to_contain_text("Held topics (1 of 4)")
    await expect(frames).to_contain_text("Write a memo")
    await expect(frames).to_contain_text("held at plan 1/3")
    top = ui.page.locator("midrun-controls .status")
    await expect(top).to_contain_text("held at plan 1/3")  # the side question has no plan
    item = ui.page.locator("midrun-steps ol > li").first
    await expect(item.locator(".style").first).to_have_text("Paused")
    stage.gate("aside").set()
    await ui.expect_badge("Completed")
    await expect(frames).to_be_hidden()
    await expect(ui.page.locator("midrun-timeline")).to_contain_text("Back to Write a memo")
    steps = ui.page.locator("midrun-steps .turn").get_by_text("Back to Write a memo")
    await expect(steps).to_have_count(1)
    await expect(steps.locator("em")).to_have_text("Write a memo")


async def test_a_held_topic_can_be_dropped(harness: Harness, stage: Stage) -> None:
    answer: Turn = ["By Ames, ", Hold("aside"), "2019."]
    ui = await open_run_page(harness, stage, [PLAN, Use("slow", name="work")], answer)
    await stage.start("work").wait()
    await ui.run.say("What was that paper?", actor="olga")
    stage.gate("work").set()
    await stage.start("aside").wait()
    await ui.button_named("Drop").click()
    await expect(ui.page.locator("midrun-frames")).to_be_hidden()
    stage.gate("aside").set()
    await ui.expect_badge("Completed")


async def test_a_paused_run_resumes_with_the_written_text(
    harness: Harness, stage: Stage
) -> None:
    """With one command: nothing happens between the resume and the instruction."""
    ui = await open_run_page(
        harness, stage, ["I think ", Hold("mid"), "so."], [Hold("new"), "Right."]
    )
    await stage.start("mid").wait()
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await ui.type_instruction(TEXT)
    await expect(ui.button_named("Now")).to_have_count(0)
    await ui.button_named("Resume with this").click()
    await stage.start("new").wait()
    await expect(ui.page.locator("midrun-controls .diff")).to_contain_text(TEXT)
    stage.gate("new").set()
    await ui.expect_badge("Completed")
    steps = ui.page.locator("midrun-steps")
    await expect(steps).to_contain_text("interrupted here")
    await expect(steps).not_to_contain_text("continued here")  # it answers something else


async def test_a_redirect_is_shown_as_a_diff_until_the_next_step(
    harness: Harness, stage: Stage
) -> None:
    """Work that the plan still contains is not shown as removed."""
    new: Turn = [Hold("new"), Use("quick", name="a")]
    ui = await open_run_page(
        harness, stage, [PLAN, Use("slow", name="work")], new, [Hold("next"), "Right."]
    )
    await stage.start("work").wait()
    await ui.type_instruction(TEXT)
    await ui.page.keyboard.press("Enter")
    await expect(ui.button_named("Withdraw")).to_be_visible()
    stage.gate("work").set()
    await stage.start("new").wait()
    diff = ui.page.locator("midrun-controls .diff")
    await expect(diff).to_contain_text(TEXT)
    await expect(diff).not_to_contain_text("Look around")
    stage.gate("new").set()
    await stage.start("next").wait()
    await expect(diff).to_have_count(0)


async def test_a_redirect_that_resumes_does_not_say_that_nothing_changed(
    harness: Harness, stage: Stage
) -> None:
    ui = await open_run_page(
        harness, stage, ["I ", Hold("mid"), "think."], [Hold("new"), "Right."]
    )
    await stage.start("mid").wait()
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await ui.run.redirect(TEXT, actor="olga")
    await stage.start("new").wait()
    timeline = ui.page.locator("midrun-timeline")
    await expect(timeline).to_contain_text("resumed the run with the new instruction")
    await expect(timeline).not_to_contain_text("no changes")


async def test_a_draft_survives_news_and_a_reload(harness: Harness, stage: Stage) -> None:
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction("Half a thou")
    await ui.run.pause(actor="ann")
    await ui.expect_badge("Pausing, requested by ann")
    box = ui.page.get_by_label("What should happen next?")
    await expect(box).to_have_value("Half a thou")
    await expect(box).to_be_focused()
    await ui.page.reload()
    await ui.expect_badge("Pausing, requested by ann")
    await expect(box).to_have_value("Half a thou")
    await ui.button("redirect").click()
    await expect(box).to_be_focused()
    await ui.page.keyboard.press("Escape")  # leaves the field, and keeps the text
    await expect(ui.button("redirect")).to_be_focused()
    await expect(box).to_have_value("Half a thou")
    assert (await ui.run.view()).phase == "pausing"


async def test_an_instruction_on_an_outdated_view_is_not_applied(
    harness: Harness, stage: Stage
) -> None:
    """The draft stays; the viewer checks the run and decides again."""
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction(TEXT)
    await hold_feed(ui.page)  # the page knows nothing new
    await ui.run.pause(actor="ann")
    await ui.page.keyboard.press("Enter")
    alert = ui.page.get_by_role("alert")
    await expect(alert).to_contain_text("the run changed meanwhile")
    await expect(ui.page.get_by_label("What should happen next?")).to_have_value(TEXT)
    assert not (await ui.run.view()).pending


async def test_words_that_came_too_late_come_back(harness: Harness, stage: Stage) -> None:
    """The run finished first; the text can start a new run."""
    ui = await open_run_page(harness, stage, [PLAN, Use("slow", name="work")], "More.")
    await stage.start("work").wait()
    await ui.run.say("And mail it to Bo", urgency="later", actor="olga")
    await ui.type_instruction(TEXT)
    await ui.page.keyboard.press("Enter")
    await expect(ui.button_named("Withdraw")).to_have_count(2)
    await ui.run.cancel(actor="olga")
    await ui.expect_badge("Cancelled by you")
    bar = ui.page.locator("midrun-controls")
    await expect(bar).to_contain_text(
        f"Your text was not used, because the run was cancelled first: “{TEXT}”"
    )
    await ui.button_named("Start a follow-up run").last.click()
    await ui.page.wait_for_url(lambda url: not url.endswith(str(ui.run.id)))
    await expect(ui.page.get_by_role("heading", level=1)).to_have_text(TEXT)


async def test_what_is_typed_while_a_text_is_sent_stays(harness: Harness, stage: Stage) -> None:
    """Only the text that was sent leaves the field."""
    ui = await open_at_tool(harness, stage)
    sending, reply = anyio.Event(), anyio.Event()

    async def hold(route: Route) -> None:
        sending.set()
        await reply.wait()
        await route.continue_()

    await ui.page.route("**/redirect", hold)
    await ui.type_instruction(TEXT)
    await ui.page.keyboard.press("Enter")
    await sending.wait()
    await ui.page.keyboard.type("Also")
    reply.set()
    await expect(ui.button_named("Withdraw")).to_be_visible()
    await expect(ui.page.get_by_label("What should happen next?")).to_have_value("Also")


async def test_a_side_question_never_becomes_an_instruction_by_itself(
    harness: Harness, stage: Stage
) -> None:
    """The run may end just before Enter: the text is kept, and no run is started."""
    ui = await open_at_tool(harness, stage)
    await ui.type_question("Which paper?")
    stage.gate("work").set()
    await ui.expect_badge("Completed")
    await ui.page.keyboard.press("Enter")
    alert = ui.page.locator("midrun-composer").get_by_role("alert")
    await expect(alert).to_contain_text("the run takes no side questions now")
    box = ui.page.locator("midrun-composer").get_by_role("textbox")
    await expect(box).to_have_value("Which paper?")
    await ui.button_named("Side question; press to write an instruction").click()
    await expect(box).to_have_accessible_name("What should happen next?")
    await expect(box).to_have_value("Which paper?")
    assert ui.page.url.endswith(ui.path)


async def test_a_question_to_a_paused_run_resumes_it(harness: Harness, stage: Stage) -> None:
    """It is answered first; then the run continues where it was."""
    ui = await open_run_page(
        harness, stage, ["I think ", Hold("mid"), "so."], "By Ames.", "I am sure."
    )
    await stage.start("mid").wait()
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await ui.type_question("By whom?")
    await expect(ui.page.locator("midrun-controls .hint")).to_contain_text("Resumes the run")
    await ui.button_named("Ask and resume").click()
    await ui.expect_badge("Completed")
    await expect(ui.page.locator("midrun-steps")).to_contain_text("By Ames.")
    await expect(ui.page.locator("midrun-result")).to_contain_text("I am sure.")


async def test_on_a_phone_a_question_to_a_paused_run_has_room(
    harness: Harness, stage: Stage
) -> None:
    """The labels of the composer are icons there, with the same accessible names."""
    ui = await open_run_page(
        harness, stage, ["I ", Hold("mid"), "think."], ["By ", Hold("aside"), "Ames."]
    )
    await ui.page.set_viewport_size({"width": 390, "height": 844})
    await stage.start("mid").wait()
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await ui.type_question("Which paper was it?")
    field = ui.page.get_by_label("What do you want to know?")
    box = await field.bounding_box()
    assert box is not None
    assert box["width"] > 180
    assert box["height"] < 60, "the question is on one line"
    await expect(ui.page.get_by_label("Side question; press to write an")).to_be_visible()
    await ui.button_named("Ask and resume").click()
    await stage.start("aside").wait()
    await ui.expect_badge("Running")


async def test_on_a_phone_no_label_of_a_button_is_cut(harness: Harness, stage: Stage) -> None:
    """*Keep running* is the longest one."""
    ui = await open_at_tool(harness, stage)
    await ui.page.set_viewport_size({"width": 390, "height": 844})
    await ui.button("pause").click()
    await expect(ui.button("pause")).to_contain_text("Keep running")
    for label in await ui.page.locator("midrun-controls .control b > span").all():
        assert await label.evaluate("label => label.scrollWidth <= label.clientWidth"), label
