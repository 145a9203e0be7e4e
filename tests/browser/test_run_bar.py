"""The control bar in a real browser: every state drawn, and its buttons pressed."""

import pytest
from playwright.async_api import expect

from midrun import Midrun
from midrun.core.ids import Micros
from midrun.ports.environment import wall
from midrun.server import Tokens, app
from midrun.stops import MaxSteps
from tests.browser.bench import Bench, Site, later, listening
from tests.browser.stage import Hold, Stage, Use
from tests.browser.watching import PLAN, at_tool, watched
from tests.unit.server.conftest import PEOPLE, token_of

pytestmark = pytest.mark.once

PATIENCE = 11_000_000
"""Microseconds. After ten seconds of pausing, the bar offers not to wait."""

LOOK_MS = 5_000
"""How long the page trusts what it has seen of a run that is driven."""

TWICE = """button => new Promise((done) => {
  const again = new MutationObserver(() => {
    if (!button.textContent.includes("Keep running")) return;
    again.disconnect();
    button.click();
    done();
  });
  again.observe(button, {subtree: true, childList: true, characterData: true});
  button.click();
})"""
"""Clicks it, and at once again when it says something else."""


async def test_a_run_is_paused_and_goes_on(bench: Bench, stage: Stage) -> None:
    """Pausing says what it waits for; paused says so when it is true, and by whom."""
    seen = await at_tool(bench, stage)
    pause = seen.button("pause")
    await expect(pause).to_contain_text("Stops after slow.")
    await pause.click()
    await seen.says("Pausing by you")
    await expect(seen.page.locator(".note")).to_contain_text("finishing slow")
    await expect(pause).to_contain_text("Keep running")
    assert stage.did == []
    stage.gate("work").set()
    await seen.says("Paused by you")
    await expect(pause).to_contain_text("Continues at “Look around”; nothing is repeated.")
    await seen.press("pause")
    await seen.says("Completed")
    assert stage.did == ["work"]


async def test_a_pause_can_be_taken_back(bench: Bench, stage: Stage) -> None:
    """Before it takes effect; the tool is not disturbed."""
    seen = await at_tool(bench, stage)
    await seen.button("pause").click()
    await seen.says("Pausing by you")
    await seen.press("pause")
    await seen.says("Running")
    stage.gate("work").set()
    await seen.says("Completed")


async def test_a_double_click_does_not_pause_and_unpause(bench: Bench, stage: Stage) -> None:
    """A button that has just changed its meaning was not meant."""
    seen = await at_tool(bench, stage)
    asked: list[str] = []
    seen.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    await seen.button("pause").evaluate(TWICE)
    await seen.says("Pausing by you")
    await seen.press("pause")
    await seen.says("Running")
    assert [verb for verb in asked if verb in {"pause", "resume"}] == ["pause", "resume"]


