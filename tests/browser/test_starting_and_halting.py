"""What the list lets people begin, and operators stop: new runs, and the halt."""

from playwright.async_api import expect

from midrun.ports.store import Query
from midrun.stops import MaxSteps
from tests.browser.bench import Bench, Site
from tests.browser.lists import badge, row
from tests.browser.stage import Stage, Use


async def started(site: Site) -> list[tuple[str, str]]:
    """Return agent and task of every run there is."""
    rows = (await site.mid.store.runs(Query())).items
    return [(found.head.agent, found.head.task) for found in rows]


# ── new runs ─────────────────────────────────────────────────────────────────


async def test_a_run_is_started_from_the_page(bench: Bench, stage: Stage) -> None:
    """Choose, say, start: and the page is the run's."""
    site = await bench.site(stage.play("Hi.", name="first"), stage.play("Ho.", name="second"))
    page = await bench.page(site)
    await page.get_by_role("button", name="New run").click()
    await page.get_by_label("Agent").select_option("second")
    task = page.get_by_label("What should it do?")
    await task.fill("Compare the vendors")
    await page.reload()  # what was typed survives
    await page.get_by_role("button", name="New run").click()
    await expect(task).to_have_value("Compare the vendors")
    await expect(task).to_be_focused()
    await page.get_by_label("Agent").select_option("second")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/runs/run_*")
    assert await started(site) == [("second", "Compare the vendors")]
    await expect(
        page.locator("midrun-run").get_by_text("Compare the vendors").first
    ).to_be_visible()


async def test_an_operator_sets_caps_and_sees_what_they_stand_in_for(
    bench: Bench, stage: Stage
) -> None:
    """A cap of the run replaces the agent's own condition, and the sheet says which."""
    twice = (Use("quick", name="a"), Use("quick", name="b"), "Done.")
    site = await bench.site(stage.play(*twice, stop=MaxSteps(40)))
    page = await bench.page(site)
    await page.get_by_role("button", name="New run").click()
    await page.get_by_text("Caps", exact=True).click()
    await expect(page.get_by_text("40")).to_be_visible()
    await page.get_by_label("Steps").fill("1")
    await page.get_by_label("Cost, in dollars").fill("2.5")
    await page.get_by_label("What should it do?").fill("Count the invoices")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/runs/run_*")
    run = await site.mid.get(page.url.rpartition("/")[2])
    view = await run.until("paused")
    assert {cap.name: cap.cap for cap in view.caps} == {"steps": 1, "cost": 2.5}


async def test_a_user_starts_without_caps_and_a_refusal_keeps_the_words(
    bench: Bench, stage: Stage
) -> None:
    """What the server says is shown beside what was typed."""
    site = await bench.site(stage.play("Hi."))
    page = await bench.page(site, who="ann")
    await page.get_by_role("button", name="New run").click()
    await expect(page.get_by_text("Caps", exact=True)).to_have_count(0)
    await page.get_by_label("What should it do?").fill("x" * 100_001)
    await page.get_by_role("button", name="Start").click()
    await expect(page.get_by_role("alert")).to_contain_text("input")
    await page.get_by_label("What should it do?").fill("Shorter")
    await page.get_by_role("button", name="Start").click()
    await page.wait_for_url("**/runs/run_*")
    assert await started(site) == [("actor", "Shorter")]


async def test_discarding_leaves_nothing_behind(bench: Bench, stage: Stage) -> None:
    """Escape too; and nothing was started."""
    site = await bench.site(stage.play("Hi."))
    page = await bench.page(site)
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
    assert await started(site) == []


async def test_a_server_without_agents_says_how_to_get_one(bench: Bench) -> None:
    """It may still show and control what others drive."""
    page = await bench.page(await bench.site())
    await page.get_by_role("button", name="New run").click()
    await expect(page.get_by_text("midrun serve app.py")).to_be_visible()


# ── halts ────────────────────────────────────────────────────────────────────


async def test_an_operator_halts_everything_and_lifts_it(bench: Bench, stage: Stage) -> None:
    """With a reason that everybody reads; what ran goes on where it was."""
    site = await bench.site(stage.play(Use("read", name="held"), "Done."))
    run = await site.start(task="Crawl")
    await stage.start("held").wait()
    page, other = await bench.page(site), await bench.page(site, who="vera")
    await page.get_by_role("button", name="Halt…").click()
    await page.get_by_label("Reason").fill("The far end is on fire")
    await page.get_by_role("button", name="Halt", exact=True).click()
    for seen in (page, other):
        banner = seen.get_by_role("region", name="Halted")
        await expect(banner).to_contain_text("Every run: nothing starts until this is lifted.")
        await expect(banner).to_contain_text("The far end is on fire")
        await expect(banner).to_contain_text("olga")
        await expect(badge(seen, "Crawl")).to_contain_text("Halted")
    await expect(other.get_by_role("button", name="Lift")).to_have_count(0)
    assert (await run.view()).phase == "halted"
    await page.get_by_role("button", name="Lift").click()
    for seen in (page, other):
        await expect(seen.get_by_role("region", name="Halted")).to_have_count(0)
        await expect(badge(seen, "Crawl")).to_contain_text("Running")
    stage.gate("held").set()
    await run.until("completed")


async def test_a_halt_covers_what_it_names_and_no_more(bench: Bench, stage: Stage) -> None:
    """One agent's runs stop; those of another go on."""
    site = await bench.site(
        stage.play(Use("read", name="one"), "Done.", name="one"),
        stage.play(Use("read", name="two"), "Done.", name="two"),
    )
    await site.start("one", "First task")
    await site.start("two", "Second task")
    await stage.start("one").wait()
    await stage.start("two").wait()
    page = await bench.page(site)
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
