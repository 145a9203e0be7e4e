"""A child that rests for a reason of its own shows on its parent, and what would help."""

import pytest

from midrun import Agent, ControlRefused, Midrun, Run
from midrun.agents.outcome import AskView
from midrun.core.entries import AskClosed, RunWaiting
from midrun.models import Use
from midrun.stops import MaxSteps
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating, told
from tests.scenarios.promises.seen import entries
from tests.unit.runs.conftest import Opener

OPERATOR = "operator:olga"


async def resting(
    opened: Opener, shop: Workshop, *turns: object, **options: object
) -> tuple[Midrun, Run, Run]:
    """Return a parent and its child, which plays `turns`."""
    helper = shop.agent(*turns, name="aide", **options)
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Do"), told]))
    run = await midrun.start("parent", "go")
    return midrun, run, await child_of(midrun, run)


async def asked(midrun: Midrun, run: Run) -> AskView:
    """Return what the parent asks, which its row in the list says, too."""
    view = await run.until("waiting")
    row = await midrun.store.get_row(run.id)
    assert row.head.attention == "ask"
    (ask,) = view.asks
    return ask


def capped(shop: Workshop) -> tuple[object, ...]:
    """Return the turns of a child that reaches its cap after one step."""
    del shop
    return (Use("quick", name="x"), Use("quick", name="y"), "Found.")


async def test_a_child_at_its_cap_is_asked_about_on_its_parent(opened: Opener) -> None:
    """By name, with the cap, and with what would let it go on; nothing runs meanwhile."""
    shop = Workshop()
    midrun, run, child = await resting(opened, shop, *capped(shop), stop=MaxSteps(1))
    ask = await asked(midrun, run)
    assert f"Child {child.id} is paused at its step cap" in ask.question
    assert ask.kind == "child"
    assert isinstance(ask.data, dict)
    assert ask.data["run"] == child.id
    assert (await run.view()).in_flight == ()


async def test_raising_the_cap_on_the_child_lets_its_parent_go_on(opened: Opener) -> None:
    """The ask is closed as settled elsewhere."""
    shop = Workshop()
    midrun, run, child = await resting(opened, shop, *capped(shop), stop=MaxSteps(1))
    await asked(midrun, run)
    await child.resume(caps={"steps": 5}, actor="ada")
    assert (await run.until("completed")).output == "aide: Found."
    assert [closed.why for closed in await entries(run, AskClosed)] == ["elsewhere"]
    assert shop.completed == ["x", "y"]


