"""Asks: approved, edited, declined, answered; and two people who decide at once."""

import re

import pytest
from playwright.async_api import Locator, Page, expect

from midrun import Agent, Call, ask_human, tool
from midrun.agents.builtin_tools import PauseHere
from midrun.core.values import Json
from tests.browser.harness import Harness, advance_clock, freeze_clock
from tests.browser.run_page import RunPage, hold_feed, match_text, open_run_page
from tests.browser.stage import HeldModel, Hold, Stage, Turn, Use

pytestmark = pytest.mark.once

CONFLICT = 409

FRESH_MS = 600
"""A card that has just appeared or moved takes no press for a little less than this."""

LINGER_MS = 31_000
"""For a little less than this one reads what was decided."""

FIRST = """() => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const top = (name) => run.querySelector(name).getBoundingClientRect().top;
  return top("midrun-asks") < top("midrun-steps");
}"""


async def open_with_asks(harness: Harness, stage: Stage, who: str = "olga") -> RunPage:
    """Open the page of a run that waits for the approval of a mail."""
    ui = await open_run_page(harness, stage, Use("mail", name="bo"), "All done.", who=who)
    await ui.expect_badge("Waiting for you")
    return ui


async def test_a_call_is_approved(harness: Harness, stage: Stage) -> None:
    """The card shows the call; it is made only after the approval."""
    ui = await open_with_asks(harness, stage)
    card = ui.page.locator("midrun-asks .card")
    await expect(card.locator(".fields")).to_have_text(match_text("Name bo"))
    await expect(card.locator("pre")).to_be_hidden()  # the JSON, behind its toggle
    assert stage.completed == []
    await ui.button_named("Approve").click()
    await ui.expect_badge("Completed")
    assert stage.completed == ["bo"]


async def test_an_approval_of_a_child_run_shows_the_arguments_of_its_call(
    harness: Harness, stage: Stage
) -> None:
    """The parent's own call has another tool and other arguments."""
    aide = stage.play(Use("mail", name="to-eve"), "Sent.", name="aide")
    parent = Agent(
        "actor", model=HeldModel(stage, [Use("aide", task="Do")]), tools=[aide.as_tool()]
    )
    site = await harness.site(parent, aide)
    run = await site.start()
    page = await harness.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await expect(card).to_contain_text("child run")
    await expect(card.locator(".subject")).to_contain_text("to-eve")


async def test_an_argument_that_is_hidden_is_named_and_keeps_a_call_from_being_approved(
    harness: Harness, stage: Stage
) -> None:
    """Card and refusal name the argument and the reason; the call is not made."""
    secret = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    ui = await open_run_page(harness, stage, Use("mail", name=secret), "All done.", who="olga")
    await ui.expect_badge("Waiting for you")
    card = ui.page.locator("midrun-asks .card")
    await expect(card).to_contain_text("name is hidden")
    await expect(card).not_to_contain_text(secret)
    await ui.button_named("Approve").click()
    await expect(ui.page.get_by_role("alert").first).to_contain_text("name is hidden")
    assert stage.completed == []


async def test_a_decision_is_shown_for_a_while(harness: Harness, stage: Stage) -> None:
    """With the answer."""
    ui = await open_run_page(harness, stage, Use("ask", question="Which region?"), "All done.")
    await ui.expect_badge("Waiting for you")
    await ui.page.get_by_label("Answer to: Which region?").fill("north")
    await ui.button_named("Answer").click()
    asks = ui.page.locator("midrun-asks")
    await expect(asks).to_contain_text("Which region? — Answered by you: “north”")
    await ui.expect_badge("Completed")
    await expect(asks).not_to_contain_text("Needs your answer")
    await advance_clock(ui.page, LINGER_MS)
    await expect(asks).to_be_hidden()


