"""A child run that rests opens an ask on its parent: at its cap, paused, halted, taken over."""

from pathlib import Path

import pytest

from midrun import (
    Agent,
    ControlRefused,
    Midrun,
    Run,
)
from midrun.core.driver_inputs import AskPerson
from midrun.core.entries import (
    AskClosed,
    AskOpened,
    RunWaiting,
)
from midrun.driver import child_runs
from midrun.driver.child_runs import update_parent
from midrun.models import Use
from midrun.stops import MaxSteps, MaxToolCalls
from midrun.workers import local
from tests.scenarios.conversation.toolkit import (
    OPERATOR,
    ApprovalToolkit,
    make_parent,
    wait_for_ask,
)
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, wait_for_child
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

CAPPED_TURNS = (Use("quick", name="x"), Use("quick", name="y"), "Found.")
"""The turns of a child that reaches its cap after one step."""


async def start_parent_and_child(
    opened: OpenMidrun, toolkit: ApprovalToolkit, *turns: object, **options: object
) -> tuple[Midrun, Run, Run]:
    """Start a parent whose child plays `turns`, and return both runs."""
    child_agent = toolkit.agent(*turns, name="aide", **options)
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    return midrun, run, await wait_for_child(midrun, run)


async def test_a_child_at_its_cap_opens_an_ask_on_its_parent(opened: OpenMidrun) -> None:
    """The ask names the child and its cap; no call is in flight meanwhile."""
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, *CAPPED_TURNS, stop=MaxSteps(1)
    )
    ask = await wait_for_ask(midrun, run)
    assert f"Child {child.id} is paused at its turn cap" in ask.question
    assert ask.kind == "child"
    assert isinstance(ask.data, dict)
    assert ask.data["run"] == child.id
    assert (await run.view()).in_flight == ()


async def test_a_cap_that_is_raised_on_the_child_closes_the_ask_on_the_parent(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, *CAPPED_TURNS, stop=MaxSteps(1)
    )
    await wait_for_ask(midrun, run)
    await child.resume(caps={"steps": 5}, actor="ada")
    assert (await run.until("completed")).output == "aide: Found."
    assert [closed.why for closed in await read_entries(run, AskClosed)] == ["elsewhere"]
    assert toolkit.completed == ["x", "y"]


async def test_the_answer_on_the_parent_raises_the_cap_of_the_child(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, *CAPPED_TURNS, stop=MaxSteps(1)
    )
    await wait_for_ask(midrun, run)
    await run.answer({"steps": 5}, actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."
    assert (await child.view()).caps[0].cap == 5
    assert toolkit.completed == ["x", "y"]


async def test_an_answer_that_does_not_raise_the_cap_enough_opens_another_ask(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    midrun, run, _ = await start_parent_and_child(
        opened, toolkit, *CAPPED_TURNS, stop=MaxSteps(1)
    )
    first = await wait_for_ask(midrun, run)
    await run.answer("yes", actor=OPERATOR)
    while (second := await wait_for_ask(midrun, run)).id == first.id:
        continue
    assert toolkit.completed == ["x"]
    await run.answer({"steps": 2}, ask=second.id, actor=OPERATOR)
    while (third := await wait_for_ask(midrun, run)).id == second.id:
        continue
    await run.answer({"steps": 3}, ask=third.id, actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."
    assert toolkit.completed == ["x", "y"]


async def test_only_an_operator_raises_the_cap_of_a_child_by_an_answer(
    opened: OpenMidrun,
) -> None:
    """The HTTP API has the same rule for caps."""
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, *CAPPED_TURNS, stop=MaxSteps(1)
    )
    ask = await wait_for_ask(midrun, run)
    assert ask.audience == "operator"
    with pytest.raises(ControlRefused, match="only operator may decide") as refusal:
        await run.answer({"steps": 1000}, actor="ada")
    assert refusal.value.reason == "not_allowed"
    assert (await child.view()).caps[0].cap == 1
    await run.answer({"steps": 5}, actor=OPERATOR)
    await run.until("completed")


async def test_a_child_at_its_cap_asks_although_its_parent_was_paused_meanwhile(
    opened: OpenMidrun,
) -> None:
    """The pause of the parent stops the calls in flight, but a resume raises no cap."""
    toolkit = ApprovalToolkit()
    turns = ([Use("slow", name="x"), Use("quick", name="y")], "Found.")
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, *turns, stop=MaxToolCalls(1)
    )
    await child.until("pausing")
    await run.pause(now=True)
    await run.until("paused")
    await run.resume()
    ask = await wait_for_ask(midrun, run)
    assert f"Child {child.id} is paused at its" in ask.question


async def test_a_user_cannot_raise_the_cap_of_a_paused_child_by_an_answer(
    opened: OpenMidrun,
) -> None:
    """An answer lets a paused child continue; an answer with new caps is refused."""
    toolkit = ApprovalToolkit()
    turns = (Use("slow", name="x"), "Found.")
    midrun, run, child = await start_parent_and_child(opened, toolkit, *turns, stop=MaxSteps(9))
    await toolkit.start("x").wait()
    await child.pause(actor="ada")
    toolkit.gate("x").set()
    await wait_for_ask(midrun, run)
    for caps in ({"steps": 1000}, {"cost": 1e308}, {"time": -1e308}):
        with pytest.raises(ControlRefused, match="only operator may decide"):
            await run.answer(caps, actor="ada")
    await run.answer("go on", actor="ada")
    await run.until("completed")
    assert (await child.view()).caps[0].cap == 9


async def test_a_parent_waits_for_a_child_that_a_person_paused(opened: OpenMidrun) -> None:
    """The ask names the person."""
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, Use("slow", name="x"), "Found."
    )
    await toolkit.start("x").wait()
    await child.pause(actor="ada")
    toolkit.gate("x").set()
    ask = await wait_for_ask(midrun, run)
    assert f"Child {child.id} is paused by ada" in ask.question
    await child.resume(actor="ada")
    assert (await run.until("completed")).output == "aide: Found."


