"""Drafts survive reloads, sign-outs and lost sessions until they are sent."""

from playwright.async_api import Page, expect

from tests.browser.harness import Harness, wait_until
from tests.browser.run_page import open_at_tool, open_run_page
from tests.browser.stage import Stage, Use
from tests.unit.server.conftest import make_token


async def sign_in_again(page: Page) -> None:
    """Enter a token into the sign-in form."""
    await page.get_by_label("Token").fill(make_token("olga"))
    await page.get_by_role("button", name="Sign in").click()


async def has_no_drafts(page: Page) -> bool:
    """Tell whether the browser stores no draft."""
    kept: list[str] = await page.evaluate("Object.keys(sessionStorage)")
    return not kept


async def test_a_draft_survives_a_session_that_ends(harness: Harness, stage: Stage) -> None:
    """The viewer learns it when they send; the draft is there after the new sign-in."""
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction("Leave out Acme.")
    await ui.page.context.clear_cookies()
    await ui.page.keyboard.press("Enter")
    await sign_in_again(ui.page)
    box = ui.page.get_by_label("What should happen next?")
    await expect(box).to_have_value("Leave out Acme.")
    await expect(box).not_to_be_focused()  # P, R and C are keys of the page
    await ui.page.keyboard.press("r")
    await expect(box).to_be_focused()
    await ui.page.keyboard.press("Enter")
    await expect(ui.page.locator("midrun-controls")).to_contain_text("“Leave out Acme.”")
    await ui.page.reload()
    await ui.expect_badge("Running")
    await expect(box).to_have_value("")  # it was sent


async def test_an_answer_and_an_edit_survive_a_reload(harness: Harness, stage: Stage) -> None:
    """A decision removes the drafts of its card."""
    turns = [Use("ask", question="Which quarter?")], Use("mail", name="bo"), "Done."
    ui = await open_run_page(harness, stage, *turns)
    answer = ui.page.get_by_label("Answer to: Which quarter?")
    await answer.fill("the thi")
    await ui.page.reload()
    await expect(answer).to_have_value("the thi")
    await answer.fill("the third")
    await ui.page.keyboard.press("Enter")
    await ui.button_named("Edit…").click()
    name = ui.page.get_by_label("Name", exact=True)
    await name.fill("eve")
    await ui.page.reload()
    await expect(name).to_have_value("eve")
    await ui.button_named("Approve this").click()
    await ui.expect_badge("Completed")
    assert stage.completed == ["eve"]
    await wait_until(lambda: has_no_drafts(ui.page))  # once the reply is there


async def test_a_draft_of_a_takeover_survives_a_reload(harness: Harness, stage: Stage) -> None:
    ui = await open_at_tool(harness, stage)
    await ui.button_named("Take over").click()
    await ui.expect_badge("Taking over, requested by you")
    stage.gate("work").set()
    text = ui.page.get_by_label("Write in the agent")
    await text.fill("I have looked")
    await ui.page.reload()
    await expect(text).to_have_value("I have looked")
    await ui.button_named("Write").click()
    await expect(text).to_have_value("")
    await ui.page.reload()
    await expect(text).to_have_value("")


async def test_a_sign_out_removes_all_drafts(harness: Harness, stage: Stage) -> None:
    """Another person may sign in next in the same tab."""
    ui = await open_at_tool(harness, stage)
    await ui.type_instruction("What only I should read")
    await ui.button_named("Sign out").click()
    await expect(ui.page.get_by_label("Token")).to_be_visible()
    await wait_until(lambda: has_no_drafts(ui.page))
