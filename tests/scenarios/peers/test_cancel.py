"""Cancel, compared with other frameworks: running calls stop, and the report is complete.

The docstrings name the framework and the failure that was seen there.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from select import select

import anyio.to_thread
import pytest

from midrun import Agent, Cancelled, ControlRefused
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from tests.scenarios.peers.blocking_tools import (
    GATE,
    STARTED,
    carve,
    stamp,
    stamp_soon,
    warm_up,
)
from tests.scenarios.peers.toolkit import PeerToolkit, read_entry_kinds, wait_for_entries
from tests.unit.driver.subprocess.blocking_tools import hold_with_family
from tests.unit.driver.subprocess.process_calls import GatedCall, ProcessEnd, process_exists
from tests.unit.runs.conftest import OpenMidrun


@pytest.fixture
def blocked_call(tmp_path: Path) -> Iterator[GatedCall]:
    """Return the pipes of a blocking tool: it reports its start, waits, and creates a file."""
    call = GatedCall(tmp_path)
    yield call
    call.fifo.close()
    call.gate.close()


@pytest.fixture
def thread_gate() -> Iterator[None]:
    """Open the gate at the end, so that the thread ends also if the test fails."""
    STARTED.clear()
    GATE.clear()
    yield
    GATE.set()


async def test_a_blocking_tool_has_no_effect_after_the_cancel(
    opened: OpenMidrun, blocked_call: GatedCall
) -> None:
    """LangGraph, OpenAI, Pydantic AI: the cancel returns, and the effect happens later."""
    use = Use("stamp", **blocked_call.args)
    agent = Agent("stamper", model=ScriptedModel([use, "never"]), tools=[stamp])
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    (pid,) = await blocked_call.fifo.read_numbers()
    process = ProcessEnd(pid)
    await run.cancel()
    await run.until("cancelled")
    blocked_call.gate.let_one_through()
    await process.wait_for_end()
    assert not blocked_call.effect.exists()
    assert [call.tool for call in (await run.report()).stopped] == ["stamp"]


async def test_processes_that_a_tool_started_are_stopped_with_it(
    opened: OpenMidrun, blocked_call: GatedCall
) -> None:
    """Codex: Stop ends the turn, and the command that the tool had started keeps running."""
    use = Use("hold_with_family", **blocked_call.args)
    agent = Agent("parent", model=ScriptedModel([use, "never"]), tools=[hold_with_family])
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    processes = [ProcessEnd(pid) for pid in await blocked_call.fifo.read_numbers()]
    assert len(processes) == 3
    await run.cancel()
    await run.until("cancelled")
    for _ in processes:
        blocked_call.gate.let_one_through()
    for process in processes:
        await process.wait_for_end()
    assert not blocked_call.effect.exists()


async def test_a_blocking_tool_is_stopped_at_its_timeout(
    opened: OpenMidrun, blocked_call: GatedCall
) -> None:
    """Pydantic AI: a blocking tool is abandoned at its timeout, and keeps running."""
    use = Use("stamp_soon", **blocked_call.args)
    toolkit = PeerToolkit()
    model = ScriptedModel([Use("warm_up"), use, toolkit.record_then_say("Too slow.")])
    agent = Agent("stamper", model=model, tools=[warm_up, stamp_soon])
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    await run.until("completed")
    # The fifo is empty if the timeout ended before the tool had started.
    if select([blocked_call.fifo._fd], [], [], 0)[0]:
        (pid,) = await blocked_call.fifo.read_numbers()
        assert not process_exists(pid)
    blocked_call.gate.let_one_through()
    assert toolkit.prompts[-1][-1].uses[0].problem.startswith("stopped midway")
    assert not blocked_call.effect.exists()


@pytest.mark.usefixtures("thread_gate")
async def test_a_tool_that_cannot_be_stopped_is_reported_as_unsure(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """Pydantic AI: the history says "interrupted" of a call that later takes effect."""
    effect = tmp_path / "effect"
    model = ScriptedModel([Use("carve", effect=str(effect)), "never"])
    agent = Agent("carver", model=model, tools=[carve], grace=timedelta(milliseconds=20))
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    await anyio.to_thread.run_sync(STARTED.wait)
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert [call.tool for call in report.unsure] == ["carve"]
    assert not report.stopped
    assert not report.clean
    GATE.set()
    await wait_for_entries(run, "LateResult")
    assert effect.exists()


@pytest.mark.usefixtures("thread_gate")
async def test_a_cancel_is_accepted_while_a_blocking_tool_runs(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """ADK: a blocking tool blocks the event loop, and the abort is seen after its end."""
    effect = tmp_path / "effect"
    model = ScriptedModel([Use("carve", effect=str(effect)), "never"])
    agent = Agent("carver", model=model, tools=[carve], grace=timedelta(hours=1))
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    await anyio.to_thread.run_sync(STARTED.wait)
    receipt = await run.cancel()
    view = await run.view()
    assert (receipt.phase, view.phase) == ("cancelling", "cancelling")
    assert [call.tool for call in view.in_flight] == ["carve"]
    assert not effect.exists()
    GATE.set()
    await run.until("cancelled")
    assert [call.tool for call in (await run.report()).done] == ["carve"]


async def test_an_async_tool_is_stopped_without_polling_a_flag(opened: OpenMidrun) -> None:
    """Strands: tools in flight run to their end unless they poll a flag."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.cancel()
    await run.until("cancelled")
    assert (toolkit.stopped, toolkit.completed) == (["a"], [])


