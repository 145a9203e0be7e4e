"""The page and its feed: two browsers, one stream, lost connections, reloads."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest
from playwright.async_api import expect

from midrun import Agent
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Piece
from tests.browser.harness import TIMEOUT_S, Harness, advance_clock
from tests.browser.run_page import PLAN, PRESS_DELAY_MS, match_text, open_at_tool, open_run_page
from tests.browser.stage import HeldModel, Hold, Part, Stage, Turn, Use
from tests.support.conditions import wait_until

pytestmark = pytest.mark.once


async def test_two_browsers_see_the_same_run(harness: Harness, stage: Stage) -> None:
    """A press in one browser is shown in the other, with its actor."""
    ui = await open_at_tool(harness, stage, who="ann")
    other = await harness.page(ui.site, ui.path, who="olga", clock=True)
    badge = other.locator("midrun-controls .badge")
    await expect(badge).to_contain_text("Running")
    await ui.button("pause").click()
    await expect(badge).to_contain_text("Pausing, requested by ann")
    await ui.expect_badge("Pausing, requested by you")
    stage.gate("work").set()
    await expect(badge).to_contain_text("Paused by ann")
    await advance_clock(other, PRESS_DELAY_MS)
    await other.locator("midrun-controls #pause").click()
    await ui.expect_badge("Completed")


async def test_all_elements_of_a_page_share_one_stream(harness: Harness, stage: Stage) -> None:
    """A browser has six connections to a host; a page must not take them all."""
    ui = await open_at_tool(harness, stage)
    await wait_until(lambda: ui.site.app.streams == 1)  # after the first look
    await ui.page.evaluate(
        """run => {
            const made = document.createElement('midrun-controls');
            made.setAttribute('run', run);
            document.querySelector('main').append(made);
        }""",
        str(ui.run.id),
    )
    await expect(ui.badge).to_have_count(2)
    await expect(ui.badge.last).to_contain_text("Running")
    assert ui.site.app.streams == 1
    await ui.page.locator("main").evaluate("main => main.replaceChildren()")
    await expect(ui.badge).to_have_count(0)


async def test_a_lost_connection_is_said_and_the_page_comes_back(
    harness: Harness, stage: Stage
) -> None:
    """It shows since when; the missed entries are there afterwards."""
    ui = await open_at_tool(harness, stage)
    profile = ui.page.context
    await profile.set_offline(offline=True)
    ui.site.app.close()
    await ui.expect_badge("Connection lost")
    bar = ui.page.locator("midrun-controls")
    await expect(bar).to_contain_text("the run may still be working")
    await expect(ui.page.locator("midrun-steps")).not_to_contain_text("Running")
    await expect(ui.page).to_have_title("⚠ Connection lost — Write a memo")
    await ui.button("pause").click()
    await expect(bar.get_by_role("alert")).to_have_text("Pause was not sent; press it again.")
    stage.gate("work").set()
    await ui.run.until("completed")
    await ui.expect_badge("Connection lost")


HOURS: Final = re.compile(r"\d h\b")

FAST: Final = """{
  const real = Date.now;
  Date.now = () => real() + 3_600_000;
}"""

SINCE: Final = """text => {
  const [hours, minutes] = /As of (\\d\\d):(\\d\\d)/.exec(text).slice(1).map(Number);
  const now = new Date(performance.timeOrigin + performance.now());
  return (now.getHours() * 60 + now.getMinutes() - hours * 60 - minutes + 1440) % 1440;
}"""


async def test_a_browser_whose_clock_is_an_hour_fast_shows_the_servers_time(
    harness: Harness, stage: Stage
) -> None:
    """For ages, and for the time of the last event."""
    site = await harness.site(stage.play(Use("slow", name="work"), "Done."))
    run = await site.start()
    page = await harness.page(site)
    await page.add_init_script(FAST)
    await page.goto(f"{site.url}/runs/{run.id}")
    await stage.start("work").wait()
    bar = page.locator("midrun-controls")
    await bar.get_by_role("button", name="Pause").click()
    await expect(bar).to_contain_text("Pausing, requested by you")
    await expect(bar).not_to_contain_text(HOURS)
    await page.route("**/v1/**", lambda route: route.abort())
    site.app.close()
    await expect(bar).to_contain_text("As of")
    minutes = await page.evaluate(SINCE, await bar.locator("section").inner_text())
    assert minutes <= TIMEOUT_S / 60 + 1


async def test_messages_about_unsent_commands_end_with_the_reconnect(
    harness: Harness, stage: Stage
) -> None:
    """Bar and composer drop the message; the draft is kept."""
    ui = await open_at_tool(harness, stage)
    await ui.page.route("**/v1/**", lambda route: route.abort())
    ui.site.app.close()
    await ui.expect_badge("Connection lost")
    await ui.button("pause").click()
    await ui.type_instruction("Stop there")
    await ui.button_named("Redirect").click()
    alerts = ui.page.locator("midrun-controls").get_by_role("alert")
    await expect(alerts).to_have_text(
        ["Pause was not sent; press it again.", "This was not sent; press it again."]
    )
    ui.site.reopen()
    await ui.page.unroute("**/v1/**")
    await ui.expect_badge("Running")
    await expect(alerts).to_have_count(0)
    await expect(ui.page.get_by_label("What should happen next?")).to_have_value("Stop there")


class FailingOnceModel(HeldModel):
    """A model that fails in its first sentence, then plays its script."""

    async def _stream_turn(self, turn: Sequence[Part]) -> AsyncIterator[Piece | Finished]:
        if not self._stage.gate("stumbled").is_set():
            yield Piece(kind="text", text="Churn fell, ")
            await self._stage.wait_at_gate("stumbled")
            raise ModelFailed(self.name, "overloaded", transient=True, retry_after=0.01)
        async for piece in super()._stream_turn(turn):
            yield piece


async def test_a_reply_that_is_begun_again_is_shown_from_its_beginning(
    harness: Harness, stage: Stage
) -> None:
    """The second attempt must not end with the first one."""
    turn: Turn = ["Churn rose ", Hold("mid"), "in spring.", Hold("end")]
    site = await harness.site(Agent("actor", model=FailingOnceModel(stage, [turn])))
    run = await site.start()
    page = await harness.page(site, f"/runs/{run.id}")
    said = page.locator("midrun-steps [data-turn='Infinity'] p.text")
    await expect(said).to_have_text(match_text("Churn fell,"))
    stage.gate("stumbled").set()
    await expect(said).to_have_text(match_text("Churn rose"))
    stage.gate("mid").set()
    await expect(said).to_have_text(match_text("Churn rose in spring."))
    await expect(page.get_by_text("The beginning is shown")).to_have_count(0)


async def test_a_reconnected_page_misses_nothing(harness: Harness, stage: Stage) -> None:
    """Every entry is shown once, however often the connection broke."""
    ui = await open_at_tool(harness, stage)
    await ui.page.route("**/events*", lambda route: route.abort())
    ui.site.app.close()
    await ui.expect_badge("Connection lost")
    ui.site.reopen()
    await ui.page.unroute("**/events*")
    await ui.expect_badge("Running")
    stage.gate("work").set()
    await ui.expect_badge("Completed")
    await ui.show_every_entry()
    numbers = ui.page.locator("midrun-timeline li > span:nth-child(2)")
    last = (await ui.run.view()).seq
    await expect(numbers).to_have_count(last)
    assert await numbers.all_inner_texts() == [f"#{n}" for n in range(last, 0, -1)]


async def test_every_entry_shows_the_beginning_of_its_hash(
    harness: Harness, stage: Stage
) -> None:
    """So a reader can compare it with the entry of an export."""
    ui = await open_run_page(harness, stage, "Done.")
    await ui.expect_badge("Completed")
    await ui.show_every_entry()
    shown = ui.page.locator("midrun-timeline li > code")
    lines = await ui.site.mid.store.read_lines(ui.run.id)
    stored = [chain_hash.hex() for _, chain_hash in lines]
    await expect(shown).to_have_text([each[:8] for each in reversed(stored)])
    await expect(shown.first).to_have_attribute("title", f"Hash {stored[-1]}")


async def test_a_page_opened_in_mid_sentence_shows_the_whole_sentence(
    harness: Harness, stage: Stage
) -> None:
    """Also after a reload and a reconnect; no word is doubled."""
    first, rest = "The champion left in nine of ten ", "accounts that churned."
    agent = stage.play([first, Hold("mid"), rest, Hold("end")], "Done.")
    site = await harness.site(agent)
    run = await site.start(by="ann")
    await stage.start("mid").wait()
    page = await harness.page(site, f"/runs/{run.id}")
    said = page.locator("midrun-steps .turn p.text")
    await expect(said).to_have_text(match_text(first))
    await page.reload()
    await expect(said).to_have_text(match_text(first))
    other = await harness.page(site, f"/runs/{run.id}", who="ann")
    await expect(other.locator("midrun-steps .turn p.text")).to_have_text(match_text(first))
    site.app.close()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Connection lost")
    await expect(said).to_have_text(match_text(first))  # all that was streamed so far
    stage.gate("mid").set()
    await stage.start("end").wait()
    site.reopen()
    for one in (page, other):
        await expect(one.locator("midrun-steps .turn p.text")).to_have_text(
            match_text(first + rest)
        )


async def test_a_run_that_does_not_exist_says_so(harness: Harness, stage: Stage) -> None:
    """The page is served for any id; its requests are refused."""
    site = await harness.site(stage.play("Hello."))
    page = await harness.page(site, "/runs/run_nobody")
    await expect(page.get_by_role("alert")).to_contain_text("run_nobody")


async def test_an_ended_session_asks_to_sign_in(harness: Harness, stage: Stage) -> None:
    """After a sign-out elsewhere the page stops showing the run."""
    ui = await open_at_tool(harness, stage)
    await ui.page.evaluate("import('/static/api.js').then(({ signOut }) => signOut())")
    await expect(ui.page.get_by_label("Token")).to_be_visible()


async def test_a_long_history_is_loaded_when_it_is_wanted(
    harness: Harness, stage: Stage
) -> None:
    """Three hundred rows at first, older ones on request."""
    turns = [Use("quick", name=f"n{n}") for n in range(90)]
    ui = await open_run_page(harness, stage, PLAN, *turns, "Done.")
    await ui.expect_badge("Completed")
    rows = ui.page.locator("midrun-timeline li:has(span)")
    last = (await ui.run.view()).seq
    assert last > 300
    await ui.page.reload()
    await ui.expect_badge("Completed")
    await ui.show_every_entry()
    await expect(rows).to_have_count(300)
    await ui.button_named("Load earlier").click()
    await expect(rows).to_have_count(last)
    await expect(rows.last).to_have_attribute("data-type", "run.created")