async def test_after_ten_seconds_of_pausing_the_call_can_be_stopped(
    bench: Bench, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default lets a started tool finish; a person may not want to wait for it."""
    seen = await at_tool(bench, stage)
    await seen.button("pause").click()
    await seen.says("Pausing by you")
    await expect(seen.action("Stop this call now")).to_have_count(0)
    monkeypatch.setattr(seen.site.mid, "now", lambda: Micros(wall() + PATIENCE))
    await later(seen.page, LOOK_MS)
    await seen.action("Stop this call now").click()
    await seen.says("Paused by you")
    assert stage.stopped == ["work"]


async def test_at_a_cap_it_is_raised_and_the_run_goes_on(bench: Bench, stage: Stage) -> None:
    """One button: raising alone would leave the run paused, resuming alone is refused."""
    turns = ([PLAN, Use("quick", name="a")], "All done.")
    seen = await watched(bench, stage, *turns, stop=MaxSteps(1))
    await seen.says("Paused at the step cap (1)")
    await expect(seen.button("pause")).to_contain_text("Adds 10 steps, then continues")
    await seen.button("pause").click()
    await seen.says("Completed")
    await expect(seen.page.locator("midrun-caps")).to_contain_text("2 / 11")


async def test_a_user_may_not_raise_a_cap_and_is_told(bench: Bench, stage: Stage) -> None:
    """A button that would be refused is not live, and says why."""
    turns = (Use("quick", name="a"), "All done.")
    seen = await watched(bench, stage, *turns, who="ann", stop=MaxSteps(1))
    await seen.says("Paused at the step cap (1)")
    await expect(seen.button("pause")).to_have_attribute("aria-disabled", "true")
    await expect(seen.button("pause")).to_contain_text("Only an operator may do this.")
    await expect(seen.page.get_by_role("button", name="Raise Steps")).to_have_count(0)


async def test_a_viewer_looks_and_presses_nothing(bench: Bench, stage: Stage) -> None:
    """All buttons are there, with their reason, and none is live."""
    seen = await at_tool(bench, stage)
    page = await bench.page(seen.site, seen.path, who="vera")
    for name in ("pause", "redirect", "cancel"):
        button = page.locator(f"midrun-controls #{name}")
        await expect(button).to_have_attribute("aria-disabled", "true")
        await expect(button).to_contain_text("You may only view this run")
    await page.locator("midrun-controls #pause").dispatch_event("click")
    await page.keyboard.press("c")
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Running")
    assert (await seen.run.view()).phase == "running"


async def test_a_failed_run_is_tried_again_from_its_step(bench: Bench, stage: Stage) -> None:
    """Finished work is not repeated."""
    seen = await watched(bench, stage, [PLAN, Use("quick", name="a")])
    await seen.says("Failed at step 1 of 3")
    await expect(seen.page.locator("midrun-steps")).to_contain_text("IndexError")
    await expect(seen.button("pause")).to_contain_text("Retry step 1 of 3")
    before = (await seen.run.view()).seq
    await seen.button("pause").click()
    await expect(seen.page.locator("midrun-timeline")).to_contain_text(f"#{before + 1}")
    await seen.says("Failed at step 1 of 3")
    assert stage.did == ["a"]


async def test_a_halt_says_who_and_why_and_ends_when_lifted(bench: Bench, stage: Stage) -> None:
    """There is nothing to press but a cancel for later."""
    seen = await at_tool(bench, stage)
    scope, olga = f"run:{seen.run.id}", PEOPLE["olga"]
    await seen.site.mid.halt("The far end is on fire", scope=scope, actor=olga)
    await seen.says("Halted by you")
    await expect(seen.page.locator("midrun-controls")).to_contain_text(
        "Reason: The far end is on fire"
    )
    for name in ("pause", "redirect"):
        await expect(seen.button(name)).to_have_attribute("aria-disabled", "true")
    await expect(seen.button("cancel")).to_contain_text("Takes effect when the halt is lifted.")
    await seen.site.mid.lift(scope=scope, actor=olga)
    await seen.says("Completed")


async def test_a_queued_run_says_that_nobody_takes_it(bench: Bench, stage: Stage) -> None:
    """It can be cancelled before it starts, which needs no worker."""
    async with Midrun("memory://", agents=[stage.play("Hello.")], engine=None) as mid:
        made = app(mid, auth=Tokens({token_of("olga"): PEOPLE["olga"]}))
        async with listening(made) as port:
            run = await mid.start("actor", "Never begun", actor=PEOPLE["olga"])
            page = await bench.page(Site(mid, made, port), f"/runs/{run.id}")
            bar = page.locator("midrun-controls")
            await expect(bar.locator(".badge")).to_contain_text("Queued")
            await expect(bar.locator(".note")).to_have_text("no worker is available")
            await expect(bar.locator("#cancel")).to_contain_text("Never starts.")
            await bar.locator("#cancel").click()
            await page.get_by_role("button", name="Cancel", exact=True).click()
            await expect(bar.locator(".badge")).to_contain_text("Cancelled by you")
            await page.close()


async def test_a_run_that_is_over_can_be_run_again_and_continued(
    bench: Bench, stage: Stage
) -> None:
    """The three buttons give way to what can still be done."""
    seen = await watched(bench, stage, "The memo is written.", "More of it.")
    await seen.says("Completed")
    await expect(seen.button("pause")).to_have_count(0)
    await expect(seen.page.locator("midrun-steps")).to_contain_text("The memo is written.")
    await seen.action("Continue from here…").click()
    await seen.page.get_by_label("What should happen next?").fill("Make it longer")
    await seen.action("Continue with this").click()
    await seen.page.wait_for_url(lambda url: not url.endswith(str(seen.run.id)))
    await expect(seen.page.get_by_role("heading", name="Make it longer")).to_be_visible()
    await expect(seen.page.locator("midrun-steps")).to_contain_text("Write a memo")
    await seen.says("Completed")
    second = seen.page.url
    await seen.action("Run again").click()
    await seen.page.wait_for_url(lambda url: url != second)
    await seen.says("Completed")


async def test_the_clock_ticks_while_somebody_works_and_not_while_paused(
    bench: Bench, stage: Stage
) -> None:
    """It is time at work, not time since the start."""
    seen = await watched(bench, stage, ["Let me ", Hold("think"), "see."], "So.")
    clock = seen.page.get_by_role("timer")
    await stage.start("think").wait()
    await seen.says("Running")
    await seen.page.route("**/seen", lambda route: route.abort())  # or it would know better
    await later(seen.page, 3_600_000)
    await expect(clock).to_contain_text("01:0")
    await seen.page.unroute("**/seen")
    await seen.button("pause").click()
    await seen.says("Paused by you")
    await expect(clock).to_contain_text("00:0")
    shown = await clock.inner_text()
    await later(seen.page, 7_200_000)
    await expect(clock).to_have_text(shown)
