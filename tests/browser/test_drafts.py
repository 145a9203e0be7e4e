"""What somebody writes is not lost, whatever happens to the page before it is sent."""

from playwright.async_api import Page, expect

from tests.browser.bench import Bench, comes_true
from tests.browser.stage import Stage, Use
from tests.browser.watching import at_tool, watched
from tests.unit.server.conftest import token_of


async def signed_in_again(page: Page) -> None:
    """Show a token where the page asks for one."""
    await page.get_by_label("Token").fill(token_of("olga"))
    await page.get_by_role("button", name="Sign in").click()


async def has_none(page: Page) -> bool:
    """Tell whether the browser keeps no draft."""
    kept: list[str] = await page.evaluate("Object.keys(sessionStorage)")
    return not kept


async def test_a_session_that_ends_while_somebody_writes_keeps_their_words(
    bench: Bench, stage: Stage
) -> None:
    """They learn it when they press Enter; what they wrote is there when they are back."""
    seen = await at_tool(bench, stage)
    await seen.writes("Leave out Acme.")
    await seen.page.context.clear_cookies()
    await seen.page.keyboard.press("Enter")
    await signed_in_again(seen.page)
    box = seen.page.get_by_label("What should happen next?")
    await expect(box).to_have_value("Leave out Acme.")
    await expect(box).not_to_be_focused()  # P, R and C are keys of the page
    await seen.page.keyboard.press("r")
    await expect(box).to_be_focused()
    await seen.page.keyboard.press("Enter")
    await expect(
        seen.page.get_by_text("waits for the next step: “Leave out Acme.”")
    ).to_be_visible()
    await seen.page.reload()
    await seen.says("Running")
    await expect(box).to_have_count(0)  # it was sent


async def test_an_answer_and_an_edit_survive_a_reload(bench: Bench, stage: Stage) -> None:
    """A card is a place to write, too; what was decided leaves nothing behind."""
    turns = [Use("ask", question="Which quarter?")], Use("mail", name="bo"), "Done."
    seen = await watched(bench, stage, *turns)
    answer = seen.page.get_by_label("Answer to: Which quarter?")
    await answer.fill("the thi")
    await seen.page.reload()
    await expect(answer).to_have_value("the thi")
    await answer.fill("the third")
    await seen.page.keyboard.press("Enter")
    await seen.action("Edit…").click()
    arguments = seen.page.get_by_label("Arguments of mail, as JSON")
    await arguments.fill('{"name": "eve"}')
    await seen.page.reload()
    await expect(arguments).to_have_value('{"name": "eve"}')
    await seen.action("Approve this").click()
    await seen.says("Completed")
    assert stage.did == ["eve"]
    await comes_true(lambda: has_none(seen.page))  # once the reply is there


async def test_what_is_written_in_the_agents_place_survives_a_reload(
    bench: Bench, stage: Stage
) -> None:
    """Whoever has taken over writes more than a line."""
    seen = await at_tool(bench, stage)
    await seen.action("Take over").click()
    await seen.says("Taking over by you")
    stage.gate("work").set()
    text = seen.page.get_by_label("Write as the assistant")
    await text.fill("I have looked")
    await seen.page.reload()
    await expect(text).to_have_value("I have looked")
    await seen.action("Write").click()
    await expect(text).to_have_value("")
    await seen.page.reload()
    await expect(text).to_have_value("")


async def test_whoever_signs_out_leaves_no_draft(bench: Bench, stage: Stage) -> None:
    """The next one at this screen is somebody else."""
    seen = await at_tool(bench, stage)
    await seen.writes("What only I should read")
    await seen.action("Sign out").click()
    await expect(seen.page.get_by_label("Token")).to_be_visible()
    await comes_true(lambda: has_none(seen.page))
