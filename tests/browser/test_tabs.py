"""Many tabs of one browser: a browser has six connections to a server, and no more."""

from playwright.async_api import Page, expect

from tests.browser.bench import Bench, Site
from tests.browser.stage import Stage, Use
from tests.crash.facts import becomes

TABS = 7


async def opened(bench: Bench, site: Site, paths: list[str]) -> list[Page]:
    """Open tabs of one browser."""
    profile = await bench.profile()
    first = await profile.new_page()
    await first.goto(site.link())
    await expect(first.get_by_role("heading", name="Runs")).to_be_visible()
    tabs = []
    for path in paths:
        tabs.append(await profile.new_page())
        await tabs[-1].goto(f"{site.url}{path}")
    return tabs


async def test_every_button_of_many_tabs_gets_through(bench: Bench, stage: Stage) -> None:
    """With a feed held open by each, the seventh would not even load, and none could pause."""
    agents = [
        stage.play(Use("slow", name=f"held {n}"), "Done.", name=f"a{n}") for n in range(TABS)
    ]
    site = await bench.site(*agents)
    runs = [await site.start(f"a{n}", f"Task {n}") for n in range(TABS)]
    for number in range(TABS):
        await stage.start(f"held {number}").wait()
    tabs = await opened(bench, site, [f"/runs/{run.id}" for run in runs])
    for tab, run in zip(tabs, runs, strict=True):
        await tab.get_by_role("button", name="Pause").click()
        await run.until("pausing")
    assert site.app.streams <= 6
    stage.let_go()
    for tab in tabs:
        await expect(tab.locator("midrun-controls .badge")).to_contain_text("Paused by you")


async def test_a_tab_without_a_place_misses_nothing(bench: Bench, stage: Stage) -> None:
    """It looks in now and then, from the last entry it has."""
    steps = [Use("slow", name=f"step {n}") for n in range(3)]
    site = await bench.site(stage.play(*steps, "Done."))
    run = await site.start(task="Crawl")
    tabs = await opened(bench, site, [f"/runs/{run.id}"] * 5)
    for number in range(3):
        await stage.start(f"step {number}").wait()
        stage.gate(f"step {number}").set()
    view = await run.until("completed")
    for tab in tabs:
        await expect(tab.locator("midrun-controls .badge")).to_contain_text("Completed")
        rows = tab.locator("midrun-timeline li")
        await expect(rows).to_have_count(view.seq)


async def test_a_hidden_tab_gives_its_place_to_one_that_is_seen(
    bench: Bench, stage: Stage
) -> None:
    """What nobody looks at need not be live; when it is looked at again, it is."""
    site = await bench.site(stage.play(Use("slow", name="held"), "Done."))
    run = await site.start(task="Crawl")
    (tab,) = await opened(bench, site, [f"/runs/{run.id}"])
    await expect(tab.locator("midrun-controls .badge")).to_contain_text("Running")
    await becomes(lambda: site.app.streams == 2)  # the list's, and this one's
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
    await expect(tab.locator("midrun-controls .badge")).to_contain_text("Pausing by ann")
