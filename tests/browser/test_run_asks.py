"""What waits for a person: approved, edited, declined, answered; by one of two people."""

import pytest
from playwright.async_api import Page, expect

from midrun import Agent, Call, ask_human, tool
from midrun.agents.human import PauseHere
from midrun.core.values import Json
from tests.browser.bench import Bench, freeze, later
from tests.browser.stage import HeldModel, Hold, Stage, Turn, Use
from tests.browser.watching import Watched, watched

pytestmark = pytest.mark.once

CONFLICT = 409

LINGER_MS = 31_000
"""For a little less than this one reads what was decided."""

FIRST = """() => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const top = (name) => run.querySelector(name).getBoundingClientRect().top;
  return top("midrun-asks") < top("midrun-steps");
}"""


async def asked(bench: Bench, stage: Stage, who: str = "olga") -> Watched:
    """Open the page of a run that wants to mail somebody."""
    seen = await watched(bench, stage, Use("mail", name="bo"), "All done.", who=who)
    await seen.says("Waiting for you")
    return seen


async def test_a_call_is_approved(bench: Bench, stage: Stage) -> None:
    """The card says what it would do; nothing is done before."""
    seen = await asked(bench, stage)
    card = seen.page.locator("midrun-asks .card")
    await expect(card).to_contain_text('"name": "bo"')
    assert stage.did == []
    await seen.action("Approve").click()
    await seen.says("Completed")
    assert stage.did == ["bo"]


async def test_an_argument_that_is_hidden_is_named_and_keeps_a_call_from_being_approved(
    bench: Bench, stage: Stage
) -> None:
    """The card says which one and why; so does the refusal. Nothing is done."""
    secret = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    seen = await watched(bench, stage, Use("mail", name=secret), "All done.", who="olga")
    await seen.says("Waiting for you")
    card = seen.page.locator("midrun-asks .card")
    await expect(card).to_contain_text("Cannot be approved as it is: name is hidden")
    await expect(card).not_to_contain_text(secret)
    await seen.action("Approve").click()
    await expect(seen.page.get_by_role("alert").first).to_contain_text("name is hidden")
    assert stage.did == []


async def test_what_was_decided_is_shown_for_a_while(bench: Bench, stage: Stage) -> None:
    """With the answer; after that nothing needs anybody."""
    seen = await watched(bench, stage, Use("ask", question="Which region?"), "All done.")
    await seen.says("Waiting for you")
    await seen.page.get_by_label("Answer to: Which region?").fill("north")
    await seen.action("Answer").click()
    asks = seen.page.locator("midrun-asks")
    await expect(asks).to_contain_text("Which region? — Answered by you: “north”")
    await seen.says("Completed")
    await expect(asks).not_to_contain_text("Needs your answer")
    await later(seen.page, LINGER_MS)
    await expect(asks).to_be_hidden()


async def test_a_question_with_options_is_its_buttons(bench: Bench, stage: Stage) -> None:
    """The same words once more, as JSON, would help nobody."""
    use = Use("ask_human", question="Which one?", options=["North", "South"])
    agent = Agent("asker", model=HeldModel(stage, [use, "All done."]), tools=[ask_human])
    site = await bench.site(agent)
    run = await site.start("asker")
    page = await bench.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await expect(card.get_by_role("button", name="South")).to_be_visible()
    await expect(card).not_to_contain_text("ask_human")
    await expect(card).not_to_contain_text("options")
    await card.get_by_role("button", name="South").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")


@tool
async def poll(call: Call) -> Json:
    """Ask, and go on with the answer."""
    if call.answered is None:
        raise PauseHere("Which one?", {"options": ["North", "South"]}, {"kept": 1})
    return call.answered


async def test_a_question_that_its_tool_goes_on_from_can_be_declined(
    bench: Bench, stage: Stage
) -> None:
    """What is kept for the tool is not shown."""
    agent = Agent("asker", model=HeldModel(stage, [Use("poll"), "All done."]), tools=[poll])
    site = await bench.site(agent)
    run = await site.start("asker")
    page = await bench.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await card.get_by_role("button", name="Decline…").click()
    await expect(card).not_to_contain_text("kept")
    await card.get_by_role("textbox").fill("neither")
    await card.get_by_role("button", name="Decline").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")


