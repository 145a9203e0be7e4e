"""The control bar in a real browser: every state, and its buttons."""

import pytest
from playwright.async_api import expect

from midrun import Midrun
from midrun.server import Tokens, app
from midrun.stops import MaxSteps
from tests.browser.harness import Harness, Site, advance_clock, serve_app
from tests.browser.run_page import PLAN, hold_feed, open_at_tool, open_run_page, release_feed
from tests.browser.stage import Hold, Stage, Turn, Use
from tests.unit.server.conftest import ACTORS, make_token

pytestmark = pytest.mark.once

LONG_PAUSE_MS = 11_000
"""After ten seconds of pausing, the bar offers not to wait."""


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


async def test_a_run_is_paused_and_goes_on(harness: Harness, stage: Stage) -> None:
    """Pausing names the call it waits for; paused appears only when it is true."""
    ui = await open_at_tool(harness, stage)
    pause = ui.button("pause")
    await expect(pause).to_contain_text("Stops after “Slow”.")
    await pause.click()
    await ui.expect_badge("Pausing, requested by you")
    await expect(ui.page.locator(".note")).to_contain_text("finishing “Slow”")
    await expect(pause).to_contain_text("Keep running")
    assert stage.completed == []
    stage.gate("work").set()
    await ui.expect_badge("Paused by you")
    await expect(pause).to_contain_text("Continues at “Look around”; nothing is repeated.")
    await ui.press("pause")
    await ui.expect_badge("Completed")
    assert stage.completed == ["work"]


async def test_a_pause_can_be_taken_back(harness: Harness, stage: Stage) -> None:
    """Before it takes effect; the tool is not stopped."""
    ui = await open_at_tool(harness, stage)
    await ui.button("pause").click()
    await ui.expect_badge("Pausing, requested by you")
    await ui.press("pause")
    await ui.expect_badge("Running")
    stage.gate("work").set()
    await ui.expect_badge("Completed")


async def test_a_double_click_does_not_pause_and_unpause(
    harness: Harness, stage: Stage
) -> None:
    """The second click lands on a button that has just changed its meaning."""
    ui = await open_at_tool(harness, stage)
    asked: list[str] = []
    ui.page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    await ui.button("pause").evaluate(TWICE)
    await ui.expect_badge("Pausing, requested by you")
    await ui.press("pause")
    await ui.expect_badge("Running")
    assert [verb for verb in asked if verb in {"pause", "resume"}] == ["pause", "resume"]


async def test_after_ten_seconds_of_pausing_the_call_can_be_stopped(
    harness: Harness, stage: Stage
) -> None:
    """By default a started tool may finish."""
    ui = await open_at_tool(harness, stage)
    await ui.button("pause").click()
    await ui.expect_badge("Pausing, requested by you")
    await expect(ui.button_named("Stop this call now")).to_have_count(0)
    await advance_clock(ui.page, LONG_PAUSE_MS)
    await ui.button_named("Stop this call now").click()
    await ui.expect_badge("Paused by you")
    assert stage.stopped == ["work"]


async def test_at_a_cap_it_is_raised_and_the_run_goes_on(
    harness: Harness, stage: Stage
) -> None:
    """One button does both: raising alone leaves the run paused, resuming alone is refused."""
    turns = ([PLAN, Use("quick", name="a")], "All done.")
    ui = await open_run_page(harness, stage, *turns, stop=MaxSteps(1))
    await ui.expect_badge("Paused at the turn cap (1)")
    await expect(ui.button("pause")).to_contain_text("Adds 10 turns, then continues")
    await ui.button("pause").click()
    await ui.expect_badge("Completed")
    await expect(ui.page.locator("midrun-caps")).to_contain_text("2 / 11")


async def test_a_user_may_not_raise_a_cap_and_is_told(harness: Harness, stage: Stage) -> None:
    """The button is disabled and names the reason."""
    turns = (Use("quick", name="a"), "All done.")
    ui = await open_run_page(harness, stage, *turns, who="ann", stop=MaxSteps(1))
    await ui.expect_badge("Paused at the turn cap (1)")
    await expect(ui.button("pause")).to_have_attribute("aria-disabled", "true")
    await expect(ui.button("pause")).to_contain_text("Only an operator may do this.")
    await expect(ui.page.get_by_role("button", name="Raise Turns")).to_have_count(0)