async def test_the_answer_on_the_parent_raises_the_cap_of_the_child(opened: Opener) -> None:
    """In the name of whoever answered."""
    shop = Workshop()
    midrun, run, child = await resting(opened, shop, *capped(shop), stop=MaxSteps(1))
    await asked(midrun, run)
    await run.answer({"steps": 5}, actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."
    assert (await child.view()).caps[0].cap == 5
    assert shop.completed == ["x", "y"]


async def test_an_answer_that_does_not_help_is_asked_about_again(opened: Opener) -> None:
    """A cap is not passed by saying yes."""
    shop = Workshop()
    midrun, run, _ = await resting(opened, shop, *capped(shop), stop=MaxSteps(1))
    first = await asked(midrun, run)
    await run.answer("yes", actor=OPERATOR)
    while (second := await asked(midrun, run)).id == first.id:
        continue
    assert shop.completed == ["x"]
    await run.answer({"steps": 2}, ask=second.id, actor=OPERATOR)
    while (third := await asked(midrun, run)).id == second.id:
        continue
    await run.answer({"steps": 3}, ask=third.id, actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."
    assert shop.completed == ["x", "y"]


async def test_only_an_operator_raises_the_cap_of_a_child_by_an_answer(opened: Opener) -> None:
    """As over HTTP: a user who may not raise a cap may not raise that of a child, either."""
    shop = Workshop()
    midrun, run, child = await resting(opened, shop, *capped(shop), stop=MaxSteps(1))
    ask = await asked(midrun, run)
    assert ask.audience == "operator"
    with pytest.raises(ControlRefused, match="only operator may decide") as refused:
        await run.answer({"steps": 1000}, actor="ada")
    assert refused.value.reason == "not_allowed"
    assert (await child.view()).caps[0].cap == 1
    await run.answer({"steps": 5}, actor=OPERATOR)
    await run.until("completed")


async def test_a_user_raises_no_cap_of_a_child_that_rests_for_another_reason(
    opened: Opener,
) -> None:
    """The answer lets a paused child go on; bounds that come with it are refused."""
    shop = Workshop()
    turns = (Use("slow", name="x"), "Found.")
    midrun, run, child = await resting(opened, shop, *turns, stop=MaxSteps(9))
    await shop.start("x").wait()
    await child.pause(actor="ada")
    shop.gate("x").set()
    await asked(midrun, run)
    for bounds in ({"steps": 1000}, {"cost": 1e308}, {"time": -1e308}):
        with pytest.raises(ControlRefused, match="only operator may decide"):
            await run.answer(bounds, actor="ada")
    await run.answer("go on", actor="ada")
    await run.until("completed")
    assert (await child.view()).caps[0].cap == 9


async def test_a_child_that_a_person_paused_makes_its_parent_wait(opened: Opener) -> None:
    """The parent names who did it, and goes on with the child."""
    shop = Workshop()
    midrun, run, child = await resting(opened, shop, Use("slow", name="x"), "Found.")
    await shop.start("x").wait()
    await child.pause(actor="ada")
    shop.gate("x").set()
    ask = await asked(midrun, run)
    assert f"Child {child.id} is paused by ada" in ask.question
    await child.resume(actor="ada")
    assert (await run.until("completed")).output == "aide: Found."


async def test_a_child_under_a_latch_of_its_own_makes_its_parent_wait(opened: Opener) -> None:
    """No answer lifts a latch; lifting it does."""
    shop = Workshop()
    midrun, run, child = await resting(opened, shop, Use("read", name="x"), "Found.")
    await shop.start("x").wait()
    await midrun.halt("stop", scope="agent:aide", actor=OPERATOR)
    ask = await asked(midrun, run)
    assert f"Child {child.id} is halted" in ask.question
    await run.answer("go on")
    shop.gate("x").set()
    await midrun.lift(scope="agent:aide", actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."


@pytest.mark.parametrize("scope", ["all", "label:night"])
async def test_a_latch_on_the_whole_family_asks_nobody_anything(
    opened: Opener, scope: str
) -> None:
    """Both are halted, and go on together."""
    shop = Workshop()
    helper = shop.agent(Use("read", name="x"), "Found.", name="aide")
    midrun = await opened(delegating(helper, turns=[Use("aide", task="Do"), told]))
    run = await midrun.start("parent", "go", labels=["night"])
    await shop.start("x").wait()
    await midrun.halt("stop", scope=scope, actor=OPERATOR)
    await run.until("halted")
    shop.gate("x").set()
    await midrun.lift(scope=scope, actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."
    assert not await entries(run, RunWaiting)


async def test_a_child_that_was_taken_over_makes_its_parent_wait_until_it_is_handed_back(
    opened: Opener,
) -> None:
    """Calls that the person makes by hand in between do not wake the parent."""
    shop = Workshop()
    midrun, run, child = await resting(opened, shop, Use("slow", name="x"), "Found.")
    await shop.start("x").wait()
    await child.take_over(actor="ada")
    shop.gate("x").set()
    ask = await asked(midrun, run)
    assert f"Child {child.id} was taken over by ada" in ask.question
    await child.use_tool("quick", {"name": "by hand"}, actor="ada")
    await child.until("paused")
    assert (await asked(midrun, run)).id == ask.id
    await child.hand_back(actor="ada")
    assert (await run.until("completed")).output == "aide: Found."
    assert shop.completed == ["x", "by hand"]


async def test_a_parent_is_cancelled_although_its_child_rests(opened: Opener) -> None:
    """The ask is closed, the child is ended and undone with it."""
    shop = Workshop()
    turns = (Use("draft", name="x"), "Found.")
    midrun, run, child = await resting(opened, shop, *turns, stop=MaxSteps(1))
    await asked(midrun, run)
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (await child.view()).phase == "cancelled"
    assert shop.undone == ["x"]


async def test_a_grandchild_at_its_cap_is_asked_about_at_the_top(opened: Opener) -> None:
    """Each asks its own parent; the answer goes all the way down."""
    shop = Workshop()
    inner = shop.agent(Use("quick", name="x"), "Deep.", name="inner", stop=MaxSteps(1))
    middle = delegating(inner, turns=[Use("inner", task="deeper"), told])
    top = Agent(
        "top",
        model=delegating(turns=[Use("parent", task="go"), told]).model,
        tools=[middle.as_tool()],
    )
    midrun = await opened(top)
    run = await midrun.start("top", "go")
    ask = await asked(midrun, run)
    assert "is paused at its step cap" in ask.question
    await run.answer({"steps": 5}, actor=OPERATOR)
    assert (await run.until("completed")).output == "parent: inner: Deep."