async def test_on_a_phone_the_question_comes_first_and_the_bar_leads_to_it(
    bench: Bench, stage: Stage
) -> None:
    """Nobody should have to look for what the run waits for."""
    seen = await asked(bench, stage)
    await seen.page.set_viewport_size({"width": 390, "height": 760})
    await expect(seen.page.locator("midrun-asks .card")).to_be_visible()
    assert await seen.page.evaluate(FIRST)
    await expect(seen.button("pause").locator("kbd")).to_be_hidden()
    await seen.action("Answer…").click()
    await expect(seen.action("Approve")).to_be_focused()
    await expect(seen.action("Approve")).to_be_in_viewport()


async def test_a_call_is_approved_with_other_arguments(bench: Bench, stage: Stage) -> None:
    """What does not fit is refused, and what was written stays."""
    seen = await asked(bench, stage)
    await seen.action("Edit…").click()
    box = seen.page.get_by_label("Arguments of mail, as JSON")
    await box.fill('{"name": "ada"')
    await seen.action("Approve this").click()
    alert = seen.page.locator("midrun-asks").get_by_role("alert")
    await expect(alert).to_contain_text("This is not JSON")
    await box.fill('{"nobody": "ada"}')
    await seen.action("Approve this").click()
    await expect(alert).to_contain_text("The arguments do not fit: ")
    await expect(alert).not_to_contain_text("Allowed now")
    await expect(alert).not_to_contain_text(str(seen.run.id))
    await box.fill('{"name": "ada"}')
    await seen.action("Approve this").click()
    await seen.says("Completed")
    assert stage.did == ["ada"]


async def test_a_call_is_declined(bench: Bench, stage: Stage) -> None:
    """The agent is told why, and goes on. What is typed is for the card, not for the run."""
    seen = await asked(bench, stage)
    await seen.action("Decline…").click()
    reason = seen.page.get_by_label("Why not?")
    await expect(reason).to_be_focused()
    await seen.page.keyboard.press("Escape")
    await expect(seen.action("Decline…")).to_be_focused()
    await seen.page.keyboard.press("Enter")
    await seen.page.keyboard.type("crp")
    await seen.page.locator("header a").first.press("p")  # the focus may be anywhere
    assert (await seen.run.view()).phase == "waiting"
    await expect(reason).to_have_value("crp")
    await reason.press("Enter")
    await seen.says("Completed")
    assert stage.did == []
    await expect(seen.page.locator("midrun-timeline")).to_contain_text("decline: crp")


async def test_what_is_asked_comes_into_view_and_the_focus_stays_with_it(
    bench: Bench, stage: Stage
) -> None:
    """Whoever reads along at the end of a long text, and after they have decided."""
    long: Turn = ["One line of many.\n" * 80, Hold("mid"), "So.", Use("mail", name="bo")]
    seen = await watched(bench, stage, long, [Hold("end"), "All done."])
    await stage.start("mid").wait()
    await expect(seen.page.get_by_role("heading", level=1)).not_to_be_in_viewport()
    stage.gate("mid").set()
    await seen.says("Waiting for you")
    await expect(seen.action("Approve")).to_be_in_viewport()
    await seen.action("Approve").click()
    title = seen.page.locator("midrun-asks").get_by_role("heading")
    await expect(title).to_have_text("Decided just now")
    await expect(title).to_be_focused()


async def test_a_question_is_answered(bench: Bench, stage: Stage) -> None:
    """The answer is the result of the call that asked."""
    seen = await watched(bench, stage, Use("ask", question="Which region?"), "All done.")
    await seen.says("Waiting for you")
    await expect(seen.page.locator("midrun-controls .note")).to_contain_text("Which region?")
    await seen.page.get_by_label("Answer to: Which region?").fill("north")
    await seen.action("Answer").click()
    await seen.says("Completed")
    await expect(seen.page.locator("midrun-steps")).to_contain_text("ask")


async def test_of_two_people_one_decides_and_the_other_learns_who(
    bench: Bench, stage: Stage
) -> None:
    """Also if both press at the same moment: the mail goes out once."""
    seen = await asked(bench, stage, who="ann")
    other = await bench.page(seen.site, seen.path, who="olga", clock=True)
    await expect(other.locator("midrun-asks .card")).to_be_visible()
    await freeze(other)  # what was decided is shown for a while
    await other.route("**/seen", lambda route: route.abort())  # its card stays open
    await seen.action("Approve").click()
    await seen.says("Completed")
    await expect(other.locator("midrun-asks")).to_contain_text("Approved by ann")
    await other.get_by_role("button", name="Decline…").dispatch_event("click")
    await other.get_by_label("Why not?").fill("too early")
    async with other.expect_response(lambda reply: reply.status == CONFLICT):
        await other.get_by_label("Why not?").press("Enter")
    asks = other.locator("midrun-asks")
    await expect(asks.get_by_role("alert")).to_have_text(
        "Your decision was not used: ann approved it first."
    )
    await expect(asks.get_by_label("Your text")).to_have_value("too early")
    assert stage.did == ["bo"]


