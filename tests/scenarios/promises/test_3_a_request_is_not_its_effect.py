"""Promise 3: a request is not its effect.

*Pausing* and *cancelling* name the calls that they wait for. *Paused* and *cancelled* appear
only when they are true. A pending pause can be withdrawn. A receipt says whether its control is
applied, or which actor was first.
"""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Completed, ControlRefused, Midrun, Paused, pause_here, tool
from midrun.core.entries import (
    CallStarted,
    CallUnknown,
    LateResult,
    PauseWithdrawn,
    RedirectApplied,
    RunPaused,
    RunResumed,
)
from midrun.core.ids import Micros
from midrun.driver.delta import Delta
from midrun.models import Use
from midrun.ports.environment import Environment, read_wall_clock
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.killable_process import ONE_HOUR_AHEAD, EffectsFile, start_process
from tests.scenarios.promises.tools import SlowStopTool, UnstoppableTool
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, read_kinds, wait_for_entry, yield_until
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import LONG_LEASE, OpenMidrun


async def test_a_pausing_run_lists_the_calls_it_waits_for(opened: OpenMidrun) -> None:
    """The run is not paused when only one of its two calls has ended."""
    tools = ControllableTools()
    step = [Use("slow", name="a"), Use("read", name="b")]
    midrun = await opened(tools.agent(step, "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await tools.start("b").wait()
    receipt = await run.pause(actor="ada")
    assert (receipt.phase, receipt.applied, receipt.by) == ("pausing", False, "ada")
    view = await run.view()
    assert (view.phase, view.phase_by) == ("pausing", "ada")
    assert [call.tool for call in view.in_flight] == ["slow", "read"]
    assert "waits for “Slow”, “Read”" in view.controls["pause"].consequence
    tools.gate("b").set()
    await yield_until(lambda: "b" in tools.completed)
    await run.view()
    assert not await read_entries(run, RunPaused)
    tools.gate("a").set()
    assert not (await run.until("paused")).in_flight


async def test_a_cancelling_run_lists_the_calls_it_waits_for(opened: OpenMidrun) -> None:
    """The tool cleans up when it is stopped; the run is not cancelled before it has ended."""
    slow_stop = SlowStopTool()
    model = GatedModel(GatedReply("", "", Use("slow_stop")))
    midrun = await opened(Agent("actor", model=model, tools=[slow_stop.build()]))
    run = await midrun.start("actor", "go")
    await slow_stop.started.wait()
    receipt = await run.cancel(actor="ada")
    assert receipt.phase == "cancelling"
    await slow_stop.stopping.wait()
    view = await run.view()
    assert (view.phase, view.phase_by) == ("cancelling", "ada")
    assert [call.tool for call in view.in_flight] == ["slow_stop"]
    slow_stop.gate.set()
    assert not (await run.until("cancelled")).in_flight


async def test_resume_withdraws_a_pending_pause(opened: OpenMidrun) -> None:
    """The tool is not stopped, and the run was never paused."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause(actor="ada")
    receipt = await run.resume(actor="bob")
    assert (receipt.phase, receipt.applied, receipt.already) == ("running", True, None)
    tools.gate("a").set()
    await run.until("completed")
    assert (tools.called, tools.stopped) == (["a"], [])
    assert [withdrawn.by for withdrawn in await read_entries(run, PauseWithdrawn)] == ["bob"]
    assert not await read_entries(run, RunPaused)


async def test_resume_with_an_instruction_withdraws_a_pending_pause_and_redirects(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause()
    receipt = await run.resume("Be brief")
    assert not receipt.applied
    tools.gate("a").set()
    await run.until("completed")
    assert [applied.plus for applied in await read_entries(run, RedirectApplied)] == [
        "Be brief"
    ]
    assert model.transcripts[1][-1].text == "Be brief"


async def test_a_pause_is_withdrawn_by_its_seq_only_while_it_is_pending(
    opened: OpenMidrun,
) -> None:
    """A paused run is continued with a resume."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    first = await run.pause()
    assert (await run.withdraw(first.seq)).phase == "running"
    tools.gate("a").set()
    await tools.start("b").wait()
    second = await run.pause()
    tools.gate("b").set()
    await run.until("paused")
    with pytest.raises(ControlRefused, match="not_pending"):
        await run.withdraw(second.seq)
    assert (await run.view()).phase == "paused"


async def test_a_pause_with_hold_is_withdrawn_if_the_call_outlasts_it(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause(hold=timedelta(milliseconds=1))
    withdrawn = await wait_for_entry(run, PauseWithdrawn)
    assert withdrawn.by == "system:clock"
    assert (await run.view()).phase == "running"
    tools.gate("a").set()
    await run.until("completed")
    assert (tools.called, tools.stopped) == (["a"], [])


async def test_a_pause_with_hold_ends_when_its_time_is_over(path: Path) -> None:
    """No process holds the run in memory meanwhile; a worker of the store wakes it."""
    tools, ahead_micros = ControllableTools(), [0]

    def clock() -> Micros:
        return Micros(read_wall_clock() + ahead_micros[0])

    agent = tools.agent(Use("slow", name="a"), "Done.")
    outside = Environment(clock=clock, lease=LONG_LEASE)
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=[agent], outside=outside) as midrun:
            run = await midrun.start("actor", "go")
            await tools.start("a").wait()
            await run.pause(hold=timedelta(hours=1))
            tools.gate("a").set()
            await run.until("paused")
            ahead_micros[0] = 3_601_000_000
            await run.until("completed")
            (resumed,) = await read_entries(run, RunResumed)
            assert resumed.by == "system:clock"
            assert await midrun.verify(run.id)


async def test_a_pause_without_hold_replaces_one_with_hold(opened: OpenMidrun) -> None:
    """The second request asks for more than the first, so it is not a no-op."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause(hold=timedelta(hours=1))
    assert (await run.pause()).already is None
    tools.gate("a").set()
    await run.until("paused")
    assert (await midrun.store.get_row(run.id)).head.wake_at is None


async def test_a_pause_beats_a_completion_that_is_not_in_the_journal(
    opened: OpenMidrun,
) -> None:
    """The reply is complete but not journaled. It is kept, and completes the run later."""
    model = GatedModel(GatedReply("All is ", "done.", gate="end", gate_at="end"))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("end").wait()
    await run.pause()
    await run.until("paused")
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "All is done."
    assert len(model.transcripts) == 1
    journaled = await read_kinds(run)
    assert journaled.index("RunPaused") < journaled.index("RunCompleted")


async def test_a_completion_in_the_journal_beats_a_pause(opened: OpenMidrun) -> None:
    midrun = await opened(ControllableTools().agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.pause()
    assert (refused.value.reason, refused.value.phase) == ("is_completed", "completed")


async def test_a_repeated_control_is_a_no_op_that_names_the_first_actor(
    opened: OpenMidrun,
) -> None:
    """A resume with an instruction is refused instead, so that its text is not lost."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    first = await run.pause(actor="ada")
    second = await run.pause(actor="bob")
    assert (second.already, second.by, second.seq) == ("already_pausing", "ada", first.seq)
    tools.gate("a").set()
    await run.until("paused")
    third = await run.pause(actor="bob")
    assert (third.already, third.by, third.applied) == ("already_paused", "ada", True)
    resumed = await run.resume(actor="bob")
    await tools.start("b").wait()
    again = await run.resume(actor="ada")
    assert (again.already, again.by) == ("already_running", "bob")
    assert resumed.seq <= again.seq
    with pytest.raises(ControlRefused) as refused:
        await run.resume("And be quick", actor="ada")
    assert (refused.value.reason, refused.value.by) == ("not_paused", "bob")
    assert "redirect" in refused.value.allowed
    tools.gate("b").set()
    await run.until("completed")


async def test_a_call_that_ignores_its_pause_keeps_the_run_pausing_and_is_named(
    opened: OpenMidrun,
) -> None:
    """A thread cannot be stopped. The run stays pausing until a person forces the pause."""
    unstoppable = UnstoppableTool()
    model = GatedModel(GatedReply("", "", Use("unstoppable")), "Done.")
    agent = Agent(
        "actor", model=model, tools=[unstoppable.build()], grace=timedelta(milliseconds=20)
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await unstoppable.started.wait()
    try:
        deltas: list[Delta] = []
        await run.pause(now=True)
        async for item in run.feed():
            if isinstance(item, Delta) and item.kind == "not_responding":
                deltas.append(item)
                break
        view = await run.view()
        assert view.phase == "pausing"
        assert [call.id for call in view.in_flight] == [deltas[0].call]
        assert view.in_flight[0].not_responding
        assert (await run.force_pause(actor="ada")).phase == "paused"
        assert [unknown.why for unknown in await read_entries(run, CallUnknown)] == ["forced"]
    finally:
        unstoppable.gate.set()
    late = await wait_for_entry(run, LateResult)
    assert late.result == "done after all"
    await run.resume()
    await run.until("completed")
    assert model.transcripts[1][-1].uses[0].result == "done after all"


async def test_after_a_forced_pause_a_person_is_asked_for_the_outcome_of_the_call(
    opened: OpenMidrun,
) -> None:
    """The driver did not wait for the call, so its outcome is unknown."""
    unstoppable = UnstoppableTool(ValueError("it did not work"))
    model = GatedModel(GatedReply("", "", Use("unstoppable")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[unstoppable.build()]))
    run = await midrun.start("actor", "go")
    await unstoppable.started.wait()
    await run.pause()
    await run.force_pause()
    await run.resume()
    await run.until("waiting")
    unstoppable.gate.set()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, outcome.asks[0].tool) == ("unsure", "unstoppable")
    await run.answer("unknown")
    await run.until("completed")


async def test_a_pending_pause_survives_the_kill_of_its_worker(
    path: Path, tmp_path: Path, opened: OpenMidrun
) -> None:
    """The next worker pauses the run, and journals the outcome of the call as unknown."""
    with start_process("drive", path, tmp_path, "charge", "charge:after") as process:
        run_id = process.read_line()
        midrun = await opened()
        run = await midrun.get(run_id)
        receipt = await run.pause()
        assert (receipt.phase, receipt.applied) == ("pausing", False)
        assert [call.tool for call in (await run.view()).in_flight] == ["charge"]
        process.kill()
    effects = EffectsFile(tmp_path)
    agents = [effects.agent("charge")]
    async with Midrun(
        get_store_url(path), agents=agents, outside=ONE_HOUR_AHEAD
    ) as next_worker:
        found = await next_worker.get(run_id)
        await found.until("paused")
        assert [unknown.why for unknown in await read_entries(found, CallUnknown)] == [
            "orphaned"
        ]
        assert len(await read_entries(found, CallStarted)) == 2
    assert effects.read_effects() == ["charge a"]


async def test_a_question_asked_while_pausing_stays_open_in_the_paused_run(
    opened: OpenMidrun,
) -> None:
    """The run is paused, not waiting; after the resume it waits for the answer."""
    tools = ControllableTools()

    @tool
    async def curious() -> str:
        """Ask when the test opens the gate."""
        tools.start("curious").set()
        await tools.gate("curious").wait()
        pause_here("Which?")

    model = GatedModel(GatedReply("", "", Use("curious")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[curious]))
    run = await midrun.start("actor", "go")
    await tools.start("curious").wait()
    await run.pause()
    tools.gate("curious").set()
    view = await run.until("paused")
    assert [ask.question for ask in view.asks] == ["Which?"]
    assert (await run.resume()).phase == "waiting"
    await run.answer("this")
    await run.until("completed")
    assert model.transcripts[1][-1].uses[0].result == "this"
