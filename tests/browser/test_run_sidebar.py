"""The sidebar of the run page: caps, effects, takeover, thread; and the timeline."""

import itertools
import re

import pytest
from playwright.async_api import Route, expect
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

from midrun import host
from midrun.stops import MaxCost, MaxSteps
from tests.browser.harness import Harness, find_violations, wait_until
from tests.browser.run_page import PLAN, open_at_tool, open_run_page
from tests.browser.stage import Hold, Stage, Use
from tests.unit.server.conftest import ACTORS

pytestmark = pytest.mark.once


async def test_an_operator_raises_a_cap_in_place(harness: Harness, stage: Stage) -> None:
    """Before it is reached; the meter shows the use."""
    ui = await open_at_tool(harness, stage, stop=MaxSteps(1) | MaxCost(2.0))
    caps = ui.page.locator("midrun-caps")
    await expect(caps).to_contain_text("1 / 1")
    await expect(caps).to_contain_text("100 % used")
    await expect(caps.get_by_role("meter")).to_have_count(2)
    await ui.page.get_by_role("button", name="Raise Turns to 11").click()
    await expect(caps).to_contain_text("1 / 11")
    await expect(caps).not_to_contain_text("% used")


async def test_effects_are_listed(harness: Harness, stage: Stage) -> None:
    """With the possible undo; read-only calls are not listed."""
    acts = [
        PLAN,
        Use("draft", name="memo"),
        Use("quick", name="post " * 60),
        Use("lock", name="table"),
    ]
    ui = await open_run_page(harness, stage, acts, Use("slow", name="work"), "Done.")
    await stage.start("work").wait()
    effects = ui.page.locator("midrun-effects li")
    await expect(effects).to_have_count(4)
    await expect(effects.nth(0)).to_contain_text("can be undone")
    await expect(effects.nth(1)).to_contain_text("cannot be undone")
    await expect(effects.nth(2)).to_contain_text("released when the run ends")
    await expect(effects.nth(3)).to_contain_text("in progress")
    await effects.nth(1).locator("summary").click()
    await expect(effects.nth(1)).to_contain_text("Only the beginning is shown")
    await expect(effects.nth(1)).not_to_contain_text('{"')


async def test_an_ended_run_lists_its_kept_and_released_effects(
    harness: Harness, stage: Stage
) -> None:
    """Nothing can be undone or released any more."""
    acts = [Use("draft", name="memo"), Use("lock", name="table")]
    ui = await open_run_page(harness, stage, acts, "Done.")
    await ui.expect_badge("Completed")
    effects = ui.page.locator("midrun-effects li")
    await expect(effects.nth(0)).to_contain_text("kept")
    await expect(effects.nth(1)).to_contain_text("released")
    await expect(effects.nth(1)).not_to_contain_text("when the run ends")
    report = ui.page.locator("midrun-report")
    await expect(report).to_contain_text("Released Lock: name “table”")
    await expect(report).not_to_contain_text("calls were made after")


async def test_the_timeline_names_tools_as_soon_as_they_start(
    harness: Harness, stage: Stage
) -> None:
    """By tool, not by call id."""
    ui = await open_run_page(harness, stage, [Hold("mid"), Use("slow", name="work")], "Done.")
    await stage.start("mid").wait()
    rows = ui.page.locator("midrun-timeline li[data-type='call.started']")
    await expect(rows).to_have_count(1)
    stage.gate("mid").set()
    await expect(rows).to_have_count(2)
    await expect(rows.last).to_contain_text("the agent called")
    await expect(rows.last).to_contain_text(re.compile("slow", re.IGNORECASE))


async def test_the_timeline_is_filtered(harness: Harness, stage: Stage) -> None:
    """Newest first, in the words of the feed; the viewer is "you"."""
    ui = await open_at_tool(harness, stage)
    await ui.show_every_entry()
    await ui.button("pause").click()
    rows = ui.page.locator("midrun-timeline li:has(span)")
    await expect(rows.first.locator(".event")).to_have_text("you asked the run to pause")
    await expect(rows.first).to_have_attribute("data-type", "run.pausing")
    await ui.page.locator("midrun-timeline").get_by_role("button", name="Control").click()
    await expect(rows).to_have_count(2)
    await ui.page.locator("midrun-timeline").get_by_role("button", name="Changes").click()
    await expect(rows).to_have_count(0)


async def test_a_person_writes_in_the_agents_place_and_hands_back(
    harness: Harness, stage: Stage
) -> None:
    """Under their own name; a tool that they use is dispatched like any call."""
    ui = await open_at_tool(harness, stage)
    await ui.button_named("Take over").click()
    await ui.expect_badge("Taking over, requested by you")
    stage.gate("work").set()
    await ui.expect_badge("Taken over by you")
    await ui.page.get_by_label("Write in the agent").fill("I looked it up: 42.")
    await ui.button_named("Write").click()
    steps = ui.page.locator("midrun-steps")
    await expect(steps).to_contain_text("You, in the agent")
    await expect(steps).to_contain_text("I looked it up: 42.")
    await ui.page.get_by_label("Use a tool").select_option("quick")
    await expect(ui.page.locator("midrun-takeover")).not_to_contain_text("{")
    await ui.page.locator("midrun-takeover").get_by_label("Name").fill("by hand")
    await ui.button_named("Use it").click()
    await stage.start("by hand").wait()
    await ui.expect_badge("Taken over by you")
    await ui.page.get_by_label("Hand back, with an instruction").fill("Go on from there")
    await ui.page.locator("midrun-takeover").get_by_role("button", name="Hand back").click()
    await ui.expect_badge("Completed")
    assert stage.completed == ["work", "by hand"]