async def question(bench: Bench, stage: Stage) -> tuple[Watched, Page]:
    """Open the page of a run that asks something, as ann, and as olga, who hears nothing."""
    use = Use("ask", question="Which region?")
    seen = await watched(bench, stage, use, [Hold("end"), "All done."], who="ann")
    await seen.says("Waiting for you")
    other = await bench.page(seen.site, seen.path, who="olga", clock=True)
    await expect(other.get_by_label("Answer to: Which region?")).to_be_visible()
    return seen, other


async def answers(page: Page, text: str) -> None:
    """Write an answer, and send it."""
    await page.get_by_label("Answer to: Which region?").fill(text)
    await page.get_by_role("button", name="Answer", exact=True).click()


async def loses_to(winner: Page, loser: Page, first: str, second: str) -> None:
    """Answer on a page whose card is still open although another page has answered.

    The loser's feed is open and brings the other answer at any moment. A text that is in
    the field at that moment counts as not sent, so the text is written after it.
    """
    await freeze(loser)  # the line about the other answer stays
    await loser.route("**/seen", lambda route: route.abort())  # its card stays open
    await answers(winner, first)
    await expect(loser.locator("midrun-asks")).to_contain_text(f"“{first}”")
    await answers(loser, second)


async def test_an_answer_that_lost_a_race_is_named_and_kept(bench: Bench, stage: Stage) -> None:
    """The loser is told who won and with what, and can copy their own text."""
    seen, other = await question(bench, stage)
    await loses_to(seen.page, other, "north", "south, because of the harbour")
    asks = other.locator("midrun-asks")
    await expect(asks.get_by_role("alert")).to_have_text(
        "Your answer was not used: ann answered “north” first."
    )
    text = asks.get_by_label("Your text")
    await expect(text).to_have_value("south, because of the harbour")
    await other.unroute("**/seen")
    await other.clock.resume()
    await other.reload()
    await expect(text).to_have_value("south, because of the harbour")
    await asks.get_by_role("button", name="Dismiss").click()
    await expect(text).to_have_count(0)


async def test_a_text_that_was_being_written_is_kept_when_another_answers(
    bench: Bench, stage: Stage
) -> None:
    """The card goes away under the writer's hands; the text does not."""
    seen, other = await question(bench, stage)
    await other.get_by_label("Answer to: Which region?").fill("south")
    await answers(seen.page, "north")
    asks = other.locator("midrun-asks")
    await expect(asks.get_by_role("alert")).to_have_text(
        "Your text was not sent. Answered by ann: “north”"
    )
    await expect(asks.get_by_label("Your text")).to_have_value("south")
    await expect(seen.page.locator("midrun-asks").get_by_role("alert")).to_have_count(0)


async def test_two_tabs_of_one_person_can_lose_to_each_other(
    bench: Bench, stage: Stage
) -> None:
    """The same name is no reason to drop what the second tab sent."""
    seen, _ = await question(bench, stage)
    tab = await bench.page(seen.site, seen.path, who="ann", clock=True)
    await expect(tab.get_by_label("Answer to: Which region?")).to_be_visible()
    await loses_to(seen.page, tab, "first", "second")
    alert = tab.locator("midrun-asks").get_by_role("alert")
    await expect(alert).to_have_text("Your answer was not used: you answered “first” first.")


async def test_a_pause_keeps_the_question_open(bench: Bench, stage: Stage) -> None:
    """Both can be done, in either order."""
    seen = await asked(bench, stage)
    await expect(seen.button("pause")).to_contain_text("Pauses here; the question stays open.")
    await seen.button("pause").click()
    await seen.says("Paused by you")
    await seen.action("Approve").click()
    await expect(seen.page.locator("midrun-asks .card")).to_have_count(0)
    await seen.press("pause")
    await seen.says("Completed")
    assert stage.did == ["bo"]
