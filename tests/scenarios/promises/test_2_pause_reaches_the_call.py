"""Promise 2: a pause reaches the call.

The stream of a model is closed and its text is kept. A tool call finishes, or is stopped if it
has saved its progress; with `now=True` it is stopped in any case. It is not made again.
"""

from pathlib import Path

import pytest

from midrun import Agent, Call, tool
from midrun.core.entries import CallAborted, CallDone, CallStarted, ProgressSaved
from midrun.models import Use
from midrun.stops import MaxTokens
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.agent_framework import AgentFramework, StreamingProvider
from tests.scenarios.promises.tools import crawl_pages, hold
from tests.support.gated_model import RESERVATION, GatedModel, GatedReply
from tests.support.run_journal import read_entries, read_kinds, read_turns
from tests.unit.driver.subprocess.process_calls import GatedCall, ProcessEnd
from tests.unit.runs.conftest import OpenMidrun


async def test_a_pause_closes_the_model_stream_and_keeps_its_text(opened: OpenMidrun) -> None:
    """The test never opens the gate in the reply, so the model cannot finish."""
    model = GatedModel(GatedReply("The first half", " and the second.", gate="half"), "Done.")
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.pause()
    await run.until("paused")
    assert model.closed_gates == ["half"]
    (aborted,) = await read_entries(run, CallAborted)
    assert aborted.text == "The first half"


async def test_the_model_gets_its_interrupted_text_on_resume(opened: OpenMidrun) -> None:
    """It can continue the reply instead of starting again."""
    model = GatedModel(GatedReply("The first half", " and the second.", gate="half"), "Done.")
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.pause()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    task, reply = model.transcripts[1]
    assert (task.role, task.text) == ("user", "go")
    assert (reply.role, reply.text, reply.interrupted) == ("assistant", "The first half", True)


async def test_the_reservation_of_a_closed_stream_counts_as_spent(opened: OpenMidrun) -> None:
    """The provider may bill a closed stream, so the reserved tokens are not given back."""
    model = GatedModel(GatedReply("The first half", gate="half"), "Done.")
    midrun = await opened(Agent("actor", model=model, stop=MaxTokens(10_000)))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    assert (await run.view()).usage.reserved_tokens == RESERVATION.tokens
    await run.pause()
    usage = (await run.until("paused")).usage
    assert (usage.tokens, usage.reserved_tokens) == (RESERVATION.tokens, 0)
    await run.resume()
    usage = (await run.until("completed")).usage
    assert usage.tokens == RESERVATION.tokens + 7


async def test_the_calls_of_an_unfinished_message_are_never_made(opened: OpenMidrun) -> None:
    """The arguments of such a call may be incomplete."""
    tools = ControllableTools()
    model = GatedModel(
        GatedReply("Let me act. ", "", Use("quick", name="half"), gate="half"),
        GatedReply("", "", Use("quick", name="whole")),
        "Done.",
    )
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.pause()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert tools.called == ["whole"]
    assert all(
        made.args == {"name": "whole"} for turn in await read_turns(run) for made in turn.uses
    )


async def test_a_running_tool_finishes_and_the_model_gets_its_result_on_resume(
    opened: OpenMidrun,
) -> None:
    """The result is journaled before `RunPaused`."""
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause()
    tools.gate("a").set()
    await run.until("paused")
    assert (tools.completed, tools.stopped) == (["a"], [])
    assert (await read_kinds(run))[-2:] == ["CallDone", "RunPaused"]
    await run.resume()
    await run.until("completed")
    (made,) = model.transcripts[1][-1].uses
    assert made.result == "a done"
    assert tools.called == ["a"]


class Crawler:
    """A tool that saves its progress after each page, and then waits at a gate."""

    def __init__(self) -> None:
        self.tools = ControllableTools()
        self.pages: list[int] = []
        self.received_progress: list[object] = []
        self.keys: list[str] = []

    def agent(self) -> Agent:
        """Return an agent that calls the tool once."""

        @tool
        async def crawl(call: Call) -> str:
            """Fetch three pages."""
            self.received_progress.append(call.progress)
            self.keys.append(call.key)
            done = call.progress if isinstance(call.progress, int) else 0
            for page in range(done + 1, 4):
                self.pages.append(page)
                await call.save(page)
                self.tools.start(f"page {page}").set()
                await self.tools.gate(f"page {page}").wait()
            return "3 pages"

        model = GatedModel(GatedReply("", "", Use("crawl")), "Done.")
        return Agent("actor", model=model, tools=[crawl])


