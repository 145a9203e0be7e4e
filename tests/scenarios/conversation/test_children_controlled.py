"""Children under control: paused, halted and redirected with their parent."""

import anyio
import anyio.lowlevel
import pytest

from midrun import Agent, Completed
from midrun.core.entries import CallStarted, RunHalted, RunLifted
from midrun.models import ScriptedModel, Use
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating, told
from tests.scenarios.promises.seen import entries, recorded
from tests.unit.runs.conftest import Opener

OPERATOR = "operator:olga"


def aide(shop: Workshop, *turns: object, name: str = "aide", **options: object) -> Agent:
    """Return an agent to be somebody's child."""
    return shop.agent(*turns, name=name, **options)


# ── pausing ───────────────────────────────────────────────────────────────────────────────


async def test_a_person_pauses_the_child_alone_and_lets_it_go_on(opened: Opener) -> None:
    """The parent waits with it, and costs nothing."""
    shop = Workshop()
    helper = aide(shop, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await child.pause(actor="ada")
    shop.gate("x").set()
    await child.until("paused")
    await run.until("waiting")
    assert shop.completed == ["x"]
    await child.resume(actor="ada")
    await run.until("completed")
    assert shop.completed == ["x", "y"]


async def test_a_parent_is_paused_although_its_child_was_paused_before(opened: Opener) -> None:
    """Nothing of it is in flight: there is nothing to wait for."""
    shop = Workshop()
    helper = aide(shop, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await child.pause(actor="ada")
    shop.gate("x").set()
    await child.until("paused")
    await run.pause()
    with anyio.fail_after(60):
        await run.until("paused")


async def test_a_resume_of_the_parent_leaves_a_child_paused_that_a_person_paused(
    opened: Opener,
) -> None:
    """A person's pause is let go by a person, not by the way."""
    shop = Workshop()
    helper = aide(shop, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await child.pause(actor="ada")
    await run.pause()
    shop.gate("x").set()
    await run.until("paused")
    await run.resume()
    await recorded(run, CallStarted, count=3)  # the model, the child, the child again
    assert (await child.view()).phase == "paused"
    assert shop.completed == ["x"]
    await child.resume(actor="ada")
    await run.until("completed")


async def test_a_pause_that_is_withdrawn_costs_the_child_nothing(opened: Opener) -> None:
    """Its tool finishes once, and the parent has its answer."""
    shop = Workshop()
    helper = aide(shop, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await run.pause()
    await child.until("pausing")
    await run.resume()
    shop.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Found."
    assert shop.completed == ["x", "y"]


async def test_a_pause_now_aborts_what_the_child_does(opened: Opener) -> None:
    """It is as sharp for the child as for its parent."""
    shop = Workshop()
    helper = aide(shop, Use("read", name="x"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await run.pause(now=True)
    await run.until("paused")
    assert shop.stopped == ["x"]
    shop.gate("x").set()
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert shop.called == ["x", "x"]  # it only reads


async def test_a_pause_becomes_sharper_for_the_child_too(opened: Opener) -> None:
    """First *when you are done*, then *now*: the second counts."""
    shop = Workshop()
    helper = aide(shop, Use("read", name="x"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    child = await child_of(midrun, run)
    await run.pause()
    await child.until("pausing")
    await run.pause(now=True)
    with anyio.fail_after(60):
        await run.until("paused")
    assert shop.stopped == ["x"]


async def test_the_whole_family_is_paused_and_goes_on(opened: Opener) -> None:
    """Three children side by side, one of them with a child of its own."""
    shop = Workshop()
    inner = aide(shop, Use("slow", name="i"), "inner!", name="inner")
    model = ScriptedModel([Use("inner", task="deeper"), told])
    middle = Agent("middle", model=model, tools=[inner.as_tool()])
    a, b = (aide(shop, Use("slow", name=n), f"{n}!", name=n) for n in ("a", "b"))
    turns = [[Use("a", task=""), Use("b", task=""), Use("middle", task="")], told]
    midrun = await opened(delegating(a, b, middle, turns=turns))
    run = await midrun.start("parent", "go")
    for name in ("a", "b", "i"):
        await shop.start(name).wait()
    await run.pause()
    family = [await midrun.get(row.run_id) for row in (await midrun.runs()).items]
    assert len(family) == 5
    for member in family:
        await member.until("pausing")
    for name in ("a", "b", "i"):
        assert (await run.view()).phase == "pausing"
        shop.gate(name).set()
    await run.until("paused")
    page = await midrun.runs()
    assert {row.phase for row in page.items} == {"paused"}
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "a: a!; b: b!; middle: inner: inner!"
    assert sorted(shop.completed) == ["a", "b", "i"]


# ── redirecting ───────────────────────────────────────────────────────────────────────────


async def test_a_redirect_now_ends_the_child_and_the_parent_goes_on(opened: Opener) -> None:
    """The child is cancelled with what it had in flight undone, and never taken up again."""
    shop = Workshop()
    helper = aide(shop, Use("slow_draft", name="x"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), "New."]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await run.redirect("New", when="now")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "New."
    assert shop.undone == ["x"]
    assert (await (await child_of(midrun, run)).view()).phase == "cancelled"


async def test_a_redirect_at_the_next_step_lets_the_child_finish(opened: Opener) -> None:
    """It is a started call like any other."""
    shop = Workshop()
    helper = aide(shop, Use("slow", name="x"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await run.redirect("New")
    shop.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Found."


async def test_a_redirect_of_the_child_alone_changes_only_its_course(opened: Opener) -> None:
    """A person may steer the child under its own name."""
    shop = Workshop()
    helper = aide(shop, Use("slow", name="x"), lambda messages: messages[-1].text)
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await (await child_of(midrun, run)).redirect("Look elsewhere")
    shop.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Look elsewhere"


# ── halting ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", ["all", "run", "label:night"])
async def test_a_halt_of_the_parent_stops_the_child_and_a_lift_lets_both_go_on(
    opened: Opener, scope: str
) -> None:
    """Whatever latch it is: nothing of the family starts while it holds."""
    shop = Workshop()
    helper = aide(shop, Use("read", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go", labels=["night"])
    await shop.start("x").wait()
    where = f"run:{run.id}" if scope == "run" else scope
    await midrun.halt("stop", scope=where, actor=OPERATOR)
    await run.until("halted")
    child = await child_of(midrun, run)
    await child.until("halted", "paused")
    assert shop.stopped == ["x"]
    shop.gate("x").set()
    await midrun.lift(scope=where, actor=OPERATOR)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Found."
    assert shop.completed == ["x", "y"]


async def test_a_halted_family_stays_halted_however_often_somebody_looks(
    opened: Opener,
) -> None:
    """Also the child, which no latch covers by name: the engine does not take it for forgotten.

    The decoy is halted and forgotten, and older: where it is lifted, the child was looked at.
    """
    shop = Workshop()
    helper = aide(shop, Use("read", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    await midrun.halt("stop", scope="label:decoy", actor=OPERATOR)
    decoy = await midrun.start("aide", "decoy", labels=["decoy"])
    await decoy.until("halted")
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await midrun.halt("stop", scope=f"run:{run.id}", actor=OPERATOR)
    await run.until("halted")
    child = await child_of(midrun, run)
    await recorded(child, RunHalted)
    await midrun.store.remove_halt("label:decoy")  # as by somebody who died on the way
    await recorded(decoy, RunLifted)
    assert (await child.view()).phase == "halted"
    assert not await entries(child, RunLifted)
    await midrun.lift(scope=f"run:{run.id}", actor=OPERATOR)
    shop.gate("x").set()
    assert isinstance(await run.result(), Completed)


async def test_a_halt_of_the_childs_agent_holds_the_child_and_its_parent_waits(
    opened: Opener,
) -> None:
    """The parent is not covered: it keeps waiting for its child, and goes on after the lift."""
    shop = Workshop()
    helper = aide(shop, Use("read", name="x"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await midrun.halt("stop", scope="agent:aide", actor=OPERATOR)
    child = await child_of(midrun, run)
    await child.until("halted")
    await run.until("waiting")
    shop.gate("x").set()
    await midrun.lift(scope="agent:aide", actor=OPERATOR)
    await run.until("completed")


@pytest.mark.parametrize("control", ["pause", "cancel", "halt"])
async def test_a_parent_can_be_stopped_while_its_child_is_halted(
    opened: Opener, control: str
) -> None:
    """A latch on the child does not take the parent's controls away."""
    shop = Workshop()
    helper = aide(shop, Use("read", name="x"), "Found.")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Find"), told]))
    run = await midrun.start("parent", "go")
    await shop.start("x").wait()
    await midrun.halt("stop", scope="agent:aide", actor=OPERATOR)
    child = await child_of(midrun, run)
    await child.until("halted")
    with anyio.fail_after(60):
        if control == "pause":
            await run.pause()
            await run.until("paused")
        elif control == "halt":
            await midrun.halt("stop", scope="agent:parent", actor=OPERATOR)
            await run.until("halted", "waiting")  # it may have come to rest before
            while (await run.view()).in_flight:
                await anyio.lowlevel.checkpoint()
        else:
            await run.cancel()  # what is halted undoes nothing: the parent waits for it
            await recorded(child, RunHalted)
            await midrun.lift(scope="agent:aide", actor=OPERATOR)
            await run.until("cancelled")
    shop.gate("x").set()
