"""Promise 4: cancel really cancels.

Once the cancel is journaled, no call of the run starts in any process, also not in one that was
frozen and wakes up later. Calls in flight are stopped: streams are closed, async tools are
cancelled, blocking tools are killed with their children. A call that cannot be stopped has an
unknown outcome.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, Cancelled, ControlRefused, Midrun, Run, ask_human, pause_here, tool
from midrun.core.entries import (
    CallAborted,
    CallStarted,
    CallUnknown,
    CancelRequested,
    LateResult,
)
from midrun.models import ScriptedModel, Use
from midrun.runs.values import FeedEntry
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.agent_framework import AgentFramework, StreamingProvider
from tests.scenarios.promises.killable_process import ONE_HOUR_AHEAD, EffectsFile, start_process
from tests.scenarios.promises.tools import SlowStopTool, UnstoppableTool, hold
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, read_journal, read_kinds, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.driver.subprocess.blocking_tools import (
    hold_with_family,
    ignore_requests_to_stop,
)
from tests.unit.driver.subprocess.process_calls import GatedCall, ProcessEnd, process_exists
from tests.unit.runs.conftest import OpenMidrun

ReachPhase = Callable[[Midrun, ControllableTools], Awaitable[Run]]


async def read_starts_after_cancel(run: Run) -> list[CallStarted]:
    """Return the starts that the journal has after the cancel."""
    entries_ = await read_journal(run)
    at = next(n for n, entry in enumerate(entries_) if isinstance(entry, CancelRequested))
    return [entry for entry in entries_[at:] if isinstance(entry, CallStarted)]


async def reach_running(midrun: Midrun, tools: ControllableTools) -> Run:
    """Start a run, and wait until its tool `slow` runs."""
    run = await midrun.start("actor", "go")
    await tools.start("held").wait()
    return run


async def reach_pausing(midrun: Midrun, tools: ControllableTools) -> Run:
    """Request a pause while the tool runs."""
    run = await reach_running(midrun, tools)
    await run.pause()
    return run


async def reach_paused(midrun: Midrun, tools: ControllableTools) -> Run:
    """Pause a run."""
    run = await reach_running(midrun, tools)
    await run.pause(now=True)
    await run.until("paused")
    return run


async def reach_waiting(midrun: Midrun, tools: ControllableTools) -> Run:
    """Start a run that asks a person."""
    del tools
    run = await midrun.start("asker", "go")
    await run.until("waiting")
    return run


async def reach_failed(midrun: Midrun, tools: ControllableTools) -> Run:
    """Start a run whose script ends too early."""
    del tools
    run = await midrun.start("failer", "go")
    await run.until("failed")
    return run


async def reach_halted(midrun: Midrun, tools: ControllableTools) -> Run:
    """Halt a run; its calls are undone only after the lift."""
    run = await reach_running(midrun, tools)
    await midrun.halt("stop", actor="operator:olga")
    await run.until("halted")
    return run


@pytest.mark.parametrize(
    "reach_phase",
    [reach_running, reach_pausing, reach_paused, reach_waiting, reach_failed, reach_halted],
)
async def test_nothing_starts_after_a_cancel_in_any_phase(
    opened: OpenMidrun, reach_phase: ReachPhase
) -> None:
    """A call in flight is stopped. A halted run is undone only after the lift."""
    tools = ControllableTools()
    first, ask = Use("draft", name="first"), Use("ask_human", question="Which?")
    midrun = await opened(
        Agent(
            "actor",
            model=ScriptedModel(
                [first, Use("slow", name="held"), Use("quick", name="on"), "."]
            ),
            tools=tools.tools(),
        ),
        Agent(
            "asker", model=ScriptedModel([first, ask, "."]), tools=[*tools.tools(), ask_human]
        ),
        Agent("failer", model=ScriptedModel([first]), tools=tools.tools()),
    )
    run = await reach_phase(midrun, tools)
    called = list(tools.called)
    await run.cancel(undo="all")
    if reach_phase is reach_halted:
        assert (await run.view()).phase == "halted"
        assert tools.undone == []
        await midrun.lift(actor="operator:olga")
    await run.until("cancelled")
    assert await read_starts_after_cancel(run) == []
    assert tools.called == called
    assert "held" not in tools.completed
    assert tools.undone == ["first"]
    assert not (await run.view()).asks


async def test_a_queued_run_without_a_worker_is_cancelled_at_once(
    opened: OpenMidrun, path: Path
) -> None:
    tools = ControllableTools()
    agent = tools.agent(Use("quick", name="a"), "Done.")
    async with Midrun(get_store_url(path), agents=[agent], engine=None) as without_worker:
        run = await without_worker.start("actor", "go")
        assert (await run.cancel()).phase == "cancelled"
    midrun = await opened(agent)
    journaled = await read_kinds(await midrun.get(run.id))
    assert journaled == ["RunStarted", "CancelRequested", "RunCancelled"]
    assert tools.called == []


async def test_a_second_cancel_is_a_no_op_that_names_the_first_actor(
    opened: OpenMidrun,
) -> None:
    """Pause, resume and redirect are refused while the run is cancelling."""
    slow_stop = SlowStopTool()
    model = ScriptedModel([Use("slow_stop")])
    midrun = await opened(Agent("actor", model=model, tools=[slow_stop.build()]))
    run = await midrun.start("actor", "go")
    await slow_stop.started.wait()
    first = await run.cancel(actor="ada")
    second = await run.cancel(undo="all", actor="bob")
    assert (second.already, second.by, second.seq) == ("already_cancelling", "ada", first.seq)
    for control in (run.pause, run.resume):
        with pytest.raises(ControlRefused, match="is_cancelling"):
            await control()
    with pytest.raises(ControlRefused, match="is_cancelling"):
        await run.redirect("Too late")
    slow_stop.gate.set()
    await run.until("cancelled")
    third = await run.cancel(actor="bob")
    assert (third.already, third.by) == ("already_cancelled", "ada")
    assert (await read_kinds(run)).count("CancelRequested") == 1


async def test_a_completed_run_cannot_be_cancelled(opened: OpenMidrun) -> None:
    midrun = await opened(ControllableTools().agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.cancel()
    assert refused.value.reason == "already_completed"


# ── from another process, and after a crash ───────────────────────────────────────────────


async def test_a_cancel_from_another_process_reaches_the_call(
    opened: OpenMidrun, path: Path, tmp_path: Path
) -> None:
    """The worker is in the other process and stops its call."""
    with start_process("drive", path, tmp_path, "notes", "note:before") as process:
        run_id = process.read_line()
        midrun = await opened()
        run = await midrun.get(run_id)
        await run.cancel()
        await run.until("cancelled")
        assert await read_starts_after_cancel(run) == []
        assert EffectsFile(tmp_path).read_effects() == []


async def test_a_frozen_worker_starts_nothing_when_it_wakes_up(
    path: Path, tmp_path: Path, opened: OpenMidrun
) -> None:
    """Meanwhile another worker has taken over the run, and it was cancelled."""
    effects = EffectsFile(tmp_path)
    with start_process(
        "drive_until_released", path, tmp_path, "notes", "note:before"
    ) as process:
        run_id = process.read_line()
        process.freeze()
        agents = [effects.agent("notes")]
        async with Midrun(get_store_url(path), agents=agents, outside=ONE_HOUR_AHEAD) as midrun:
            run = await midrun.get(run_id)
            await wait_for_entry(run, CallUnknown)
            await run.cancel()
            await run.until("cancelled")
            end = (await run.view()).seq
        process.thaw()
        assert process.read_line() == "released"
    after = await (await opened()).get(run_id)
    assert await read_starts_after_cancel(after) == []
    assert effects.read_effects() in ([], ["note 1"])  # only a remote service can refuse it
    assert set((await read_kinds(after))[end:]) <= {"LateResult"}


async def test_the_next_worker_finishes_a_cancel_after_a_crash(
    path: Path, tmp_path: Path, opened: OpenMidrun
) -> None:
    """The call that was in flight at the crash is reported as unsure."""
    with start_process("drive", path, tmp_path, "charge", "charge:after") as process:
        run_id = process.read_line()
        process.kill()
    midrun = await opened()
    run = await midrun.get(run_id)
    assert (await run.cancel()).phase == "cancelling"
    agents = [EffectsFile(tmp_path).agent("charge")]
    async with Midrun(
        get_store_url(path), agents=agents, outside=ONE_HOUR_AHEAD
    ) as next_worker:
        found = await next_worker.get(run_id)
        await found.until("cancelled")
        assert await read_starts_after_cancel(found) == []
        assert [call.tool for call in (await found.report()).unsure] == ["charge"]
    assert EffectsFile(tmp_path).read_effects() == ["charge a"]


@pytest.mark.parametrize("seq", range(1, 12))
async def test_no_call_starts_after_a_cancel_at_any_entry(opened: OpenMidrun, seq: int) -> None:
    """A cancel after the completion is refused."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("draft", name="a"), Use("draft", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    async for item in run.feed():
        if item.seq == seq:
            break
    with suppress(ControlRefused):
        await run.cancel(undo="all")
    if (await run.until("terminal")).phase == "completed":
        assert tools.undone == []
    else:
        assert await read_starts_after_cancel(run) == []
        assert tools.undone == tools.completed[::-1]