async def test_a_viewer_looks_and_presses_nothing(harness: Harness, stage: Stage) -> None:
    ui = await open_at_tool(harness, stage)
    page = await harness.page(ui.site, ui.path, who="vera")
    for name in ("pause", "redirect", "ask", "cancel"):
        button = page.locator(f"midrun-controls #{name}")
        await expect(button).to_have_attribute("aria-disabled", "true")
        await expect(button).to_contain_text("You may only view this run")
    await page.locator("midrun-controls #pause").dispatch_event("click")
    await page.keyboard.press("c")
    await expect(page.locator("midrun-controls .badge")).to_contain_text("Running")
    assert (await ui.run.view()).phase == "running"


async def test_a_failed_run_is_tried_again_from_its_step(
    harness: Harness, stage: Stage
) -> None:
    """Finished work is not repeated."""
    ui = await open_run_page(harness, stage, [PLAN, Use("quick", name="a")])
    await ui.expect_badge("Failed at plan 1/3")
    await expect(ui.page.locator("midrun-result")).to_contain_text("IndexError")
    await expect(ui.button("pause")).to_contain_text("Retry")
    before = (await ui.run.view()).seq
    await ui.show_every_entry()
    await ui.button("pause").click()
    await expect(ui.page.locator("midrun-timeline")).to_contain_text(f"#{before + 1}")
    await ui.expect_badge("Failed at plan 1/3")
    assert stage.completed == ["a"]


async def test_a_halt_says_who_and_why_and_ends_when_lifted(
    harness: Harness, stage: Stage
) -> None:
    """Only a cancel can be requested meanwhile."""
    ui = await open_at_tool(harness, stage)
    scope, olga = f"run:{ui.run.id}", ACTORS["olga"]
    await ui.site.mid.halt("The far end is on fire", scope=scope, actor=olga)
    await ui.expect_badge("Halted by you")
    await expect(ui.page.locator("midrun-controls")).to_contain_text(
        "Reason: The far end is on fire"
    )
    for name in ("pause", "redirect"):
        await expect(ui.button(name)).to_have_attribute("aria-disabled", "true")
    await expect(ui.button("cancel")).not_to_have_attribute("aria-disabled", "true")
    await ui.site.mid.lift(scope=scope, actor=olga)
    await ui.expect_badge("Completed")


async def test_a_queued_run_says_that_no_worker_takes_it(
    harness: Harness, stage: Stage
) -> None:
    """A cancel before the start needs no worker."""
    async with Midrun("memory://", agents=[stage.play("Hello.")], engine=None) as mid:
        made = app(mid, auth=Tokens({make_token("olga"): ACTORS["olga"]}))
        async with serve_app(made) as port:
            run = await mid.start("actor", "Never begun", actor=ACTORS["olga"])
            page = await harness.page(Site(mid, made, port), f"/runs/{run.id}")
            bar = page.locator("midrun-controls")
            await expect(bar.locator(".badge")).to_contain_text("Queued")
            await expect(bar.locator(".note")).to_have_text("no worker is available")
            await expect(bar.locator("#cancel")).to_contain_text("Never starts.")
            await bar.locator("#cancel").click()
            await page.get_by_role("button", name="End the run").click()
            await expect(bar.locator(".badge")).to_contain_text("Cancelled by you")
            await page.close()


