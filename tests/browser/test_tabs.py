"""Many tabs of one browser share its six connections to a server."""

from playwright.async_api import Page, expect

from tests.browser.harness import Harness, Site
from tests.browser.stage import Stage, Use
from tests.support.conditions import wait_until

TABS = 7


async def open_tabs(harness: Harness, site: Site, paths: list[str]) -> list[Page]:
    """Open tabs of one browser."""
    profile = await harness.profile()
    first = await profile.new_page()
    await first.goto(site.link())
    await expect(first.get_by_role("heading", name="Runs")).to_be_visible()
    tabs = []
    for path in paths:
        tabs.append(await profile.new_page())
        await tabs[-1].goto(f"{site.url}{path}")
    return tabs


async def test_every_button_of_many_tabs_gets_through(harness: Harness, stage: Stage) -> None:
    """If each tab held a feed open, the seventh would not even load."""
    agents = [
        stage.play(Use("slow", name=f"held {n}"), "Done.", name=f"a{n}") for n in range(TABS)
    ]
    site = await harness.site(*agents)
    runs = [await site.start(f"a{n}", f"Task {n}") for n in range(TABS)]
    for number in range(TABS):
        await stage.start(f"held {number}").wait()
    tabs = await open_tabs(harness, site, [f"/runs/{run.id}" for run in runs])
    for tab, run in zip(tabs, runs, strict=True):
        await tab.get_by_role("button", name="Pause").click()
        await run.until("pausing")
    assert site.app.streams <= 6
    stage.open_all_gates()
    for tab in tabs:
        await expect(tab.locator("midrun-controls .badge")).to_contain_text("Paused by you")


async def test_a_tab_without_a_slot_misses_nothing(harness: Harness, stage: Stage) -> None:
    """It polls from the last entry it has."""
    steps = [Use("slow", name=f"step {n}") for n in range(3)]
    site = await harness.site(stage.play(*steps, "Done."))
    run = await site.start(task="Crawl")
    tabs = await open_tabs(harness, site, [f"/runs/{run.id}"] * 5)
    for number in range(3):
        await stage.start(f"step {number}").wait()
        stage.gate(f"step {number}").set()
    view = await run.until("completed")
    for tab in tabs:
        await expect(tab.locator("midrun-controls .badge")).to_contain_text("Completed")
        timeline = tab.locator("midrun-timeline")
        await timeline.evaluate("timeline => { timeline.isRaw = true; }")
        rows = timeline.locator("li")
        await expect(rows).to_have_count(view.seq)


async def test_a_hidden_tab_frees_its_slot(harness: Harness, stage: Stage) -> None:
    """When it is visible again, its feed is open again."""
    site = await harness.site(stage.play(Use("slow", name="held"), "Done."))
    run = await site.start(task="Crawl")
    (tab,) = await open_tabs(harness, site, [f"/runs/{run.id}"])
    await expect(tab.locator("midrun-controls .badge")).to_contain_text("Running")
    await wait_until(lambda: site.app.streams == 2)  # the list's, and this one's
    await tab.clock.install()
    hide = """hidden => {
      Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    async with tab.expect_event("requestfailed"):
        await tab.evaluate(hide, True)  # noqa: FBT003 - an argument of the script
        await tab.clock.fast_forward(6_000)
    async with tab.expect_request("**/events*"):
        await tab.evaluate(hide, False)  # noqa: FBT003 - as above
    await run.pause(actor="ann")
    await expect(tab.locator("midrun-controls .badge")).to_contain_text(
        "Pausing, requested by ann"
    )