async def test_a_child_run_is_stopped_with_its_parent(opened: OpenMidrun) -> None:
    """ADK: the signal does not reach an agent that is used as a tool."""
    toolkit = PeerToolkit()
    child_agent = toolkit.agent(Use("slow", name="a"), "never", name="aide")
    turns: list[Line] = [Use("aide", task="go"), "never"]
    midrun = await opened(
        Agent("actor", model=ScriptedModel(turns), tools=[child_agent.as_tool()])
    )
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.cancel()
    await run.until("cancelled")
    assert (toolkit.stopped, toolkit.completed) == (["a"], [])
    assert {view.phase for view in (await midrun.runs()).items} == {"cancelled"}


async def test_a_run_is_not_cancelled_before_its_tool_has_stopped(opened: OpenMidrun) -> None:
    """LangGraph Server: the status changes first, and the worker stops some time later."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("tidy", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.cancel()
    await toolkit.start("a stopping").wait()
    view = await run.view()
    assert view.phase == "cancelling"
    assert [call.tool for call in view.in_flight] == ["tidy"]
    toolkit.gate("a").set()
    await run.until("cancelled")
    assert toolkit.stopped == ["a"]


async def test_no_model_call_starts_after_a_cancel(opened: OpenMidrun) -> None:
    """Claude Code: "interrupted" is shown, and the agent continues."""
    toolkit = PeerToolkit()
    turns = (
        toolkit.record_then_say([Use("slow", name="a"), Use("slow", name="b")]),
        toolkit.record_then_say("never"),
    )
    midrun = await opened(toolkit.agent(*turns))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await toolkit.start("b").wait()
    await run.cancel()
    await run.until("cancelled")
    kinds = await read_entry_kinds(run)
    assert "CallStarted" not in kinds[kinds.index("CancelRequested") :]
    assert len(toolkit.prompts) == 1


async def test_a_cancel_directly_after_the_start_is_not_lost(opened: OpenMidrun) -> None:
    """AG-UI: Stop pressed before the first token is lost, and the run ends in success."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await run.cancel()
    assert isinstance(await run.result(), Cancelled)
    assert toolkit.completed == []


async def test_a_run_that_waits_for_a_person_can_be_cancelled(opened: OpenMidrun) -> None:
    """Mastra: a suspended run cannot be aborted."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("ask", name="a"), "never"))
    run = await midrun.start("actor", "go")
    ask = (await run.until("waiting")).asks[0]
    await run.cancel(actor="ada")
    await run.until("cancelled")
    with pytest.raises(ControlRefused, match=r"ada was first .*ask_closed"):
        await run.answer("yes", ask=ask.id)


async def test_a_cancelled_run_cannot_be_resumed(opened: OpenMidrun) -> None:
    """Claude Code: killed background agents come back and deliver their output."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.cancel()
    cancelled = await run.until("cancelled")
    same_run = await (await opened(toolkit.agent("never"))).get(run.id)
    with pytest.raises(ControlRefused):
        await same_run.resume("go on")
    assert (await same_run.view()).seq == cancelled.seq
    assert toolkit.called == ["a"]


async def test_a_cancel_during_an_approved_call_does_not_repeat_it(opened: OpenMidrun) -> None:
    """Strands: an approved tool runs twice if the cancel comes while it is running."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("pay", amount=5, to="bob"), "never"))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.approve(actor="ada")
    await toolkit.start("bob").wait()
    await run.cancel()
    await run.until("cancelled")
    assert (toolkit.called, toolkit.completed) == (["bob"], [])


async def test_the_report_has_finished_and_stopped_calls(opened: OpenMidrun) -> None:
    """OpenAI: an immediate cancel drops the turn; the effect has happened, without a record."""
    toolkit = PeerToolkit()
    turn = [Use("quick", name="a"), Use("slow", name="b")]
    midrun = await opened(toolkit.agent(turn, "never"))
    run = await midrun.start("actor", "go")
    await toolkit.start("b").wait()
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert [call.args for call in report.done] == ['{"name":"a"}']
    assert [call.args for call in report.stopped] == ['{"name":"b"}']


async def test_undo_reverses_the_effects_and_keeps_the_journal(opened: OpenMidrun) -> None:
    """LangGraph Server: a rollback deletes the run and its checkpoints; the effects stay."""
    toolkit = PeerToolkit()
    turns = Use("draft", name="1"), Use("draft", name="2"), Use("slow", name="x"), "never"
    midrun = await opened(toolkit.agent(*turns))
    run = await midrun.start("actor", "go")
    await toolkit.start("x").wait()
    before = await read_entry_kinds(run)
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert toolkit.undone == ["2", "1"]
    assert (await read_entry_kinds(run))[: len(before)] == before


async def test_cancelled_waiting_and_paused_are_different_phases(opened: OpenMidrun) -> None:
    """LangGraph: a cancelled run and a run that waits for a person look the same."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("ask", name="a"), "Done."))
    runs = [await midrun.start("actor", "go") for _ in range(3)]
    for run in runs:
        await run.until("waiting")
    await runs[1].pause()
    await runs[2].cancel()
    await runs[2].until("cancelled")
    phases = [(await run.view()).phase for run in runs]
    assert phases == ["waiting", "paused", "cancelled"]