async def test_a_run_that_is_over_can_be_run_again_and_continued(
    harness: Harness, stage: Stage
) -> None:
    ui = await open_run_page(harness, stage, "The memo is written.", "More of it.")
    await ui.expect_badge("Completed")
    await expect(ui.button("pause")).to_have_count(0)
    await expect(ui.page.locator("midrun-result")).to_contain_text("The memo is written.")
    await ui.button_named("Continue from here…").click()
    await ui.page.get_by_label("What should happen next?").fill("Make it longer")
    await ui.button_named("Continue with this").click()
    await ui.page.wait_for_url(lambda url: not url.endswith(str(ui.run.id)))
    await expect(ui.page.get_by_role("heading", name="Make it longer")).to_be_visible()
    await expect(ui.page.locator("midrun-steps")).to_contain_text("Write a memo")
    await expect(ui.page.get_by_role("link", name="continues the run")).to_be_visible()
    await ui.expect_badge("Completed")
    second = ui.page.url
    await ui.button_named("Run again").click()
    await ui.page.wait_for_url(lambda url: url != second)
    await ui.expect_badge("Completed")


async def test_the_clock_ticks_at_work_and_not_while_paused(
    harness: Harness, stage: Stage
) -> None:
    """It shows the time at work, not the time since the start."""
    ui = await open_run_page(harness, stage, ["Let me ", Hold("think"), "see."], "So.")
    clock = ui.page.get_by_role("timer")
    await stage.start("think").wait()
    await ui.expect_badge("Running")
    await hold_feed(ui.page)  # or it would know better
    await advance_clock(ui.page, 3_600_000)
    await expect(clock).to_contain_text("01:0")
    await release_feed(ui.page)
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await expect(clock).to_contain_text("00:0")
    shown = await clock.inner_text()
    await advance_clock(ui.page, 7_200_000)
    await expect(clock).to_have_text(shown)


BOXES = """() => {
  const bar = document.querySelector("midrun-run").shadowRoot.querySelector("midrun-controls");
  globalThis.boxes = new Set();
  const updated = bar.updated;
  bar.updated = function (changed) {
    updated.call(this, changed);
    for (const one of bar.shadowRoot.querySelectorAll("button.control, .status, .hint")) {
      const {x, y, width, height} = one.getBoundingClientRect();
      boxes.add(`${one.id || one.className}: ${[x, y, width, height].join(" ")}`);
    }
  };
  bar.requestUpdate();
}"""


@pytest.mark.parametrize("width", [1280, 390], ids=["desk", "phone"])
async def test_the_buttons_stay_where_they_are_to_the_pixel(
    harness: Harness, stage: Stage, width: int
) -> None:
    """While text arrives, rows come and go, labels change and the page gets longer."""
    long = "\n\n".join(f"Paragraph {n} of a long answer." for n in range(40))
    turns: tuple[Turn, ...] = (
        ["So. ", Hold("short"), long, Use("mail", name="bo")],
        Use("slow", name="work"),
        "Done.",
    )
    ui = await open_run_page(harness, stage, *turns)
    await ui.page.set_viewport_size({"width": width, "height": 800})
    await stage.start("short").wait()
    await expect(ui.button("pause")).to_be_in_viewport()
    await ui.page.evaluate(BOXES)
    stage.gate("short").set()
    await ui.expect_badge("Waiting for you")
    await ui.button_named("Approve").click()
    await stage.start("work").wait()
    await ui.run.redirect("Another course", actor="ann")
    await expect(ui.button_named("Withdraw")).to_be_visible()
    await ui.button("pause").click()
    await ui.expect_badge("Pausing, requested by you")
    await advance_clock(ui.page, LONG_PAUSE_MS)
    await expect(ui.button_named("Stop this call now")).to_be_visible()
    stage.gate("work").set()
    await ui.expect_badge("Paused by you")
    boxes = await ui.page.evaluate("[...boxes]")
    assert len(boxes) == 6, boxes  # four buttons, the state, and the consequence


async def test_a_finger_hits_every_button_on_a_phone(harness: Harness, stage: Stage) -> None:
    """At least 44 pixels high."""
    turns = ([PLAN, Use("ask", question="Which?"), Use("mail", name="bo")], "Done.")
    ui = await open_run_page(harness, stage, *turns, stop=MaxSteps(9))
    await ui.page.set_viewport_size({"width": 390, "height": 844})
    await ui.expect_badge("Waiting for you")
    small = await ui.page.get_by_role("button").evaluate_all(
        """all => all.filter((one) => one.getBoundingClientRect().height > 0)
          .filter((one) => one.getBoundingClientRect().height < 43.5)
          .map((one) => one.outerHTML)"""
    )
    assert small == []


