"""The page and its feed: two browsers, one stream, lost connections, people who come back."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final

import anyio
import pytest
from playwright.async_api import Route, expect

from midrun import Agent
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Piece
from tests.browser.bench import PATIENCE_S, Bench, later
from tests.browser.stage import HeldModel, Hold, Said, Stage, Turn, Use
from tests.browser.watching import PLAN, SETTLED_MS, at_tool, exactly, watched
from tests.crash.facts import becomes

pytestmark = pytest.mark.once


async def test_two_browsers_see_the_same_run(bench: Bench, stage: Stage) -> None:
    """What one presses, the other sees, with the name of who pressed it."""
    seen = await at_tool(bench, stage, who="ann")
    other = await bench.page(seen.site, seen.path, who="olga", clock=True)
    badge = other.locator("midrun-controls .badge")
    await expect(badge).to_contain_text("Running")
    await seen.button("pause").click()
    await expect(badge).to_contain_text("Pausing by ann")
    await seen.says("Pausing by you")
    stage.gate("work").set()
    await expect(badge).to_contain_text("Paused by ann")
    await later(other, SETTLED_MS)
    await other.locator("midrun-controls #pause").click()
    await seen.says("Completed")


async def test_all_elements_of_a_page_share_one_stream(bench: Bench, stage: Stage) -> None:
    """A browser has six connections to a host: a page must not take them all."""
    seen = await at_tool(bench, stage)
    await becomes(lambda: seen.site.app.streams == 1)  # after the first look
    await seen.page.evaluate(
        """run => {
            const made = document.createElement('midrun-controls');
            made.setAttribute('run', run);
            document.querySelector('main').append(made);
        }""",
        str(seen.run.id),
    )
    await expect(seen.badge).to_have_count(2)
    await expect(seen.badge.last).to_contain_text("Running")
    assert seen.site.app.streams == 1
    await seen.page.locator("main").evaluate("main => main.replaceChildren()")
    await expect(seen.badge).to_have_count(0)


async def test_a_lost_connection_is_said_and_the_page_comes_back(
    bench: Bench, stage: Stage
) -> None:
    """It says since when it does not know; what happened meanwhile is there afterwards."""
    seen = await at_tool(bench, stage)
    profile = seen.page.context
    await profile.set_offline(offline=True)
    seen.site.app.close()
    await seen.says("Connection lost")
    bar = seen.page.locator("midrun-controls")
    await expect(bar).to_contain_text("the run may still be working")
    await expect(seen.page.locator("midrun-steps")).not_to_contain_text("Running")
    await expect(seen.page).to_have_title("⚠ Connection lost — Write a memo")
    await seen.button("pause").click()
    await expect(bar.get_by_role("alert")).to_have_text("Pause was not sent; press it again.")
    stage.gate("work").set()
    await seen.run.until("completed")
    await seen.says("Connection lost")


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
    bench: Bench, stage: Stage
) -> None:
    """How long something lasts, and when the server was last heard of."""
    site = await bench.site(stage.play(Use("slow", name="work"), "Done."))
    run = await site.start()
    page = await bench.page(site)
    await page.add_init_script(FAST)
    await page.goto(f"{site.url}/runs/{run.id}")
    await stage.start("work").wait()
    bar = page.locator("midrun-controls")
    await bar.get_by_role("button", name="Pause").click()
    await expect(bar).to_contain_text("Pausing by you")
    await expect(bar).not_to_contain_text(HOURS)
    await page.route("**/v1/**", lambda route: route.abort())
    site.app.close()
    await expect(bar).to_contain_text("As of")
    minutes = await page.evaluate(SINCE, await bar.locator("section").inner_text())
    assert minutes <= PATIENCE_S / 60 + 1


async def test_what_was_not_sent_is_no_news_once_the_server_is_back(
    bench: Bench, stage: Stage
) -> None:
    """Neither in the bar nor in the composer, whose words are kept."""
    seen = await at_tool(bench, stage)
    await seen.page.route("**/v1/**", lambda route: route.abort())
    seen.site.app.close()
    await seen.says("Connection lost")
    await seen.button("pause").click()
    await seen.writes("Stop there")
    await seen.action("Redirect").click()
    alerts = seen.page.locator("midrun-controls").get_by_role("alert")
    await expect(alerts).to_have_text(
        ["Pause was not sent; press it again.", "This was not sent; press it again."]
    )
    seen.site.reopen()
    await seen.page.unroute("**/v1/**")
    await seen.says("Running")
    await expect(alerts).to_have_count(0)
    await expect(seen.page.get_by_label("What should happen next?")).to_have_value("Stop there")


class Stumbling(HeldModel):
    """A model that fails in its first sentence, and then says what it is to say."""

    async def _spoken(self, turn: Sequence[Said]) -> AsyncIterator[Piece | Finished]:
        if not self._stage.gate("stumbled").is_set():
            yield Piece(kind="text", text="Churn fell, ")
            await self._stage.held("stumbled")
            raise ModelFailed(self.name, "overloaded", transient=True, retry_after=0.01)
        async for piece in super()._spoken(turn):
            yield piece


async def test_a_reply_that_is_begun_again_is_shown_from_its_beginning(
    bench: Bench, stage: Stage
) -> None:
    """Its first attempt ends while the page is looking: that end is not the second one's."""
    turn: Turn = ["Churn rose ", Hold("mid"), "in spring.", Hold("end")]
    site = await bench.site(Agent("actor", model=Stumbling(stage, [turn])))
    run = await site.start()
    page = await bench.page(site, f"/runs/{run.id}")
    said = page.locator("midrun-steps [data-turn='Infinity'] p.text")
    await expect(said).to_have_text(exactly("Churn fell,"))
    looks = anyio.Event()

    async def late(route: Route) -> None:
        await looks.wait()
        await route.continue_()

    await page.route("**/seen", late)
    stage.gate("stumbled").set()
    await expect(said).to_have_text(exactly("Churn rose"))
    async with page.expect_response("**/seen"):
        looks.set()
    stage.gate("mid").set()
    await expect(said).to_have_text(exactly("Churn rose in spring."))
    await expect(page.get_by_text("The beginning is shown")).to_have_count(0)