async def test_a_question_with_options_is_its_buttons(harness: Harness, stage: Stage) -> None:
    """The options are not shown as JSON as well."""
    use = Use("ask_human", question="Which one?", options=["North", "South"])
    agent = Agent("asker", model=HeldModel(stage, [use, "All done."]), tools=[ask_human])
    site = await harness.site(agent)
    run = await site.start("asker")
    page = await harness.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await expect(card.get_by_role("button", name="South")).to_be_visible()
    await expect(card).not_to_contain_text("ask_human")
    await expect(card).not_to_contain_text("options")
    await card.get_by_role("button", name="South").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")


@tool
async def poll(call: Call) -> Json:
    """Ask, and continue with the answer."""
    if call.answered is None:
        raise PauseHere("Which one?", {"options": ["North", "South"]}, {"kept": 1})
    return call.answered


async def test_a_question_that_its_tool_goes_on_from_can_be_declined(
    harness: Harness, stage: Stage
) -> None:
    """The tool's continuation data is not shown."""
    agent = Agent("asker", model=HeldModel(stage, [Use("poll"), "All done."]), tools=[poll])
    site = await harness.site(agent)
    run = await site.start("asker")
    page = await harness.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    await card.get_by_role("button", name="Decline…").click()
    await expect(card).not_to_contain_text("kept")
    await card.get_by_role("textbox").fill("neither")
    await card.get_by_role("button", name="Decline").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")


async def test_on_a_phone_the_question_comes_first_and_the_bar_leads_to_it(
    harness: Harness, stage: Stage
) -> None:
    ui = await open_with_asks(harness, stage)
    await ui.page.set_viewport_size({"width": 390, "height": 760})
    await expect(ui.page.locator("midrun-asks .card")).to_be_visible()
    assert await ui.page.evaluate(FIRST)
    await expect(ui.button("pause").locator("kbd")).to_be_hidden()
    await ui.button_named("Answer…").click()
    await expect(ui.button_named("Approve")).to_be_focused()
    await expect(ui.button_named("Approve")).to_be_in_viewport()


async def test_a_call_is_approved_with_other_arguments(harness: Harness, stage: Stage) -> None:
    """Invalid arguments are refused, and the text stays in the editor."""
    ui = await open_with_asks(harness, stage)
    await ui.button_named("Edit…").click()
    await ui.button_named("Edit as JSON").click()
    box = ui.page.get_by_label("Arguments of Mail, as JSON")
    await box.fill('{"name": "ada"')
    await ui.button_named("Approve this").click()
    alert = ui.page.locator("midrun-asks").get_by_role("alert")
    await expect(alert).to_contain_text("This is not JSON")
    await box.fill('{"recipient": "ada"}')
    await ui.button_named("Approve this").click()
    await expect(alert).to_contain_text("recipient: no such argument")
    await expect(alert).not_to_contain_text("Allowed now")
    await expect(alert).not_to_contain_text(str(ui.run.id))
    await box.fill('{"name": "bo"}')
    await ui.button_named("Edit as fields").click()
    await ui.page.get_by_label("Name", exact=True).fill("ada")
    await ui.button_named("Approve this").click()
    await ui.expect_badge("Completed")
    decided = ui.page.locator("midrun-asks")
    await expect(decided).to_contain_text("Approved by you, with another “Name”")
    assert stage.completed == ["ada"]


async def test_a_call_is_declined(harness: Harness, stage: Stage) -> None:
    """The agent gets the reason. Keys typed into the card are no shortcuts."""
    ui = await open_with_asks(harness, stage)
    await ui.button_named("Decline…").click()
    reason = ui.page.get_by_label("Why not?")
    await expect(reason).to_be_focused()
    await ui.page.keyboard.press("Escape")
    await expect(ui.button_named("Decline…")).to_be_focused()
    await ui.page.keyboard.press("Enter")
    await ui.page.keyboard.type("crp")
    await ui.page.locator("header a").first.press("p")  # the focus may be anywhere
    assert (await ui.run.view()).phase == "waiting"
    await expect(reason).to_have_value("crp")
    await reason.press("Enter")
    await ui.expect_badge("Completed")
    assert stage.completed == []
    await expect(ui.page.locator("midrun-timeline")).to_contain_text("because: crp")