async def test_the_consequence_is_that_of_the_button_under_the_pointer(
    harness: Harness, stage: Stage
) -> None:
    """Without a pointer or focus there, that of the first button; keys for the composer."""
    ui = await open_at_tool(harness, stage)
    hint = ui.page.locator("midrun-controls .hint")
    await expect(hint).to_contain_text("Stops after “Slow”.")
    await ui.button("cancel").hover()
    await expect(hint).to_contain_text("Stops now")
    await ui.button("ask").focus()
    await expect(hint).to_contain_text("then continues where it was")
    await ui.page.get_by_label("What should happen next?").focus()
    await expect(hint).to_contain_text("Ctrl+Enter: now")
    await ui.page.locator("h1").hover()
    await ui.page.keyboard.press("Escape")
    await expect(hint).to_contain_text("your instruction")


async def test_the_hint_of_the_composer_fits_the_moment_and_the_screen(
    harness: Harness, stage: Stage
) -> None:
    """An instruction ends a reply, and waits for a tool; a touch screen has no keys."""
    turn: Turn = ["The first half ", Hold("half"), Use("slow", name="work")]
    ui = await open_run_page(harness, stage, turn, "Done.")
    hint = ui.page.locator("midrun-controls .hint")
    await stage.start("half").wait()
    await ui.button("redirect").click()
    await expect(hint).to_contain_text("Enter: the reply stops here")
    stage.gate("half").set()
    await expect(hint).to_contain_text("Enter: from the next turn · Ctrl+Enter: now")
    await ui.page.evaluate("globalThis.matchMedia = () => ({matches: true})")
    await expect(hint).to_have_text(
        "Follows your instruction from the next turn; finished work stays."
    )


async def test_the_bar_stays_at_the_lower_edge_when_the_page_is_scrolled_to_its_end(
    harness: Harness, stage: Stage
) -> None:
    """Also where the right column is longer than the transcript."""
    ui = await open_at_tool(harness, stage)
    await ui.page.set_viewport_size({"width": 1100, "height": 420})
    bar = ui.page.locator("midrun-controls")
    top = "bar => bar.getBoundingClientRect().top"
    before = await bar.evaluate(top)
    await ui.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    await ui.page.evaluate("new Promise(requestAnimationFrame)")
    assert await ui.page.evaluate("scrollY") > 0
    assert abs(await bar.evaluate(top) - before) < 1  # the page's height is no whole number


async def test_question_mark_shows_the_keys(harness: Harness, stage: Stage) -> None:
    """So does the button beside the state."""
    ui = await open_at_tool(harness, stage)
    await ui.page.keyboard.press("?")
    keys = ui.page.get_by_role("region", name="Keys")
    await expect(keys).to_contain_text("ask a side question")
    await keys.get_by_role("button", name="Close").click()
    await expect(keys).to_have_count(0)
    await ui.page.get_by_role("button", name="Keys").click()
    await expect(keys).to_be_visible()


@pytest.mark.parametrize("width", [1280, 1600])
async def test_no_button_moves_when_the_plan_appears(
    harness: Harness, stage: Stage, width: int
) -> None:
    """The plan is beside the transcript on a wide page."""
    ui = await open_run_page(
        harness, stage, [Use("slow", name="first")], [PLAN, Use("slow", name="work")], "Done."
    )
    await ui.page.set_viewport_size({"width": width, "height": 900})
    await stage.start("first").wait()
    await expect(ui.badge).to_contain_text("Running")
    before = [await ui.button(name).bounding_box() for name in ("pause", "cancel")]
    stage.gate("first").set()
    await stage.start("work").wait()
    await expect(ui.page.locator("midrun-plan")).to_be_visible()
    assert [await ui.button(name).bounding_box() for name in ("pause", "cancel")] == before
    stage.gate("work").set()
