"""Children that had ended when their parent was cancelled: what they did is undone as well."""

import pytest

from midrun import Agent, Cancelled
from midrun.core.entries import CancelRequested, RunCompleted, UndoStarted
from midrun.models import ScriptedModel, Use
from tests.scenarios.conversation.workshop import Workshop, child_of, delegating, told
from tests.scenarios.promises.seen import entries, kinds
from tests.unit.runs.conftest import Opener


def aide(shop: Workshop, *turns: object, name: str = "aide") -> Agent:
    """Return an agent to be somebody's child."""
    return shop.agent(*turns, name=name)


async def test_a_child_that_had_completed_is_undone_with_its_parent(opened: Opener) -> None:
    """What came last goes first, over both of them; the journals say who took what back."""
    shop = Workshop()
    helper = aide(shop, Use("draft", name="i1"), Use("draft", name="i2"), "Done.")
    turns = [Use("draft", name="p1"), Use("aide", task="Do"), Use("slow_draft", name="p2")]
    midrun = await opened(delegating(helper, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("p2").wait()
    child = await child_of(midrun, run, "c4")
    assert (await child.view()).phase == "completed"
    await run.cancel(undo="all")
    outcome = await run.result()
    assert isinstance(outcome, Cancelled)
    assert shop.undone == ["p2", "i2", "i1", "p1"]
    assert [deed.tool for deed in outcome.report.undone] == ["slow_draft", "aide", "draft"]
    assert outcome.report.clean
    assert (await child.view()).phase == "cancelled"
    assert (await child.view()).output == "Done."
    (taken_back,) = await entries(child, CancelRequested)
    assert (taken_back.by, taken_back.undo) == (f"run:{run.id}", "all")


async def test_a_cancel_of_what_is_in_flight_keeps_what_a_completed_child_did(
    opened: Opener,
) -> None:
    """It is *done and kept*, and the report says by which run."""
    shop = Workshop()
    helper = aide(shop, Use("draft", name="inner"), "Done.")
    turns = [Use("aide", task="Do"), Use("slow", name="y")]
    midrun = await opened(delegating(helper, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("y").wait()
    await run.cancel()
    await run.until("cancelled")
    child = await child_of(midrun, run)
    assert shop.undone == []
    assert (await child.view()).phase == "completed"
    (kept,) = (await run.report()).done
    assert (kept.tool, kept.run) == ("aide", child.id)


async def test_three_generations_that_had_completed_are_undone_in_reverse_order(
    opened: Opener,
) -> None:
    """Each takes its own children back before what it did before them."""
    shop = Workshop()
    inner = aide(shop, Use("draft", name="i1"), "Inner.", name="inner")
    script = [Use("draft", name="m1"), Use("inner", task="deeper"), Use("draft", name="m2")]
    middle = Agent(
        "middle",
        model=ScriptedModel([*script, "Middle."]),
        tools=[inner.as_tool(), *shop.tools()],
    )
    turns = [Use("middle", task="deep"), Use("slow", name="wait")]
    midrun = await opened(delegating(middle, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("wait").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert shop.undone == ["m2", "i1", "m1"]
    assert {row.phase for row in (await midrun.runs()).items} == {"cancelled"}


async def test_a_child_without_anything_to_undo_stays_completed(opened: Opener) -> None:
    """Nothing is written into a journal for nothing."""
    shop = Workshop()
    helper = aide(shop, Use("quick", name="x"), "Done.")
    turns = [Use("aide", task="Do"), Use("slow", name="y")]
    midrun = await opened(delegating(helper, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("y").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    child = await child_of(midrun, run)
    assert (await kinds(child))[-1] == "RunCompleted"


@pytest.mark.parametrize("how", ["cancelled", "redirected"])
async def test_a_child_that_had_been_ended_gives_up_what_it_had_kept(
    opened: Opener, how: str
) -> None:
    """Its own end kept finished work; undoing all means all."""
    shop = Workshop()
    helper = aide(shop, Use("draft", name="kept"), Use("slow_draft", name="cut"), "Never.")
    turns = [Use("aide", task="Do"), Use("slow", name="y"), Use("slow", name="z")]
    midrun = await opened(delegating(helper, turns=turns, stage=shop))
    run = await midrun.start("parent", "go")
    await shop.start("cut").wait()
    child = await child_of(midrun, run)
    if how == "cancelled":
        await child.cancel()
    else:
        await run.redirect("Leave that", when="now")
    await child.until("cancelled")
    await shop.start("y").wait()
    assert shop.undone == ["cut"]
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert shop.undone == ["cut", "kept"]
    assert len(await entries(child, UndoStarted)) == 2


async def test_a_parent_whose_process_ended_takes_its_children_back_elsewhere(
    opened: Opener,
) -> None:
    """The cancel is a fact in the journal: whoever drives next carries it out."""
    shop = Workshop()
    helper = aide(shop, Use("draft", name="inner"), "Done.")
    turns = [Use("aide", task="Do"), Use("ask_human", question="Go on?"), told]
    parent = delegating(helper, turns=turns, stage=shop)
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await child_of(midrun, run)
    assert len(await entries(child, RunCompleted)) == 1
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert shop.undone == ["inner"]