async def test_whoever_comes_back_misses_nothing(bench: Bench, stage: Stage) -> None:
    """Every entry is shown once, whatever was cut."""
    seen = await at_tool(bench, stage)
    await seen.page.route("**/events*", lambda route: route.abort())
    seen.site.app.close()
    await seen.says("Connection lost")
    seen.site.reopen()
    await seen.page.unroute("**/events*")
    await seen.says("Running")
    stage.gate("work").set()
    await seen.says("Completed")
    numbers = seen.page.locator("midrun-timeline li > span:nth-child(2)")
    last = (await seen.run.view()).seq
    await expect(numbers).to_have_count(last)
    assert await numbers.all_inner_texts() == [f"#{n}" for n in range(last, 0, -1)]


async def test_a_page_opened_in_mid_sentence_shows_the_whole_sentence(
    bench: Bench, stage: Stage
) -> None:
    """So does one that is reloaded, and one that comes back; no word is there twice."""
    first, rest = "The champion left in nine of ten ", "accounts that churned."
    agent = stage.play([first, Hold("mid"), rest, Hold("end")], "Done.")
    site = await bench.site(agent)
    run = await site.start(by="ann")
    await stage.start("mid").wait()
    page = await bench.page(site, f"/runs/{run.id}")
    said = page.locator("midrun-steps .turn p.text")
    await expect(said).to_have_text(exactly(first))
    await page.reload()
    await expect(said).to_have_text(exactly(first))
    other = await bench.page(site, f"/runs/{run.id}", who="ann")
    await expect(other.locator("midrun-steps .turn p.text")).to_have_text(exactly(first))
    site.app.close()
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Connection lost")
    await expect(said).to_have_text(exactly(first))  # it is whole so far as anybody heard
    stage.gate("mid").set()
    await stage.start("end").wait()
    site.reopen()
    for one in (page, other):
        await expect(one.locator("midrun-steps .turn p.text")).to_have_text(
            exactly(first + rest)
        )


async def test_a_run_that_does_not_exist_says_so(bench: Bench, stage: Stage) -> None:
    """The page is served for any id; what it asks for is not there."""
    site = await bench.site(stage.play("Hello."))
    page = await bench.page(site, "/runs/run_nobody")
    await expect(page.get_by_role("alert")).to_contain_text("run_nobody")


async def test_a_session_that_ended_asks_who_is_there(bench: Bench, stage: Stage) -> None:
    """Signed out elsewhere: the page does not go on showing what it may not see."""
    seen = await at_tool(bench, stage)
    await seen.page.evaluate("import('/static/api.js').then(({ signOut }) => signOut())")
    await expect(seen.page.get_by_label("Token")).to_be_visible()


async def test_a_long_history_is_loaded_when_it_is_wanted(bench: Bench, stage: Stage) -> None:
    """Three hundred rows at first, then what came before."""
    turns = [Use("quick", name=f"n{n}") for n in range(90)]
    seen = await watched(bench, stage, PLAN, *turns, "Done.")
    await seen.says("Completed")
    rows = seen.page.locator("midrun-timeline li:has(span)")
    last = (await seen.run.view()).seq
    assert last > 300
    await seen.page.reload()
    await seen.says("Completed")
    await expect(rows).to_have_count(300)
    await seen.action("Load earlier").click()
    await expect(rows).to_have_count(last)
    await expect(rows.last).to_contain_text("run.created")
