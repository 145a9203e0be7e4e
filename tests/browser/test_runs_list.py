"""The list of runs in a real browser: content, order and buttons."""

import re

import pytest
from playwright.async_api import expect

from midrun import Agent
from midrun.models import ScriptedModel
from midrun.text.status import WORKER_LOST_WORD
from tests.browser.harness import (
    Harness,
    advance_clock,
    find_dark_violations,
    find_violations,
    freeze_clock,
)
from tests.browser.run_list import STATES, badge, row, serve_all_states
from tests.browser.run_page import PLAN, PRESS_DELAY_MS
from tests.browser.stage import Hold, Stage, Turn, Use

DESK = 1100


def held_agent(stage: Stage) -> Agent:
    """Return an agent whose runs wait for `stage.gate("held")`."""
    return stage.play(Use("slow", name="held"), "Done.")


async def test_those_that_need_a_person_come_first(harness: Harness, stage: Stage) -> None:
    """The title of the page shows their number."""
    page = await harness.page(await serve_all_states(harness, stage))
    await expect(page.locator("tbody tr")).to_have_count(6)
    await expect(page.locator("td .badge")).to_have_text(STATES)
    await expect(page).to_have_title("(2) Runs")


async def test_a_chip_counts_and_shows_its_kind(harness: Harness, stage: Stage) -> None:
    """Counts are independent of the chosen filter."""
    page = await harness.page(await serve_all_states(harness, stage))
    chips = page.get_by_role("group", name="Which runs to show")
    for label, tasks in {
        "Needs you 2": ["Answer the customer", "Count the invoices"],
        "Running 2": ["Draft refund replies", "Crawl competitor pricing"],
        "Paused 2": ["Count the invoices", "Churn memo for the sales lead"],
        "Finished 1": ["Sort the mail"],
    }.items():
        await chips.get_by_role("button", name=label).click()
        await expect(page.locator("tbody .task a")).to_have_text(tasks)


async def test_runs_are_found_by_words_of_their_task_and_result(
    harness: Harness, stage: Stage
) -> None:
    """Those of the server, not only those that the page has loaded; within the filter."""
    page = await harness.page(await serve_all_states(harness, stage))
    search, tasks = page.get_by_role("searchbox"), page.locator("tbody .task a")
    await search.fill("hello")  # the result of a run
    await expect(tasks).to_have_text(["Sort the mail"])
    await expect(page.locator(".preview")).to_have_text(["Hello."])
    await search.fill("co")
    await expect(tasks).to_have_count(2)
    await page.get_by_role("button", name="Paused 2").click()
    await expect(tasks).to_have_text(["Count the invoices"])
    await search.fill("nothing like that")
    await expect(page.get_by_text("No runs match this filter and search.")).to_be_visible()
    await search.fill("")
    await expect(tasks).to_have_count(2)


async def test_a_run_that_waits_for_another_person_does_not_need_you(
    harness: Harness, stage: Stage
) -> None:
    """It is not counted, and has no button."""
    site = await harness.site(
        stage.play(Use("ask", question="Refund order 7?"), "Done.", name="asker")
    )
    await (await site.start("asker", "Answer the customer")).until("waiting")
    page = await harness.page(site, who="vera")
    await expect(badge(page, "Answer")).to_have_text("Waiting for another person")
    await expect(page.get_by_role("button", name="Needs you 0")).to_be_visible()
    await expect(page).to_have_title("Runs")
    await expect(row(page, "Answer").get_by_role("link")).to_have_count(1)


async def test_the_step_is_that_of_the_held_topic_during_a_side_question(
    harness: Harness, stage: Stage
) -> None:
    """As on the page of the run: it is at no step of the plan."""
    answer: Turn = ["By Ames, ", Hold("aside"), "2019."]
    site = await harness.site(stage.play([PLAN, Use("slow", name="work")], answer, "Done."))
    run = await site.start(task="Write a memo")
    await stage.start("work").wait()
    page = await harness.page(site)
    step = row(page, "Write a memo").locator("[data-label=Progress]")
    await expect(step).to_have_text("plan 1/3")
    await run.say("Which paper?", actor="olga")
    stage.gate("work").set()
    await expect(step).to_have_text("held at plan 1/3")
    await expect(row(page, "Write a memo")).to_contain_text("answering: Which paper?")


async def test_a_run_that_ended_unheard_is_not_called_running(
    harness: Harness, stage: Stage
) -> None:
    """Also an old one, which the feed's snapshot does not include."""
    site = await harness.site(held_agent(stage))
    run = await site.start(task="Crawl competitor pricing")
    await stage.start("held").wait()
    page = await harness.page(site, clock=True)
    await expect(badge(page, "Crawl")).to_contain_text("Running")
    await page.route("**/v1/events", lambda route: route.fulfill(body=""))  # it tells nothing
    site.app.close()
    stage.gate("held").set()
    await run.until("completed")
    site.reopen()
    await expect(badge(page, "Crawl")).to_contain_text("Completed")


