"""Scenes: each opens the run page and holds it in one state."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from playwright.async_api import expect

from midrun.ports.environment import Environment
from midrun.stops import MaxSteps
from tests.browser.harness import TIMEOUT_S, Harness, advance_clock
from tests.browser.run_page import PLAN, RunPage, open_at_tool, open_run_page
from tests.browser.server_clock import Clock
from tests.browser.stage import Hold, Stage, Turn, Use
from tests.unit.server.conftest import ACTORS

Scene = Callable[[Harness, Stage], Awaitable[RunPage]]

LEASE: Final = timedelta(seconds=TIMEOUT_S)
LONG_PAUSE: Final = timedelta(seconds=20)
"""After more than ten seconds the bar offers to stop the calls that a pause waits for."""


def with_clock(clock: Clock) -> Environment:
    """Return the environment of a server with this clock."""
    return Environment(lease=LEASE, clock=clock)


async def running(harness: Harness, stage: Stage) -> RunPage:
    """A tool at work, with text before it."""
    turn: Turn = ["I look around. ", PLAN, Use("slow", name="work")]
    ui = await open_run_page(harness, stage, turn, "Done.", bypass_csp=True)
    await stage.start("work").wait()
    await ui.expect_badge("Running")
    return ui


async def speaking(harness: Harness, stage: Stage) -> RunPage:
    """In the middle of a sentence."""
    turn: Turn = [PLAN, "The champion left in ", Hold("mid"), "spring."]
    ui = await open_run_page(harness, stage, turn, "So.", bypass_csp=True)
    await expect(ui.page.locator("midrun-steps")).to_contain_text("The champion left in")
    return ui


async def pass_time(ui: RunPage, clock: Clock) -> None:
    """Advance the clocks of the server and of the page beyond a long pause."""
    clock.advance(LONG_PAUSE)
    await advance_clock(ui.page, round(LONG_PAUSE.total_seconds() * 1000))


async def pausing(harness: Harness, stage: Stage) -> RunPage:
    """A pause that waits for a call for some time."""
    clock = Clock()
    ui = await open_at_tool(harness, stage, bypass_csp=True, outside=with_clock(clock))
    await ui.button("pause").click()
    await ui.expect_badge("Pausing, requested by you")
    await pass_time(ui, clock)
    await expect(ui.button_named("Stop this call now")).to_be_visible()
    return ui


async def paused(harness: Harness, stage: Stage) -> RunPage:
    """Paused in mid-sentence, with a draft."""
    ui = await open_run_page(
        harness, stage, ["I ", Hold("mid"), "think."], "So.", bypass_csp=True
    )
    await stage.start("mid").wait()
    await ui.button("pause").click()
    await ui.expect_badge("Paused by you")
    await ui.type_instruction("Leave out Ac")
    return ui


async def redirecting(harness: Harness, stage: Stage) -> RunPage:
    """A pending redirect, and a draft of another one."""
    ui = await open_at_tool(harness, stage, bypass_csp=True)
    await ui.run.redirect("Another course", actor="ann")
    await expect(ui.button_named("Withdraw")).to_be_visible()
    await ui.type_instruction("Leave out Ac")
    await expect(ui.button_named("Now")).to_be_visible()
    return ui


async def replanned(harness: Harness, stage: Stage) -> RunPage:
    """A changed plan: calls stay with their item wherever it is now."""
    items = ["Ask around", "Look around", "Write the memo"]
    plan = Use("plan", items=items, marks={"2": "done"})
    again: Turn = [Hold("thought"), plan, Use("slow", name="more")]
    ui = await open_run_page(
        harness, stage, [PLAN, Use("slow", name="work")], again, bypass_csp=True
    )
    stage.gate("work").set()
    calls = ui.page.locator("midrun-steps [data-call]")
    await expect(calls).to_contain_text(["Done"])
    stage.gate("thought").set()
    await expect(calls).to_contain_text(["Running", "Done"])
    return ui


async def interjecting(harness: Harness, stage: Stage) -> RunPage:
    """A pending side question, and a draft of another one."""
    ui = await open_at_tool(harness, stage, bypass_csp=True)
    await ui.run.say("Which paper?", actor=ACTORS["olga"])
    await expect(ui.button_named("Withdraw")).to_be_visible()
    await ui.type_question("And by wh")
    return ui


async def aside(harness: Harness, stage: Stage) -> RunPage:
    """A held topic."""
    answer: Turn = ["By Ames, ", Hold("aside"), "2019."]
    ui = await open_run_page(
        harness, stage, [PLAN, Use("slow", name="work")], answer, bypass_csp=True
    )
    await stage.start("work").wait()
    await ui.run.say("Which paper?", actor=ACTORS["olga"])
    stage.gate("work").set()
    await expect(ui.page.get_by_text("Held topics")).to_be_visible()
    await expect(ui.page.locator("midrun-steps")).to_contain_text("By Ames,")
    return ui


async def waiting(harness: Harness, stage: Stage) -> RunPage:
    """A question being answered and an approval being edited."""
    turn: Turn = [PLAN, Use("ask", question="Which?"), Use("mail", name="bo")]
    ui = await open_run_page(harness, stage, turn, "Done.", bypass_csp=True)
    await ui.expect_badge("Waiting for you")
    await ui.page.get_by_label("Answer to: Which?").fill("This o")
    await ui.button_named("Edit…").click()
    return ui


async def unsure(harness: Harness, stage: Stage) -> RunPage:
    """A call of unknown outcome."""
    turn: Turn = [PLAN, Use("doubt", name="a post")]
    ui = await open_run_page(harness, stage, turn, "Done.", bypass_csp=True)
    await ui.expect_badge("Check one call")
    return ui


async def capped(harness: Harness, stage: Stage) -> RunPage:
    """At its cap."""
    turn: Turn = [PLAN, Use("quick", name="a")]
    ui = await open_run_page(harness, stage, turn, "x", stop=MaxSteps(1), bypass_csp=True)
    await ui.expect_badge("Paused at the turn cap")
    return ui


async def confirming(harness: Harness, stage: Stage) -> RunPage:
    """The cancel sheet after some time; its hold does not expire."""
    clock = Clock()
    ui = await open_at_tool(
        harness, stage, "slow_draft", bypass_csp=True, outside=with_clock(clock)
    )
    await ui.button("cancel").click()
    await ui.expect_badge("Pausing, requested by you")
    await pass_time(ui, clock)
    clock.stop()
    await expect(ui.button_named("Stop this call now")).to_be_visible()
    await expect(ui.button_named("Keep running")).to_be_visible()
    return ui


async def stopping(harness: Harness, stage: Stage) -> RunPage:
    """A cancel that waits for a call which does not stop."""
    ui = await open_at_tool(harness, stage, "stubborn", bypass_csp=True, grace=LEASE)
    await ui.run.cancel(actor=ACTORS["olga"])
    await ui.expect_badge("Cancelling, requested by you — stopping")
    return ui


async def undoing(harness: Harness, stage: Stage) -> RunPage:
    """A cancel with one call undone and another in progress."""
    turn: Turn = [PLAN, Use("dear_draft", name="a"), Use("dear_draft", name="b")]
    ui = await open_run_page(harness, stage, turn, Use("slow", name="work"), bypass_csp=True)
    await stage.start("work").wait()
    await ui.run.cancel(undo="all", actor=ACTORS["olga"])
    await ui.expect_badge("Cancelling, requested by you — undoing 1 of 2")
    stage.gate("undo b").set()
    await ui.expect_badge("Cancelling, requested by you — undoing 2 of 2")
    return ui


async def cancelled(harness: Harness, stage: Stage) -> RunPage:
    """The report."""
    ui = await confirming(harness, stage)
    await ui.button_named("Cancel and undo 1").click()
    await ui.expect_badge("Cancelled by you")
    await expect(ui.page.locator("midrun-report h2")).to_be_visible()
    return ui


async def stuck(harness: Harness, stage: Stage) -> RunPage:
    """The report of a cancel whose undo failed."""
    hurried = Environment(lease=LEASE, random_unit=lambda: -1.0)  # attempts do not wait
    ui = await open_at_tool(harness, stage, "stuck_draft", bypass_csp=True, outside=hurried)
    await ui.run.cancel(undo="all", actor=ACTORS["olga"])
    await ui.expect_badge("Cancelled by you — 1 undo failed")
    await expect(ui.button_named("Leave it as it is")).to_be_visible()
    return ui


async def failed(harness: Harness, stage: Stage) -> RunPage:
    """An error."""
    ui = await open_run_page(harness, stage, [PLAN, Use("fail", text="no")], bypass_csp=True)
    await ui.expect_badge("Failed")
    return ui


async def halted(harness: Harness, stage: Stage) -> RunPage:
    """Under a halt."""
    ui = await open_at_tool(harness, stage, bypass_csp=True)
    scope = f"run:{ui.run.id}"
    await ui.site.mid.halt("Fire", scope=scope, actor=ACTORS["olga"])
    await ui.expect_badge("Halted")
    return ui


async def taken_over(harness: Harness, stage: Stage) -> RunPage:
    """Taken over by the viewer."""
    ui = await open_at_tool(harness, stage, bypass_csp=True)
    await ui.button_named("Take over").click()
    await ui.expect_badge("Taking over, requested by you")
    stage.gate("work").set()
    await ui.expect_badge("Taken over by you")
    await ui.page.get_by_label("Write in the agent").fill("I have looked")
    await expect(ui.page.get_by_label("Use a tool")).to_contain_text("Slow")
    return ui


async def completed(harness: Harness, stage: Stage) -> RunPage:
    """The result."""
    ui = await open_run_page(harness, stage, "All done.", bypass_csp=True)
    await ui.expect_badge("Completed")
    return ui


async def lost(harness: Harness, stage: Stage) -> RunPage:
    """The server does not answer."""
    ui = await open_at_tool(harness, stage, bypass_csp=True)
    await ui.page.context.set_offline(offline=True)
    ui.site.app.close()
    await ui.expect_badge("Connection lost")
    return ui


SCENES: Final[tuple[Scene, ...]] = (
    running,
    speaking,
    pausing,
    paused,
    redirecting,
    replanned,
    interjecting,
    aside,
    waiting,
    unsure,
    capped,
    confirming,
    stopping,
    undoing,
    cancelled,
    stuck,
    failed,
    halted,
    taken_over,
    completed,
)
"""All but `lost`, and what takes a worker that is killed: `test_run_lost` has those."""
