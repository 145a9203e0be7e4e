"""The forms of the list: new runs and halts."""

from playwright.async_api import expect

from midrun.ports.store import RunQuery
from midrun.stops import MaxSteps
from tests.browser.harness import Harness, Site
from tests.browser.run_list import badge, row
from tests.browser.stage import Stage, Use


async def list_started(site: Site) -> list[tuple[str, str]]:
    """Return agent and task of every run."""
    rows = (await site.mid.store.list_runs(RunQuery())).items
    return [(found.head.agent, found.head.task) for found in rows]


# ── new runs ─────────────────────────────────────────────────────────────────


async def test_a_run_is_started_from_the_page(harness: Harness, stage: Stage) -> None:
    site = await harness.site(stage.play("Hi.", name="first"), stage.play("Ho.", name="second"))
    page = await harness.page(site)
    await page.get_by_role("button", name="New run").click()
    await page.get_by_label("Agent").select_option("second")
    task = page.get_by_label("What should it do?")
    await task.fill("Compare the vendors")
    await page.reload()  # the draft survives
    await page.get_by_role("button", name="New run").click()
    await expect(task).to_have_value("Compare the vendors")
    await expect(task).to_be_focused()
    await page.get_by_label("Agent").select_option("second")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/runs/run_*")
    assert await list_started(site) == [("second", "Compare the vendors")]
    await expect(
        page.locator("midrun-run").get_by_text("Compare the vendors").first
    ).to_be_visible()


async def test_an_operator_sets_caps_and_sees_the_condition_that_they_replace(
    harness: Harness, stage: Stage
) -> None:
    """A cap of the run replaces the agent's own condition, which the form shows."""
    twice = (Use("quick", name="a"), Use("quick", name="b"), "Done.")
    site = await harness.site(stage.play(*twice, stop=MaxSteps(40)))
    page = await harness.page(site)
    await page.get_by_role("button", name="New run").click()
    await page.get_by_text("Caps", exact=True).click()
    await expect(page.get_by_text("40")).to_be_visible()
    await page.get_by_label("Turns").fill("1")
    await page.get_by_label("Cost, in dollars").fill("2.5")
    await page.get_by_label("What should it do?").fill("Count the invoices")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/runs/run_*")
    run = await site.mid.get(page.url.rpartition("/")[2])
    view = await run.until("paused")
    assert {cap.name: cap.cap for cap in view.caps} == {"steps": 1, "cost": 2.5}


async def test_a_user_starts_without_caps_and_a_refusal_keeps_the_words(
    harness: Harness, stage: Stage
) -> None:
    """The refusal is shown, and the task stays in the form."""
    site = await harness.site(stage.play("Hi."))
    page = await harness.page(site, who="ann")
    await page.get_by_role("button", name="New run").click()
    await expect(page.get_by_text("Caps", exact=True)).to_have_count(0)
    await page.get_by_label("What should it do?").fill("x" * 100_001)
    await page.get_by_role("button", name="Start").click()
    await expect(page.get_by_role("alert")).to_contain_text("input")
    await page.get_by_label("What should it do?").fill("Shorter")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/runs/run_*")
    assert await list_started(site) == [("actor", "Shorter")]


async def test_discarding_leaves_nothing_behind(harness: Harness, stage: Stage) -> None:
    """Also with Escape; no run is started."""
    site = await harness.site(stage.play("Hi."))
    page = await harness.page(site)
    for leave in ("Discard", "Escape"):
        await page.get_by_role("button", name="New run").click()
        await page.get_by_label("What should it do?").fill("Never mind")
        if leave == "Escape":
            await page.keyboard.press("Escape")
        else:
            await page.get_by_role("button", name=leave).click()
        await expect(page.get_by_label("What should it do?")).to_have_count(0)
    await page.get_by_role("button", name="New run").click()
    await expect(page.get_by_label("What should it do?")).to_have_value("")
    assert await list_started(site) == []


async def test_a_server_without_agents_says_how_to_get_one(harness: Harness) -> None:
    """It can still show and control the runs of other workers."""
    page = await harness.page(await harness.site())
    await page.get_by_role("button", name="New run").click()
    await expect(page.get_by_text("midrun serve app.py")).to_be_visible()


# ── halts ────────────────────────────────────────────────────────────────────


async def test_an_operator_halts_everything_and_lifts_it(
    harness: Harness, stage: Stage
) -> None:
    """All viewers see the reason; the runs continue where they were."""
    site = await harness.site(stage.play(Use("read", name="held"), "Done."))
    run = await site.start(task="Crawl")
    await stage.start("held").wait()
    page, other = await harness.page(site), await harness.page(site, who="vera")
    await page.get_by_role("button", name="Halt…").click()
    await page.get_by_label("Reason").fill("The far end is on fire")
    await page.get_by_role("button", name="Halt", exact=True).click()
    for ui in (page, other):
        banner = ui.get_by_role("region", name="Halted")
        await expect(banner).to_contain_text("Every run: nothing starts until this is lifted.")
        await expect(banner).to_contain_text("The far end is on fire")
        await expect(banner).to_contain_text("olga")
        await expect(badge(ui, "Crawl")).to_contain_text("Halted")
    await expect(other.get_by_role("button", name="Lift")).to_have_count(0)
    assert (await run.view()).phase == "halted"
    await page.get_by_role("button", name="Lift").click()
    for ui in (page, other):
        await expect(ui.get_by_role("region", name="Halted")).to_have_count(0)
        await expect(badge(ui, "Crawl")).to_contain_text("Running")
    stage.gate("held").set()
    await run.until("completed")


async def test_a_halt_covers_only_its_scope(harness: Harness, stage: Stage) -> None:
    """Runs of another agent continue."""
    site = await harness.site(
        stage.play(Use("read", name="one"), "Done.", name="one"),
        stage.play(Use("read", name="two"), "Done.", name="two"),
    )
    await site.start("one", "First task")
    await site.start("two", "Second task")
    await stage.start("one").wait()
    await stage.start("two").wait()
    page = await harness.page(site)
    await page.get_by_role("button", name="Halt…").click()
    await page.get_by_role("combobox", name="Which runs").select_option("The runs of one agent")
    await page.get_by_label("Which agent").fill("one")
    await page.get_by_label("Reason").fill("It loops")
    await page.get_by_role("button", name="Halt", exact=True).click()
    await expect(page.get_by_role("region", name="Halted")).to_contain_text(
        "Every run of the agent one"
    )
    await expect(badge(page, "First task")).to_contain_text("Halted")
    await expect(badge(page, "Second task")).to_contain_text("Running")
    await expect(row(page, "First task").get_by_role("button")).to_have_count(0)
