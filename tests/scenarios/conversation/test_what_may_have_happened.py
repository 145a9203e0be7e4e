"""Calls that ended badly: what may have happened is undone, what raised did not happen."""

from datetime import timedelta

import pytest

from midrun import Agent, Call, OutcomeUnknown, tool
from midrun.models import ScriptedModel, Use
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

SOON = timedelta(milliseconds=20)


def agent_of(stage: ControllableTools, how: str) -> Agent:
    """Return an agent that makes one call, which ends in this way, and then waits."""

    async def ends_badly(call: Call, name: str) -> str:
        """Act, and end badly."""
        stage._record_call(call, name)
        stage.completed.append(name)
        if how == "raises":
            raise ValueError("no luck")
        if how == "cannot say":
            raise OutcomeUnknown("the answer was lost")
        await stage.gate("never").wait()
        return "never"

    made = tool(
        ends_badly,
        name="act",
        idempotent=True,
        undo=stage._undo,
        release=stage._release,
        timeout=SOON if how == "times out" else None,
    )
    turns = [Use("act", name="x"), Use("slow", name="y")]
    return Agent("actor", model=ScriptedModel(turns), tools=[made, *stage.tools()])


@pytest.mark.parametrize("how", ["times out", "cannot say"])
async def test_what_may_have_happened_is_undone_also_where_it_could_be_made_again(
    opened: Opener, how: str
) -> None:
    """Whether it is safe to repeat says nothing about whether something is left of it."""
    stage = ControllableTools()
    run = await (await opened(agent_of(stage, how))).start("actor", "go")
    await stage.start("y").wait()
    assert stage.called == ["x", "y"]  # not made again by itself
    await run.cancel()
    await run.until("cancelled")
    assert (stage.undone, stage.released) == (["x"], ["x"])


async def test_a_call_that_raises_counts_as_one_that_did_nothing(opened: Opener) -> None:
    """As everywhere in Python: who raises has tidied up. Who cannot know says so instead.

    Undoing what never happened would fail for most hooks, and fill reports with false residue.
    """
    stage = ControllableTools()
    run = await (await opened(agent_of(stage, "raises"))).start("actor", "go")
    await stage.start("y").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (stage.undone, stage.released) == ([], [])
    assert [deed.tool for deed in (await run.report()).failed] == ["act"]


async def test_a_cancel_under_a_latch_waits_and_the_second_learns_of_the_first(
    opened: Opener,
) -> None:
    """It is taken down at once, and carried out when the latch is lifted."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow_draft", name="x")))
    run = await midrun.start("actor", "go")
    await stage.start("x").wait()
    await midrun.halt("drill", scope=f"run:{run.id}", actor="operator:olga")
    await run.until("halted")
    first = await run.cancel(actor="ada")
    second = await run.cancel(actor="bob")
    assert (first.applied, first.phase, first.by) == (False, "halted", "ada")
    assert (second.seq, second.by, second.applied) == (first.seq, "ada", False)
    assert second.already == "already_cancelling"
    await midrun.lift(scope=f"run:{run.id}", actor="operator:olga")
    await run.until("cancelled")
    third = await run.cancel(actor="bob")
    assert (third.already, third.applied) == ("already_cancelled", True)
    assert stage.undone == ["x"]