async def test_a_parent_waits_for_a_halted_child(opened: OpenMidrun) -> None:
    """An answer does not lift the halt."""
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, Use("read", name="x"), "Found."
    )
    await toolkit.start("x").wait()
    await midrun.halt("stop", scope="agent:aide", actor=OPERATOR)
    ask = await wait_for_ask(midrun, run)
    assert f"Child {child.id} is halted" in ask.question
    await run.answer("go on")
    toolkit.gate("x").set()
    await midrun.lift(scope="agent:aide", actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."


@pytest.mark.parametrize("scope", ["all", "label:night"])
async def test_a_halt_of_parent_and_child_opens_no_ask(opened: OpenMidrun, scope: str) -> None:
    """Both are halted, and continue together."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("read", name="x"), "Found.", name="aide")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])
    )
    run = await midrun.start("parent", "go", labels=["night"])
    await toolkit.start("x").wait()
    await midrun.halt("stop", scope=scope, actor=OPERATOR)
    await run.until("halted")
    toolkit.gate("x").set()
    await midrun.lift(scope=scope, actor=OPERATOR)
    assert (await run.until("completed")).output == "aide: Found."
    assert not await read_entries(run, RunWaiting)


async def test_a_parent_waits_until_its_child_is_handed_back(opened: OpenMidrun) -> None:
    """Calls that the person makes by hand do not wake the parent."""
    toolkit = ApprovalToolkit()
    midrun, run, child = await start_parent_and_child(
        opened, toolkit, Use("slow", name="x"), "Found."
    )
    await toolkit.start("x").wait()
    await child.take_over(actor="ada")
    toolkit.gate("x").set()
    ask = await wait_for_ask(midrun, run)
    assert f"Child {child.id} was taken over by ada" in ask.question
    await child.use_tool("quick", {"name": "by hand"}, actor="ada")
    await child.until("paused")
    assert (await wait_for_ask(midrun, run)).id == ask.id
    await child.hand_back(actor="ada")
    assert (await run.until("completed")).output == "aide: Found."
    assert toolkit.completed == ["x", "by hand"]


async def test_a_parent_goes_on_if_its_child_ends_before_the_ask_is_opened(
    opened: OpenMidrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker of the parent has seen an older state of the child when it opens the ask."""
    toolkit = ApprovalToolkit()
    wait = child_runs._wait_for_child

    async def wait_and_hand_back(*args: object) -> object:
        ending = await wait(*args)  # type: ignore[arg-type]  # passed through
        if isinstance(ending, AskPerson):
            await child.hand_back(actor="ada")
            await child.until("completed")
        return ending

    monkeypatch.setattr(child_runs, wait.__name__, wait_and_hand_back)
    _, run, child = await start_parent_and_child(
        opened, toolkit, Use("slow", name="x"), "Found."
    )
    await toolkit.start("x").wait()
    await child.take_over(actor="ada")
    toolkit.gate("x").set()
    assert (await run.until("completed")).output == "aide: Found."
    assert await read_entries(run, AskOpened)


async def test_a_parent_goes_on_if_the_worker_of_its_child_died_before_it_told_it(
    opened: OpenMidrun, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker finds a parent that waits although its child has ended."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("pay", name="x"), repeat_results, name="aide")
    parent = make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])

    async def tell_nothing(*_: object) -> bool:
        return True

    with monkeypatch.context() as patch:
        patch.setattr(local, update_parent.__name__, tell_nothing)
        async with Midrun(get_store_url(path), agents=[parent]) as first:
            run = await first.start("parent", "go")
            await run.until("waiting")
            child = await wait_for_child(first, run)
            await child.approve(actor="ada")
            await child.until("completed")
    second = await opened(parent)
    view = await (await second.get(run.id)).until("completed")
    assert view.output == "aide: pay: x done"


async def test_a_parent_whose_child_rests_can_be_cancelled(opened: OpenMidrun) -> None:
    """The child is cancelled and undone with it."""
    toolkit = ApprovalToolkit()
    turns = (Use("draft", name="x"), "Found.")
    midrun, run, child = await start_parent_and_child(opened, toolkit, *turns, stop=MaxSteps(1))
    await wait_for_ask(midrun, run)
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (await child.view()).phase == "cancelled"
    assert toolkit.undone == ["x"]


async def test_a_grandchild_at_its_cap_opens_an_ask_on_the_top_run(opened: OpenMidrun) -> None:
    """Each run asks its own parent; the answer is passed down."""
    toolkit = ApprovalToolkit()
    inner = toolkit.agent(Use("quick", name="x"), "Deep.", name="inner", stop=MaxSteps(1))
    middle = make_parent(inner, turns=[Use("inner", task="deeper"), repeat_results])
    top = Agent(
        "top",
        model=make_parent(turns=[Use("parent", task="go"), repeat_results]).model,
        tools=[middle.as_tool()],
    )
    midrun = await opened(top)
    run = await midrun.start("top", "go")
    ask = await wait_for_ask(midrun, run)
    assert "is paused at its turn cap" in ask.question
    await run.answer({"steps": 5}, actor=OPERATOR)
    assert (await run.until("completed")).output == "parent: inner: Deep."