async def test_an_ask_comes_into_view_and_its_decision_keeps_the_focus(
    harness: Harness, stage: Stage
) -> None:
    """Also for a reader at the end of a long text, and after the decision."""
    long: Turn = ["One line of many.\n" * 80, Hold("mid"), "So.", Use("mail", name="bo")]
    ui = await open_run_page(harness, stage, long, [Hold("end"), "All done."])
    await stage.start("mid").wait()
    await expect(ui.page.get_by_role("heading", level=1)).not_to_be_in_viewport()
    stage.gate("mid").set()
    await ui.expect_badge("Waiting for you")
    await expect(ui.button_named("Approve")).to_be_in_viewport()
    await ui.button_named("Approve").click()
    title = ui.page.locator("midrun-asks").get_by_role("heading", level=2)
    await expect(title).to_have_text("Decided just now")
    await expect(title).to_be_focused()


async def test_a_question_is_answered(harness: Harness, stage: Stage) -> None:
    """The answer is the result of the call that asked."""
    ui = await open_run_page(harness, stage, Use("ask", question="Which region?"), "All done.")
    await ui.expect_badge("Waiting for you")
    await expect(ui.page.locator("midrun-controls .note")).to_contain_text("Which region?")
    await ui.page.get_by_label("Answer to: Which region?").fill("north")
    await ui.button_named("Answer").click()
    await ui.expect_badge("Completed")
    await expect(ui.page.locator("midrun-steps")).to_contain_text("ask")


async def test_of_two_people_one_decides_and_the_other_learns_who(
    harness: Harness, stage: Stage
) -> None:
    """Also if both press at the same moment: the mail is sent once."""
    ui = await open_with_asks(harness, stage, who="ann")
    other = await harness.page(ui.site, ui.path, who="olga", clock=True)
    await expect(other.locator("midrun-asks .card")).to_be_visible()
    await freeze_clock(other)  # so that the decision stays visible
    await hold_feed(other)  # its card stays open
    await ui.button_named("Approve").click()
    await ui.expect_badge("Completed")
    await other.get_by_role("button", name="Decline…").dispatch_event("click")
    await other.get_by_label("Why not?").fill("too early")
    async with other.expect_response(lambda reply: reply.status == CONFLICT):
        await other.get_by_label("Why not?").press("Enter")
    asks = other.locator("midrun-asks")
    await expect(asks.get_by_role("alert")).to_have_text(
        "Your decision was not used: ann approved it first."
    )
    await expect(asks.get_by_label("Your text")).to_have_value("too early")
    assert stage.completed == ["bo"]


async def open_in_two_browsers(harness: Harness, stage: Stage) -> tuple[RunPage, Page]:
    """Open the page of a run that asks a question, as ann and as olga, who gets no events."""
    use = Use("ask", question="Which region?")
    ui = await open_run_page(harness, stage, use, [Hold("end"), "All done."], who="ann")
    await ui.expect_badge("Waiting for you")
    other = await harness.page(ui.site, ui.path, who="olga", clock=True)
    await expect(other.get_by_label("Answer to: Which region?")).to_be_visible()
    return ui, other


async def answer(page: Page, text: str) -> None:
    """Type an answer and send it."""
    await page.get_by_label("Answer to: Which region?").fill(text)
    await page.get_by_role("button", name="Answer", exact=True).click()


async def check_loser(winner: Page, loser: Page, first: str, second: str) -> None:
    """Answer on a page whose card is still open although another page has answered."""
    await freeze_clock(loser)  # the line about the other answer stays
    await hold_feed(loser)  # its card stays open
    async with winner.expect_response("**/v1/asks/*"):
        await answer(winner, first)
    await answer(loser, second)


async def test_an_answer_that_lost_a_race_is_named_and_kept(
    harness: Harness, stage: Stage
) -> None:
    """The loser sees the winner and their answer, and can copy the unsent text."""
    ui, other = await open_in_two_browsers(harness, stage)
    await check_loser(ui.page, other, "north", "south, because of the harbour")
    asks = other.locator("midrun-asks")
    await expect(asks.get_by_role("alert")).to_have_text(
        "Your answer was not used: ann answered “north” first."
    )
    text = asks.get_by_label("Your text")
    await expect(text).to_have_value("south, because of the harbour")
    await other.clock.resume()
    await other.reload()
    await expect(text).to_have_value("south, because of the harbour")
    await asks.get_by_role("button", name="Dismiss").click()
    await expect(text).to_have_count(0)


