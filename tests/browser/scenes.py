"""Scenes: the run page in each of its states, drawn and held there."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from playwright.async_api import expect

from midrun.ports.environment import Outside
from midrun.stops import MaxSteps
from tests.browser.bench import PATIENCE_S, Bench, later
from tests.browser.clocks import Clock
from tests.browser.stage import Hold, Stage, Turn, Use
from tests.browser.watching import PLAN, Watched, at_tool, watched
from tests.unit.server.conftest import PEOPLE

Scene = Callable[[Bench, Stage], Awaitable[Watched]]

LEASE: Final = timedelta(seconds=PATIENCE_S)
A_WHILE: Final = timedelta(seconds=20)
"""After more than ten seconds a bar offers not to wait for a pause."""

LOOK_MS: Final = 5_000
"""How long the page trusts what it has seen of a run that is driven."""


def by(clock: Clock) -> Outside:
    """Return what a server takes from the machine, but for the time."""
    return Outside(lease=LEASE, clock=clock)


async def running(bench: Bench, stage: Stage) -> Watched:
    """A tool at work, words before it."""
    turn: Turn = ["I look around. ", PLAN, Use("slow", name="work")]
    seen = await watched(bench, stage, turn, "Done.", bare=True)
    await stage.start("work").wait()
    await seen.says("Running")
    return seen


async def speaking(bench: Bench, stage: Stage) -> Watched:
    """In the middle of a sentence."""
    turn: Turn = [PLAN, "The champion left in ", Hold("mid"), "spring."]
    seen = await watched(bench, stage, turn, "So.", bare=True)
    await expect(seen.page.locator("midrun-steps")).to_contain_text("The champion left in")
    return seen


async def pausing(bench: Bench, stage: Stage) -> Watched:
    """Asked for, and for a while not yet so."""
    clock = Clock()
    seen = await at_tool(bench, stage, bare=True, outside=by(clock))
    await seen.button("pause").click()
    await seen.says("Pausing by you")
    clock.put_forward(A_WHILE)
    await later(seen.page, LOOK_MS)
    await expect(seen.action("Stop this call now")).to_be_visible()
    return seen


async def paused(bench: Bench, stage: Stage) -> Watched:
    """In mid-sentence, with something written and not sent."""
    seen = await watched(bench, stage, ["I ", Hold("mid"), "think."], "So.", bare=True)
    await stage.start("mid").wait()
    await seen.button("pause").click()
    await seen.says("Paused by you")
    await seen.writes("Leave out Ac")
    return seen


async def redirecting(bench: Bench, stage: Stage) -> Watched:
    """A redirect that waits, and another that is being written, for now."""
    seen = await at_tool(bench, stage, bare=True)
    await seen.run.redirect("Another course", actor="ann")
    await expect(seen.action("Withdraw")).to_be_visible()
    await seen.writes("Leave out Ac")
    await seen.page.get_by_label("Now — stop the current call").check()
    return seen


async def replanned(bench: Bench, stage: Stage) -> Watched:
    """What was done for an item stays with it, wherever the agent puts it now."""
    items = ["Ask around", "Look around", "Write the memo"]
    plan = Use("plan", items=items, marks={"2": "done"})
    again: Turn = [Hold("thought"), plan, Use("slow", name="more")]
    seen = await watched(bench, stage, [PLAN, Use("slow", name="work")], again, bare=True)
    stage.gate("work").set()
    calls = seen.page.locator("midrun-steps [data-call]")
    await expect(calls).to_contain_text(["Done"])
    stage.gate("thought").set()
    await expect(calls).to_contain_text(["Running", "Done"])
    return seen


async def interjecting(bench: Bench, stage: Stage) -> Watched:
    """A side question that waits for the next step, and another that is being written."""
    seen = await at_tool(bench, stage, bare=True)
    await seen.run.say("Which paper?", actor=PEOPLE["olga"])
    await expect(seen.action("Withdraw")).to_be_visible()
    await seen.writes("And by wh")
    await seen.page.get_by_label("Side question").check()
    return seen


async def aside(bench: Bench, stage: Stage) -> Watched:
    """A held thought."""
    answer: Turn = ["By Ames, ", Hold("aside"), "2019."]
    seen = await watched(bench, stage, [PLAN, Use("slow", name="work")], answer, bare=True)
    await stage.start("work").wait()
    await seen.run.say("Which paper?", actor=PEOPLE["olga"])
    stage.gate("work").set()
    await expect(seen.page.get_by_text("Held topics")).to_be_visible()
    await expect(seen.page.locator("midrun-steps")).to_contain_text("By Ames,")
    return seen


async def waiting(bench: Bench, stage: Stage) -> Watched:
    """A question being answered and an approval being edited."""
    turn: Turn = [PLAN, Use("ask", question="Which?"), Use("mail", name="bo")]
    seen = await watched(bench, stage, turn, "Done.", bare=True)
    await seen.says("Waiting for you")
    await seen.page.get_by_label("Answer to: Which?").fill("This o")
    await seen.action("Edit…").click()
    return seen


async def unsure(bench: Bench, stage: Stage) -> Watched:
    """A call of which nobody knows whether it happened."""
    turn: Turn = [PLAN, Use("doubt", name="a post")]
    seen = await watched(bench, stage, turn, "Done.", bare=True)
    await seen.says("Check one call")
    return seen


async def capped(bench: Bench, stage: Stage) -> Watched:
    """At its cap."""
    turn: Turn = [PLAN, Use("quick", name="a")]
    seen = await watched(bench, stage, turn, "x", stop=MaxSteps(1), bare=True)
    await seen.says("Paused at the step cap")
    return seen


async def confirming(bench: Bench, stage: Stage) -> Watched:
    """The cancel sheet, after a while; its hold does not run out."""
    clock = Clock()
    seen = await at_tool(bench, stage, "slow_draft", bare=True, outside=by(clock))
    await seen.button("cancel").click()
    await seen.says("Pausing by you")
    clock.put_forward(A_WHILE)
    clock.stop()
    await later(seen.page, LOOK_MS)
    await expect(seen.action("Stop this call now")).to_be_visible()
    await expect(seen.action("Keep running")).to_be_visible()
    return seen


async def stopping(bench: Bench, stage: Stage) -> Watched:
    """A cancel that waits for a call which does not stop."""
    seen = await at_tool(bench, stage, "stubborn", bare=True, grace=LEASE)
    await seen.run.cancel(actor=PEOPLE["olga"])
    await seen.says("Cancelling by you — stopping")
    return seen


async def undoing(bench: Bench, stage: Stage) -> Watched:
    """A cancel that has undone one thing, and is at the other."""
    turn: Turn = [PLAN, Use("dear_draft", name="a"), Use("dear_draft", name="b")]
    seen = await watched(bench, stage, turn, Use("slow", name="work"), bare=True)
    await stage.start("work").wait()
    await seen.run.cancel(undo="all", actor=PEOPLE["olga"])
    await seen.says("Cancelling by you — undoing 1 of 2")
    stage.gate("undo b").set()
    await seen.says("Cancelling by you — undoing 2 of 2")
    return seen


async def cancelled(bench: Bench, stage: Stage) -> Watched:
    """The report."""
    seen = await confirming(bench, stage)
    await seen.action("Cancel and undo 1").click()
    await seen.says("Cancelled by you")
    await expect(seen.page.get_by_text("What happened to the work")).to_be_visible()
    return seen


async def stuck(bench: Bench, stage: Stage) -> Watched:
    """The report of a cancel whose undo failed."""
    hurried = Outside(lease=LEASE, chance=lambda: -1.0)  # attempts do not wait
    seen = await at_tool(bench, stage, "stuck_draft", bare=True, outside=hurried)
    await seen.run.cancel(undo="all", actor=PEOPLE["olga"])
    await seen.says("Cancelled by you — 1 undo failed")
    await expect(seen.action("Leave it as it is")).to_be_visible()
    return seen


async def failed(bench: Bench, stage: Stage) -> Watched:
    """An error."""
    seen = await watched(bench, stage, [PLAN, Use("fail", text="no")], bare=True)
    await seen.says("Failed")
    return seen


async def halted(bench: Bench, stage: Stage) -> Watched:
    """An operator's latch."""
    seen = await at_tool(bench, stage, bare=True)
    scope = f"run:{seen.run.id}"
    await seen.site.mid.halt("Fire", scope=scope, actor=PEOPLE["olga"])
    await seen.says("Halted")
    return seen


async def taken_over(bench: Bench, stage: Stage) -> Watched:
    """Somebody at the wheel."""
    seen = await at_tool(bench, stage, bare=True)
    await seen.action("Take over").click()
    await seen.says("Taking over by you")
    stage.gate("work").set()
    await seen.says("Taken over by you")
    await seen.page.get_by_label("Write as the assistant").fill("I have looked")
    await expect(seen.page.get_by_label("Use a tool")).to_contain_text("slow")
    return seen


async def completed(bench: Bench, stage: Stage) -> Watched:
    """The result."""
    seen = await watched(bench, stage, "All done.", bare=True)
    await seen.says("Completed")
    return seen


async def lost(bench: Bench, stage: Stage) -> Watched:
    """The server does not answer."""
    seen = await at_tool(bench, stage, bare=True)
    await seen.page.context.set_offline(offline=True)
    seen.site.app.close()
    await seen.says("Connection lost")
    return seen


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