async def test_the_quick_button_is_the_next_thing_to_do(harness: Harness, stage: Stage) -> None:
    """Pause, keep running, resume: the row changes when it has happened."""
    site = await harness.site(held_agent(stage))
    run = await site.start(task="Crawl competitor pricing")
    await stage.start("held").wait()
    page = await harness.page(site, clock=True)
    task = row(page, "Crawl")
    await task.get_by_role("button", name="Pause").click()
    await expect(badge(page, "Crawl")).to_contain_text("Pausing, requested by you")
    await expect(task).to_contain_text("finishing “Slow”")
    await advance_clock(page, PRESS_DELAY_MS)
    await task.get_by_role("button", name="Keep running").click()
    await expect(badge(page, "Crawl")).to_contain_text("Running")
    await run.pause(actor="ann")
    stage.gate("held").set()
    await expect(badge(page, "Crawl")).to_contain_text("Paused by ann")
    await advance_clock(page, PRESS_DELAY_MS)
    await task.get_by_role("button", name="Resume").click()
    await expect(badge(page, "Crawl")).to_contain_text("Completed")
    await expect(task.get_by_role("button")).to_have_count(0)
    assert stage.completed == ["held"]


async def test_a_double_click_is_not_a_pause_and_its_withdrawal(
    harness: Harness, stage: Stage
) -> None:
    """The second click lands on a button with another meaning."""
    site = await harness.site(held_agent(stage))
    await site.start(task="Crawl")
    await stage.start("held").wait()
    page = await harness.page(site, clock=True)
    button = row(page, "Crawl").get_by_role("button")
    await expect(button).to_have_text("Pause")
    await freeze_clock(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    await button.click()
    await expect(button).to_have_text("Keep running")
    await button.click()
    await advance_clock(page, PRESS_DELAY_MS)
    await button.click()
    await expect(badge(page, "Crawl")).to_contain_text("Running")
    assert [verb for verb in asked if verb in {"pause", "resume"}] == ["pause", "resume"]


async def test_pause_all_says_how_many_before_it_does(harness: Harness, stage: Stage) -> None:
    """Only runs at work; child runs are paused with their parents."""
    helper = stage.play(Use("slow", name="child"), "Done.", name="helper")
    parent = Agent(
        "parent",
        model=stage.play(Use("helper", task="Help."), "Done.").model,
        tools=[helper.as_tool()],
    )
    site = await harness.site(held_agent(stage), helper, parent)
    runs = [await site.start(task=f"Task {n}") for n in range(2)]
    runs.append(await site.start("parent", "Family task"))
    await stage.start("held").wait()
    await stage.start("child").wait()
    page = await harness.page(site)
    await expect(page.locator("tbody tr")).to_have_count(4)
    await page.get_by_role("button", name="Pause all").click()
    await expect(page.get_by_role("region", name="Pause all")).to_contain_text("Pause 3 runs?")
    await page.get_by_role("button", name="Back").click()
    assert (await runs[0].view()).phase == "running"
    await page.get_by_role("button", name="Pause all").click()
    await page.get_by_role("button", name="Pause 3 runs").click()
    await expect(page.get_by_role("status")).to_have_text("Asked 3 runs to pause.")
    for run in runs:
        await run.until("pausing", "paused")
    await expect(page.get_by_role("button", name="Pause all")).to_be_disabled()


async def test_runs_of_others_appear_and_change_by_themselves(
    harness: Harness, stage: Stage
) -> None:
    site = await harness.site(held_agent(stage))
    page = await harness.page(site)
    await expect(page.get_by_text("No runs yet.")).to_be_visible()
    await expect(page).to_have_title("Runs")
    run = await site.start(task="Started elsewhere", by="ann")
    await expect(badge(page, "Started elsewhere")).to_contain_text("Running")
    link = row(page, "Started elsewhere").get_by_role("link")
    await expect(link).to_have_attribute("href", f"{site.url}/runs/{run.id}")
    stage.gate("held").set()
    await expect(badge(page, "Started elsewhere")).to_contain_text("Completed")


async def test_a_run_that_finished_first_says_so(harness: Harness, stage: Stage) -> None:
    """The row is updated and shows why the command failed."""
    site = await harness.site(held_agent(stage))
    await site.start(task="Too fast")
    await stage.start("held").wait()
    page = await harness.page(site)
    await expect(row(page, "Too fast").get_by_role("button")).to_be_visible()
    await page.route(
        "**/pause",
        lambda route: route.fulfill(status=409, body='{"detail": "It finished first."}'),
    )
    await row(page, "Too fast").get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("alert")).to_have_text("It finished first.")


async def test_a_viewer_looks_and_presses_nothing(harness: Harness, stage: Stage) -> None:
    page = await harness.page(await serve_all_states(harness, stage), who="vera")
    await expect(page.locator("tbody tr")).to_have_count(6)
    await expect(page.locator("midrun-runs").get_by_role("button")).to_have_text(
        ["All 6", "Needs you 0", "Running 2", "Paused 2", "Finished 1"]
    )