async def test_a_text_that_was_being_written_is_kept_when_another_answers(
    harness: Harness, stage: Stage
) -> None:
    """The card disappears while its viewer types; the text is kept."""
    ui, other = await open_in_two_browsers(harness, stage)
    await other.get_by_label("Answer to: Which region?").fill("south")
    await answer(ui.page, "north")
    asks = other.locator("midrun-asks")
    await expect(asks.get_by_role("alert")).to_have_text(
        "Your text was not sent. Answered by ann: “north”"
    )
    await expect(asks.get_by_label("Your text")).to_have_value("south")
    await expect(ui.page.locator("midrun-asks").get_by_role("alert")).to_have_count(0)


async def test_two_tabs_of_one_person_can_lose_to_each_other(
    harness: Harness, stage: Stage
) -> None:
    """The text of the second tab is kept although the winner has the same name."""
    ui, _ = await open_in_two_browsers(harness, stage)
    tab = await harness.page(ui.site, ui.path, who="ann", clock=True)
    await expect(tab.get_by_label("Answer to: Which region?")).to_be_visible()
    await check_loser(ui.page, tab, "first", "second")
    alert = tab.locator("midrun-asks").get_by_role("alert")
    await expect(alert).to_have_text("Your answer was not used: you answered “first” first.")


async def test_a_pause_keeps_the_question_open(harness: Harness, stage: Stage) -> None:
    """Answer and resume are possible in either order."""
    ui = await open_with_asks(harness, stage)
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await ui.button_named("Approve").click()
    await expect(ui.page.locator("midrun-asks .card")).to_have_count(0)
    await ui.press("pause")
    await ui.expect_badge("Completed")
    assert stage.completed == ["bo"]


WATCH_CARDS = """() => {
  const run = document.querySelector("midrun-run").shadowRoot;
  const asks = run.querySelector("midrun-asks").shadowRoot;
  globalThis.firstStates = {};
  new MutationObserver(() => {
    for (const card of asks.querySelectorAll("[data-ask]")) {
      firstStates[card.dataset.ask] ??= card.hasAttribute("inert");
    }
  }).observe(asks, {childList: true, subtree: true});
}"""


async def test_a_card_that_has_just_appeared_takes_no_press(
    harness: Harness, stage: Stage
) -> None:
    """The press was meant for the card that was there before."""
    turns = (Use("mail", name="bo"), Use("mail", name="eve"), "All done.")
    ui = await open_run_page(harness, stage, *turns)
    first = ui.page.locator("midrun-asks .card").filter(has_text="bo")
    await expect(first).to_be_visible()
    await ui.page.evaluate(WATCH_CARDS)
    await first.get_by_role("button", name="Approve").click()
    second = ui.page.locator("midrun-asks .card").filter(has_text="eve")
    await second.get_by_role("button", name="Approve").click()  # waits until it takes clicks
    await ui.expect_badge("Completed")
    ask = (await ui.page.evaluate("Object.entries(firstStates)"))[-1]
    assert ask[1] is True
    assert stage.completed == ["bo", "eve"]


async def test_a_card_that_moves_up_takes_no_press(harness: Harness, stage: Stage) -> None:
    """The second click of a double click was not meant for the card below."""
    both: Turn = [Use("mail", name="bo"), Use("mail", name="eve")]
    ui = await open_run_page(harness, stage, both, "All done.")
    cards = ui.page.locator("midrun-asks .card")
    await expect(cards).to_have_count(2)
    await freeze_clock(ui.page)
    await cards.filter(has_text="bo").get_by_role("button", name="Approve").click()
    await expect(cards).to_have_count(1)
    await expect(cards).to_have_attribute("inert", "")
    await advance_clock(ui.page, FRESH_MS)
    await expect(cards).not_to_have_attribute("inert", "")