async def test_a_tool_with_saved_progress_is_stopped_and_continues_from_there(
    opened: OpenMidrun,
) -> None:
    """The run is paused twice: the second attempt has the progress of the first."""
    crawler = Crawler()
    midrun = await opened(crawler.agent())
    run = await midrun.start("actor", "go")
    for page in (1, 2):
        await crawler.tools.start(f"page {page}").wait()
        await run.pause()
        await run.until("paused")
        await run.resume()
    await crawler.tools.start("page 3").wait()
    crawler.tools.gate("page 3").set()
    await run.until("completed")
    assert crawler.pages == [1, 2, 3]
    assert crawler.received_progress == [None, 1, 2]
    assert len(set(crawler.keys)) == 1
    starts = [s for s in await read_entries(run, CallStarted) if s.call_kind == "tool"]
    assert [start.attempt for start in starts] == [1, 2, 3]
    assert [saved.progress for saved in await read_entries(run, ProgressSaved)] == [1, 2, 3]
    assert [d.result for d in await read_entries(run, CallDone) if d.reply is None] == [
        "3 pages"
    ]


async def test_progress_saved_after_the_pause_request_also_stops_the_tool(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()

    @tool
    async def work(call: Call) -> str:
        """Save when the test opens the gate, then wait without end."""
        tools.start("work").set()
        if call.progress is not None:
            return "from the middle"
        await tools.gate("work").wait()
        await call.save("middle")
        await tools.gate("never").wait()
        return "never"

    model = GatedModel(GatedReply("", "", Use("work")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[work]))
    run = await midrun.start("actor", "go")
    await tools.start("work").wait()
    await run.pause()
    tools.gate("work").set()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert model.transcripts[1][-1].uses[0].result == "from the middle"


async def test_a_blocking_tool_with_saved_progress_is_killed_and_continues(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """Its process has ended when the run is paused; the next process gets the progress."""
    middle = GatedCall(tmp_path)
    model = GatedModel(GatedReply("", "", Use("crawl_pages", **middle.args)), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[crawl_pages]))
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.read_numbers()
    watch = ProcessEnd(pid)
    await run.pause()
    await run.until("paused")
    await watch.wait_for_end()
    await run.resume()
    await run.until("completed")
    assert model.transcripts[1][-1].uses[0].result == "went on from page 2"
    assert not middle.effect.exists()


@pytest.mark.parametrize("after_pause", [False, True])
async def test_pause_now_stops_a_tool_that_has_saved_nothing(
    opened: OpenMidrun, after_pause: bool
) -> None:
    """An earlier pause does not matter. The model is told; the call is not repeated."""
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    if after_pause:
        await run.pause()
        assert (await run.view()).phase == "pausing"
    receipt = await run.pause(now=True)
    assert receipt.already is None
    await run.until("paused")
    assert (tools.stopped, tools.completed) == (["a"], [])
    await run.resume()
    await run.until("completed")
    assert tools.called == ["a"]
    (made,) = model.transcripts[1][-1].uses
    assert made.problem.startswith("stopped midway")


async def test_a_read_only_call_stopped_by_pause_now_is_repeated_on_resume(
    opened: OpenMidrun,
) -> None:
    """It is another attempt of the same call, with the same key."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("read", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause(now=True)
    await run.until("paused")
    assert tools.stopped == ["a"]
    tools.gate("a").set()
    await run.resume()
    await run.until("completed")
    assert (tools.called, tools.completed) == (["a", "a"], ["a"])
    assert len(set(tools.keys)) == 1


async def test_pause_now_kills_a_blocking_tool_before_its_effect(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The tool waits at a gate before its effect; the gate is opened after the kill."""
    middle = GatedCall(tmp_path)
    model = GatedModel(GatedReply("", "", Use("hold", **middle.args)), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[hold]))
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.read_numbers()
    watch = ProcessEnd(pid)
    await run.pause(now=True)
    await run.until("paused")
    await watch.wait_for_end()
    middle.gate.let_one_through()
    await run.resume()
    await run.until("completed")
    assert not middle.effect.exists()


async def test_pause_now_closes_the_model_call_of_a_framework_inside_a_tool(
    opened: OpenMidrun,
) -> None:
    """The framework's task has ended when the run is paused."""
    async with StreamingProvider().listen() as provider:
        framework = AgentFramework(provider)

        @tool
        async def delegate() -> None:
            """Run an agent of another framework."""
            await framework.run()

        model = GatedModel(GatedReply("", "", Use("delegate")), "Done.")
        midrun = await opened(Agent("actor", model=model, tools=[delegate]))
        run = await midrun.start("actor", "go")
        await provider.streaming.wait()
        await run.pause(now=True)
        await run.until("paused")
        assert [node.done() for node in framework.nodes] == [True]
        await provider.closed.wait()