async def test_the_other_runs_of_a_conversation_are_linked(
    harness: Harness, stage: Stage
) -> None:
    site = await harness.site(stage.play("Once.", "Twice."))
    olga = ACTORS["olga"]
    first = await site.mid.start("actor", "The first question", thread="t1", actor=olga)
    await first.until("completed")
    second = await site.mid.start("actor", "The second question", thread="t1", actor=olga)
    page = await harness.page(site, f"/runs/{second.id}")
    await page.get_by_role("link", name="The first question").click()
    await page.wait_for_url(f"**/runs/{first.id}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("The first question")


async def test_a_conversation_is_read_and_continued(harness: Harness, stage: Stage) -> None:
    """The question of this run is between the earlier answer and its own; a reply goes on."""
    site = await harness.site(stage.play("Once.", "Twice.", "Thrice."))
    olga = ACTORS["olga"]
    first = await site.mid.start("actor", "The first question", thread="t1", actor=olga)
    await first.until("completed")
    second = await site.mid.start("actor", "The second question", thread="t1", actor=olga)
    await second.until("completed")
    page = await harness.page(site, f"/runs/{second.id}")
    turns = page.locator("midrun-steps .turn")
    await expect(turns).to_contain_text(["The first question", "Once.", "The second question"])
    await page.get_by_label("Reply").fill("The third question")
    await page.keyboard.press("Enter")
    await page.wait_for_url(lambda url: not url.endswith(str(second.id)))
    await expect(page.get_by_role("heading", level=1)).to_have_text("The third question")
    await expect(page.locator("midrun-thread li")).to_have_count(3)


async def test_a_reply_that_is_sent_twice_starts_one_run(
    harness: Harness, stage: Stage
) -> None:
    """A second Enter comes before the first one is answered."""
    site = await harness.site(stage.play("Once.", "Twice."))
    first = await site.mid.start("actor", "The question", thread="t1", actor=ACTORS["olga"])
    await first.until("completed")
    page = await harness.page(site, f"/runs/{first.id}")
    starts: list[Route] = []

    def hold(route: Route) -> None:
        starts.append(route)

    await page.route("**/v1/runs", hold)
    await page.get_by_label("Reply").fill("The second question")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Enter")
    await page.evaluate("fetch('/v1/runs').catch(() => null), 0")  # it comes after both

    async def has_come() -> bool:
        return any(route.request.method == "GET" for route in starts)

    await wait_until(has_come)
    assert [route.request.method for route in starts] == ["POST", "GET"]
    await starts[1].fulfill(body="")
    await starts[0].continue_()
    await page.wait_for_url(lambda url: not url.endswith(str(first.id)))


async def test_the_timeline_is_grouped_by_turn_and_repeats_nothing(
    harness: Harness, stage: Stage
) -> None:
    """In reading order; entries that say the same are one row."""
    ui = await open_run_page(
        harness, stage, Use("quick", name="a"), Use("quick", name="b"), "Done."
    )
    await ui.expect_badge("Completed")
    groups = ui.page.locator("midrun-timeline li.group")
    await expect(groups).to_have_count(4)
    await expect(groups.first).to_contain_text("Start")
    texts = await ui.page.locator("midrun-timeline .group li .event").all_text_contents()
    assert texts
    assert all(one != other for one, other in itertools.pairwise(texts))


async def test_a_hosted_agent_names_its_framework_and_its_undeclared_tools(
    harness: Harness,
) -> None:
    """With a link to the guides, which tell how tools are declared."""
    agent = PydanticAgent(TestModel(), name="clerk")

    @agent.tool_plain
    def look_up(word: str) -> str:
        return f"{word}: found"

    site = await harness.site(host(agent))
    run = await site.start("clerk", "Look it up")
    await run.until("completed")
    page = await harness.page(site, f"/runs/{run.id}")
    facts = page.locator("midrun-run .facts")
    await expect(facts).to_contain_text("hosted from pydantic-ai")
    link = facts.get_by_role("link", name="1 tool undeclared: no undo, never repeated")
    await expect(link).to_have_attribute("href", re.compile("docs/guides/host-pydantic-ai.md$"))


async def test_a_demo_run_suggests_what_to_try(harness: Harness, stage: Stage) -> None:
    """A tip fills the line below, and is marked when its entry is in the journal."""
    site = await harness.site(stage.play(Use("slow", name="work"), "Done.", "Done."))
    run = await site.mid.start("actor", "Look", actor=ACTORS["olga"], labels=["demo"])
    await stage.start("work").wait()
    page = await harness.page(site, f"/runs/{run.id}", bypass_csp=True)
    tips = page.locator("midrun-tips")
    await expect(tips.locator("[data-tried=true]")).to_have_count(0)
    assert await find_violations(page) == []
    await tips.get_by_role("button", name="Start writing").press("Enter")
    await expect(page.get_by_label("What should happen next?")).to_have_value("Start writing")
    await page.keyboard.press("Enter")
    await expect(tips.locator("[data-tried=true]")).to_contain_text("Redirect it")
    await tips.get_by_role("button", name="Close the tips").click()
    await expect(tips).to_be_hidden()
    await page.reload()
    await expect(page.locator("midrun-caps")).to_be_visible()
    await expect(tips).to_be_hidden()