# ── calls in flight ───────────────────────────────────────────────────────────────────────

GRACE = timedelta(milliseconds=50)


async def test_a_cancel_closes_the_model_stream_and_makes_none_of_its_calls(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    model = GatedModel(GatedReply("So far. ", "", Use("quick", name="a"), gate="half"))
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.cancel()
    await run.until("cancelled")
    assert model.closed_gates == ["half"]
    assert tools.called == []
    assert (await run.report()).partial == "So far. "


async def test_a_reply_that_was_not_journaled_before_the_cancel_is_partial_work(
    opened: OpenMidrun,
) -> None:
    model = GatedModel(GatedReply("All is ", "done.", gate="end", gate_at="end"))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("end").wait()
    await run.cancel()
    outcome = await run.result()
    assert isinstance(outcome, Cancelled)
    assert outcome.report.partial == "All is done."


async def test_a_tool_that_swallows_its_cancellation_is_cancelled_again(
    opened: OpenMidrun,
) -> None:
    """The usual cause is `except BaseException` in user code."""
    tools = ControllableTools()

    @tool
    async def swallowing() -> str:
        """Swallow the first cancellation."""
        tools.start("swallowing").set()
        try:
            await anyio.sleep_forever()
        except BaseException:  # noqa: BLE001 - as in careless user code
            tools.start("swallowed").set()
        await anyio.sleep_forever()
        return "never"

    model = ScriptedModel([Use("swallowing")])
    agent = Agent("actor", model=model, tools=[swallowing], grace=timedelta(seconds=2))
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("swallowing").wait()
    await run.cancel()
    await run.until("cancelled")
    assert tools.start("swallowed").is_set()
    assert len(await read_entries(run, CallAborted)) == 1
    assert [call.tool for call in (await run.report()).stopped] == ["swallowing"]


async def test_a_framework_inside_a_tool_closes_its_model_call_before_the_run_is_cancelled(
    opened: OpenMidrun,
) -> None:
    """The tool is cancelled once; cancelled more often, the framework cannot end its node."""
    async with StreamingProvider().listen() as provider:
        framework = AgentFramework(provider)

        @tool
        async def delegate() -> None:
            """Run an agent of another framework."""
            await framework.run()

        midrun = await opened(
            Agent("actor", model=ScriptedModel([Use("delegate")]), tools=[delegate])
        )
        run = await midrun.start("actor", "go")
        await provider.streaming.wait()
        await run.cancel()
        await run.until("cancelled")
        assert [node.done() for node in framework.nodes] == [True]
        await provider.closed.wait()
        assert [call.tool for call in (await run.report()).stopped] == ["delegate"]


async def test_a_tool_that_swallows_every_cancellation_is_cancelled_a_few_times_only(
    opened: OpenMidrun,
) -> None:
    """All tools share the event loop; repeated cancellations must not keep it busy."""
    tools = ControllableTools()
    swallowed = 0

    @tool
    async def swallowing() -> None:
        """Wait for the gate, and swallow each cancellation."""
        nonlocal swallowed
        tools.start("swallowing").set()
        while not tools.gate("swallowing").is_set():
            try:
                await tools.gate("swallowing").wait()
            except asyncio.CancelledError:
                swallowed += 1

    model = ScriptedModel([Use("swallowing")])
    midrun = await opened(Agent("actor", model=model, tools=[swallowing], grace=GRACE))
    run = await midrun.start("actor", "go")
    await tools.start("swallowing").wait()
    await run.cancel()
    try:
        await run.until("cancelled")
        for _ in range(1000):
            await checkpoint()
        assert 0 < swallowed < 20
        assert [call.tool for call in (await run.report()).unsure] == ["swallowing"]
    finally:
        tools.gate("swallowing").set()


async def test_an_async_tool_that_ignores_its_cancellation_is_reported_as_unsure(
    opened: OpenMidrun,
) -> None:
    """It still runs inside its shielded scope."""
    tools = ControllableTools()

    @tool
    async def shielded() -> str:
        """Wait for the gate in a shielded scope."""
        tools.start("shielded").set()
        with anyio.CancelScope(shield=True):
            await tools.gate("shielded").wait()
        return "never"

    model = ScriptedModel([Use("shielded")])
    midrun = await opened(Agent("actor", model=model, tools=[shielded], grace=GRACE))
    run = await midrun.start("actor", "go")
    await tools.start("shielded").wait()
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert [call.tool for call in report.unsure] == ["shielded"]
    assert not report.stopped
    assert not report.clean
    tools.gate("shielded").set()


async def test_a_thread_that_ignores_its_cancellation_has_an_unknown_outcome(
    opened: OpenMidrun,
) -> None:
    """A thread cannot be stopped. Its result is journaled as a late one."""
    unstoppable = UnstoppableTool()
    model = ScriptedModel([Use("unstoppable")])
    agent = Agent("actor", model=model, tools=[unstoppable.build()], grace=GRACE)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await unstoppable.started.wait()
    try:
        await run.cancel()
        feed = [item async for item in run.feed() if isinstance(item, FeedEntry)]
        (unknown,) = [item.entry for item in feed if isinstance(item.entry, CallUnknown)]
        assert unknown.why == "not_responding"
        report = await run.report()
        assert [call.tool for call in report.unsure] == ["unstoppable"]
        assert not report.stopped
    finally:
        unstoppable.gate.set()
    with anyio.fail_after(60):
        while not (late := await read_entries(run, LateResult)):
            await anyio.lowlevel.checkpoint()
    assert late[0].result == "done after all"
    assert (await run.view()).phase == "cancelled"


async def test_a_blocking_tool_is_killed_before_its_effect(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The tool waits at a gate before its effect; the gate is opened after the kill."""
    middle = GatedCall(tmp_path)
    model = ScriptedModel([Use("hold", **middle.args)])
    midrun = await opened(Agent("actor", model=model, tools=[hold]))
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.read_numbers()
    watch = ProcessEnd(pid)
    await run.cancel()
    await run.until("cancelled")
    await watch.wait_for_end()
    middle.gate.let_one_through()
    assert not middle.effect.exists()
    assert [call.tool for call in (await run.report()).stopped] == ["hold"]


async def test_a_blocking_tool_is_killed_with_its_children(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """A shell and a child of the shell wait at the same gate."""
    middle = GatedCall(tmp_path)
    model = ScriptedModel([Use("hold_with_family", **middle.args)])
    midrun = await opened(Agent("actor", model=model, tools=[hold_with_family], grace=GRACE))
    run = await midrun.start("actor", "go")
    pids = await middle.fifo.read_numbers()
    assert len(pids) == 3
    watches = [ProcessEnd(pid) for pid in pids]
    await run.cancel()
    await run.until("cancelled")
    for watch in watches:
        await watch.wait_for_end()
    middle.gate.let_one_through()
    assert not middle.effect.exists()


async def test_a_blocking_tool_that_ignores_sigterm_is_killed_after_its_grace(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The run waits for the end of the killed process: nothing is undone beside it."""
    middle = GatedCall(tmp_path)
    model = ScriptedModel([Use("ignore_requests_to_stop", **middle.args)])
    agent = Agent("actor", model=model, tools=[ignore_requests_to_stop], grace=GRACE)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.read_numbers()
    await run.cancel()
    await run.until("cancelled")
    assert not process_exists(pid)
    middle.gate.let_one_through()
    assert not middle.effect.exists()
    assert [call.tool for call in (await run.report()).stopped] == ["ignore_requests_to_stop"]


async def test_a_question_asked_after_the_cancel_is_dropped(
    opened: OpenMidrun,
) -> None:
    """The tool asks while it is being stopped."""
    tools = ControllableTools()

    @tool
    async def curious() -> str:
        """Ask when it is cancelled."""
        tools.start("curious").set()
        try:
            await anyio.sleep_forever()
        finally:
            pause_here("Shall I stop?")

    midrun = await opened(
        Agent("actor", model=ScriptedModel([Use("curious")]), tools=[curious], grace=GRACE)
    )
    run = await midrun.start("actor", "go")
    await tools.start("curious").wait()
    await run.cancel()
    with anyio.fail_after(60):
        await run.until("cancelled")
    assert not (await run.view()).asks
    assert [call.tool for call in (await run.report()).stopped] == ["curious"]