async def test_a_user_sees_their_own_runs_and_raises_no_cap(
    harness: Harness, stage: Stage
) -> None:
    """The server filters the runs; the page offers only permitted commands."""
    site = await serve_all_states(harness, stage)
    await (await site.start("counter", "Ann's invoices", by="ann")).until("paused")
    page = await harness.page(site, who="ann")
    await expect(page.locator("tbody .task a")).to_have_text(["Ann's invoices"])
    await expect(row(page, "Ann's").get_by_role("button")).to_have_count(0)
    await expect(page.get_by_role("button", name="Halt…")).to_have_count(0)
    await expect(page.get_by_role("button", name="New run")).to_be_visible()


async def test_a_lost_connection_is_said_and_mended(harness: Harness, stage: Stage) -> None:
    """Meanwhile the page shows since when it is out of date."""
    site = await harness.site(held_agent(stage))
    await site.start(task="Crawl")
    page = await harness.page(site)
    await expect(badge(page, "Crawl")).to_contain_text("Running")
    await page.route("**/v1/**", lambda route: route.abort())
    site.app.close()
    await expect(page.get_by_text("Connection lost")).to_be_visible()
    await expect(page.get_by_text("runs may still be working")).to_be_visible()
    await row(page, "Crawl").get_by_role("button", name="Pause").click()
    alert = row(page, "Crawl").get_by_role("alert")
    await expect(alert).to_have_text("The server does not answer.")
    site.reopen()
    await page.unroute("**/v1/**")
    await expect(page.get_by_text("Connection lost")).to_have_count(0)
    await expect(alert).to_have_count(0)  # it does answer


async def test_a_run_whose_driver_is_gone_is_not_called_running(
    harness: Harness, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No entry says so; the feed does, and the clock stands still."""
    site = await harness.site(held_agent(stage))
    await site.start(task="Crawl")
    await stage.start("held").wait()
    page = await harness.page(site, clock=True)
    await expect(badge(page, "Crawl")).to_contain_text("Running")

    list_holders = site.mid.store.list_holders

    async def no_holders() -> dict[str, float]:
        return {}

    monkeypatch.setattr(site.mid.store, "list_holders", no_holders)
    await expect(badge(page, "Crawl")).to_contain_text(WORKER_LOST_WORD)
    await expect(row(page, "Crawl")).to_contain_text("it was Running")
    monkeypatch.setattr(site.mid.store, "list_holders", list_holders)
    await expect(badge(page, "Crawl")).to_contain_text("Running")


@pytest.mark.parametrize("width", [DESK, 390], ids=["desk", "phone"])
async def test_the_list_is_accessible(harness: Harness, stage: Stage, width: int) -> None:
    """No violation is found with every sheet open in turn; nothing is cut off."""
    page = await harness.page(
        await serve_all_states(harness, stage), width=width, bypass_csp=True
    )
    await expect(page.locator("tbody tr")).to_have_count(6)
    assert await find_violations(page) == []
    for name in ("Pause all", "Halt…", "New run"):
        await page.get_by_role("button", name=name).click()
        await expect(page.get_by_role("button", name=name)).to_have_attribute(
            "aria-expanded", "true"
        )
        assert await find_violations(page) == []
        if width == DESK:  # its colours are the same on a phone
            assert await find_dark_violations(page) == []
            await page.emulate_media(color_scheme="light")
    wide = await page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width


async def test_a_row_tells_when_it_started_how_long_it_worked_and_of_which_agent(
    harness: Harness, stage: Stage
) -> None:
    """An unknown price is no price; a child is below its parent; one agent can be chosen."""
    kid = Agent("kid", model=ScriptedModel(["Helped."]))
    calls_kid = ScriptedModel([Use("kid", task="Help."), "Done."])
    parent = Agent("parent", model=calls_kid, tools=[kid.as_tool()])
    site = await harness.site(kid, parent, stage.play("Hello.", name="priced"))
    await (await site.start("parent", "Family task")).until("completed")
    await (await site.start("priced", "Cheap task")).until("completed")
    page = await harness.page(site)
    await expect(page.locator("tbody tr")).to_have_count(3)
    family = row(page, "Family task")
    await expect(family.locator("[data-label=Started]")).to_have_text(
        re.compile("ago|just now")
    )
    await expect(family.locator("[data-label='At work']")).to_have_text(re.compile(r"\d+ s"))
    await expect(family.locator("[data-label=Cost]")).to_have_text("\u2013")
    await expect(row(page, "Cheap task").locator("[data-label=Cost]")).to_have_text("$0.01")
    await expect(page.locator("tr.child .task a")).to_have_text("Help.")
    tasks = await page.locator("tbody .task a").all_inner_texts()
    assert tasks.index("Help.") == tasks.index("Family task") + 1
    await page.get_by_role("combobox", name="Agent").select_option("priced")
    await expect(page.locator("tbody .task a")).to_have_text(["Cheap task"])
