"""`agent.stream`: follow and control a run in memory; nothing of it outlives the context."""

import threading

import anyio
import pytest

from midrun import Agent, Completed, Misconfigured, Paused, tool
from midrun.events import TextDelta
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools


async def test_a_stream_has_the_events_and_the_outcome() -> None:
    agent = Agent("a", model=ScriptedModel(["One two three."]))
    async with agent.stream("go") as run:
        texts = [e.text async for e in run.events() if isinstance(e, TextDelta)]
        outcome = await run.result()
    assert "".join(texts) == "One two three."
    assert isinstance(outcome, Completed)


async def test_a_run_that_still_works_is_cancelled_and_undone_when_it_is_left() -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("slow_draft", name="x"), "Done.")
    async with agent.stream("go"):
        await tools.start("x").wait()
    assert tools.undone == ["x"]


async def test_the_cancellation_of_the_caller_waits_for_the_undo() -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("slow_draft", name="x"), "Done.")
    with anyio.CancelScope() as scope:
        async with agent.stream("go"):
            await tools.start("x").wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert tools.undone == ["x"]


async def test_errors_are_raised_as_they_are() -> None:
    """Neither an error of the caller nor one of the start is wrapped in a group."""
    agent = Agent("a", model=ScriptedModel(["Done."]))
    with pytest.raises(KeyError):
        async with agent.stream("go"):
            raise KeyError
    with pytest.raises(Misconfigured):
        async with agent.stream(""):
            pass


async def test_a_paused_run_continues_from_its_checkpoint() -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="x"), "Done.")
    async with agent.stream("go") as run:
        await tools.start("x").wait()
        await run.pause()
        tools.gate("x").set()
        paused = await run.result()
    assert isinstance(paused, Paused)
    outcome = await agent.resume(paused.checkpoint)
    assert isinstance(outcome, Completed)
    assert tools.completed == ["x"]


async def test_a_function_of_a_notebook_cell_is_said_to_be_unstoppable() -> None:
    """No other process can import it, so it blocks a thread."""
    started, gate = threading.Event(), threading.Event()

    def cell_function() -> str:
        started.set()
        gate.wait()
        return "done"

    @tool
    async def stoppable() -> str:
        return ""

    model = ScriptedModel([Use("cell_function"), "Done."])
    agent = Agent("a", model=model, tools=[cell_function, stoppable])
    assert agent.unstoppable_tools == ("cell_function",)
    assert "cannot stop cell_function" in repr(agent)
    async with agent.stream("go") as run:
        await anyio.to_thread.run_sync(started.wait)
        shown = run._repr_html_()
        gate.set()
        await run.result()
        at_rest = run._repr_html_()
    assert run.id in shown
    assert "cell_function cannot be stopped" in shown
    assert "Running" in shown
    assert run.id in at_rest


@pytest.mark.parametrize("text", ["<script>", "&"])
async def test_the_status_of_a_notebook_has_no_markup_of_the_run(text: str) -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name=text), "Done.")
    async with agent.stream(text) as run:
        await tools.start(text).wait()
        assert "<script>" not in run._repr_html_()
