"""Cancel after calls that raised or may have taken effect; cancel of a halted run."""

from datetime import timedelta

import pytest

from midrun import Agent, Call, OutcomeUnknown, tool
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.runs.conftest import OpenMidrun

SHORT_TIMEOUT = timedelta(milliseconds=20)


def make_agent(toolkit: ControllableTools, call_end: str) -> Agent:
    """Return an agent whose first call ends as `call_end` says; its second call waits."""

    async def end_badly(call: Call, name: str) -> str:
        """Act, then raise or wait."""
        toolkit._record_call(call, name)
        toolkit.completed.append(name)
        if call_end == "raises":
            raise ValueError("no luck")
        if call_end == "cannot say":
            raise OutcomeUnknown("the answer was lost")
        await toolkit.gate("never").wait()
        return "never"

    act = tool(
        end_badly,
        name="act",
        idempotent=True,
        undo=toolkit._undo,
        release=toolkit._release,
        timeout=SHORT_TIMEOUT if call_end == "times out" else None,
    )
    turns = [Use("act", name="x"), Use("slow", name="y")]
    return Agent("actor", model=ScriptedModel(turns), tools=[act, *toolkit.tools()])


@pytest.mark.parametrize("call_end", ["times out", "cannot say"])
async def test_a_cancel_undoes_an_idempotent_call_that_may_have_taken_effect(
    opened: OpenMidrun, call_end: str
) -> None:
    """An effect may be left, also if the call is safe to repeat."""
    toolkit = ControllableTools()
    run = await (await opened(make_agent(toolkit, call_end))).start("actor", "go")
    await toolkit.start("y").wait()
    assert toolkit.called == ["x", "y"]  # an idempotent call is not repeated either
    await run.cancel()
    await run.until("cancelled")
    assert (toolkit.undone, toolkit.released) == (["x"], ["x"])


async def test_a_cancel_does_not_undo_a_call_that_raised(opened: OpenMidrun) -> None:
    """A tool that raises has cleaned up; otherwise it raises `OutcomeUnknown`.

    An undo without an effect would fail for most hooks, and fill reports with false residue.
    """
    toolkit = ControllableTools()
    run = await (await opened(make_agent(toolkit, "raises"))).start("actor", "go")
    await toolkit.start("y").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (toolkit.undone, toolkit.released) == ([], [])
    assert [call.tool for call in (await run.report()).failed] == ["act"]


async def test_a_cancel_of_a_halted_run_takes_effect_after_the_lift(opened: OpenMidrun) -> None:
    """A second cancel returns the receipt of the first."""
    toolkit = ControllableTools()
    midrun = await opened(toolkit.agent(Use("slow_draft", name="x")))
    run = await midrun.start("actor", "go")
    await toolkit.start("x").wait()
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
    assert toolkit.undone == ["x"]