payments: list[tuple[float, str]] = []


@tool(approve=True)
async def pay(amount: float, note: str, order: dict[str, Json]) -> str:
    """Pay for an order."""
    payments.append((amount, note))
    return f"paid for {order}"


async def open_payment(harness: Harness, stage: Stage) -> tuple[Page, Locator]:
    """Open the page of a run that asks whether it may pay; return its card too."""
    payments.clear()
    order = {"to": {"bank": {"account": {"iban": "DE00", "owner": "x" * 80 + " Mallory"}}}}
    use = Use("pay", amount=2.5, note="n" * 58, order=order)
    agent = Agent("payer", model=HeldModel(stage, [use, "All done."]), tools=[pay])
    site = await harness.site(agent)
    run = await site.start("payer")
    page = await harness.page(site, f"/runs/{run.id}")
    return page, page.locator("midrun-asks .card")


@pytest.mark.parametrize(
    ("typed", "sent"), [("1.05", 1.05), ("0.05", 0.05), ("-0.5", -0.5), ("1e3", 1000.0)]
)
async def test_a_number_is_sent_as_it_was_typed(
    harness: Harness, stage: Stage, typed: str, sent: float
) -> None:
    """Key by key: the page does not write into the field meanwhile."""
    page, card = await open_payment(harness, stage)
    await card.get_by_role("button", name="Edit…").click()
    amount = card.get_by_label("Amount")
    await expect(amount).to_have_value("2.5")
    await amount.press("Control+a")
    await page.keyboard.type(typed)
    await expect(amount).to_have_value(typed)
    await card.get_by_role("button", name="Approve this").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")
    assert payments == [(sent, "n" * 58)]


async def test_a_text_that_grows_long_keeps_its_field(harness: Harness, stage: Stage) -> None:
    """Another element would take the focus from the person who types."""
    page, card = await open_payment(harness, stage)
    await card.get_by_role("button", name="Edit…").click()
    await expect(card.get_by_label("Iban")).to_have_value("DE00")
    await expect(card.locator(".arguments")).not_to_contain_text("JSON")
    note = card.get_by_label("Note")
    await note.press("End")
    await page.keyboard.type("and more")
    await expect(note).to_have_value("n" * 58 + "and more")
    await expect(note).to_be_focused()


async def test_an_approver_can_see_all_of_a_deep_argument(
    harness: Harness, stage: Stage
) -> None:
    """What has no room on the card is behind a toggle at its place."""
    _, card = await open_payment(harness, stage)
    deep = card.locator(".fields details")
    await expect(deep.locator("summary")).to_contain_text("…")
    await expect(deep.locator("pre")).to_be_hidden()
    await deep.locator("summary").click()
    await expect(deep.locator("pre")).to_contain_text("Mallory")


@tool(approve=True)
async def edit_page(path: str, old_text: str, new_text: str) -> str:
    """Replace lines of a page."""
    return f"replaced {old_text} by {new_text} in {path}"


async def test_an_approval_shows_the_lines_that_change(harness: Harness, stage: Stage) -> None:
    """The unchanged ones, too, if they are beside a change; the JSON only on request."""
    old, new = "# Hours\n\nMonday to Friday", "# Hours\n\nMonday to Saturday"
    use = Use("edit_page", new_text=new, old_text=old, path="hours.md")
    agent = Agent("editor", model=HeldModel(stage, [use, "Done."]), tools=[edit_page])
    site = await harness.site(agent)
    run = await site.start("editor")
    page = await harness.page(site, f"/runs/{run.id}")
    card = page.locator("midrun-asks .card")
    changed = card.get_by_role("list", name="Changed lines").get_by_role("listitem")
    await expect(changed.locator("visible=true")).to_have_text(
        [
            re.compile("# Hours"),
            re.compile(r"^\s*$"),
            re.compile("removed: Monday to Friday"),
            re.compile("added: Monday to Saturday"),
        ]
    )
    await expect(card).to_contain_text("hours.md")
    await expect(card.locator("pre")).to_be_hidden()
    await card.get_by_role("button", name="Approve").click()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Completed")
