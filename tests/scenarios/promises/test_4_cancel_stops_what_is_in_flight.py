"""Promise 4, of what is in flight: it is stopped, or it is not called stopped.

Streams are closed, async tools cancelled, blocking tools killed with their children. A call
that cannot be stopped is shown as *not responding*, and its outcome is unknown.
"""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import anyio
from anyio.lowlevel import checkpoint

from midrun import Agent, Cancelled, pause_here, tool
from midrun.core.entries import CallAborted, CallUnknown, LateResult
from midrun.models import ScriptedModel
from midrun.runs.values import FeedEntry
from tests.scenarios.promises.blocking import hold
from tests.scenarios.promises.framework import Framework, Provider
from tests.scenarios.promises.seen import entries
from tests.scenarios.promises.speaker import Line, Speaker
from tests.unit.driver.subprocess.deeds import hold_with_family, ignore_requests_to_stop
from tests.unit.driver.subprocess.scene import Middle, Watch
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use

SHORT = timedelta(milliseconds=50)


async def test_the_stream_is_closed_and_what_it_asked_for_is_not_made(opened: Opener) -> None:
    """It had begun to ask for a call."""
    stage = ControllableTools()
    model = Speaker(Line("So far. ", "", Use("quick", name="a"), gate="half"))
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.cancel()
    await run.until("cancelled")
    assert model.closed == ["half"]
    assert stage.called == []
    assert (await run.report()).partial == "So far. "


async def test_an_answer_that_comes_after_the_cancel_is_partial_work(opened: Opener) -> None:
    """Whole, but not journaled when the cancel came: the words are kept."""
    model = Speaker(Line("All is ", "done.", gate="end", at="end"))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("end").wait()
    await run.cancel()
    outcome = await run.result()
    assert isinstance(outcome, Cancelled)
    assert outcome.report.partial == "All is done."


async def test_a_tool_that_swallows_a_cancellation_meets_the_next(opened: Opener) -> None:
    """One `except BaseException` is the usual way to outlive a cancel."""
    stage = ControllableTools()

    @tool
    async def deaf() -> str:
        """Take the first cancellation for somebody else's."""
        stage.start("deaf").set()
        try:
            await anyio.sleep_forever()
        except BaseException:  # noqa: BLE001 - that is what it is here for
            stage.start("swallowed").set()
        await anyio.sleep_forever()
        return "never"

    model = ScriptedModel([Use("deaf")])
    agent = Agent("actor", model=model, tools=[deaf], grace=timedelta(seconds=2))
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("deaf").wait()
    await run.cancel()
    await run.until("cancelled")
    assert stage.start("swallowed").is_set()
    assert len(await entries(run, CallAborted)) == 1
    assert [deed.tool for deed in (await run.report()).stopped] == ["deaf"]


async def test_a_framework_inside_a_tool_closes_its_model_call_before_cancelled_is_said(
    opened: Opener,
) -> None:
    """It is cancelled once: cancelled on every turn of the loop, it never ends its node."""
    async with Provider().listening() as provider:
        framework = Framework(provider)

        @tool
        async def delegate() -> None:
            """Have an agent of another framework do it."""
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
        assert [deed.tool for deed in (await run.report()).stopped] == ["delegate"]


async def test_a_tool_that_swallows_every_cancellation_is_cancelled_a_few_times_only(
    opened: Opener,
) -> None:
    """The event loop is shared: the tool may ignore us, but it must not keep the loop busy."""
    stage = ControllableTools()
    swallowed = 0

    @tool
    async def deaf() -> None:
        """Wait for the gate, whatever is raised meanwhile."""
        nonlocal swallowed
        stage.start("deaf").set()
        while not stage.gate("deaf").is_set():
            try:
                await stage.gate("deaf").wait()
            except asyncio.CancelledError:
                swallowed += 1

    model = ScriptedModel([Use("deaf")])
    midrun = await opened(Agent("actor", model=model, tools=[deaf], grace=SHORT))
    run = await midrun.start("actor", "go")
    await stage.start("deaf").wait()
    await run.cancel()
    try:
        await run.until("cancelled")
        for _ in range(1000):
            await checkpoint()
        assert 0 < swallowed < 20
        assert [deed.tool for deed in (await run.report()).unsure] == ["deaf"]
    finally:
        stage.gate("deaf").set()


async def test_an_async_tool_that_ignores_everything_is_not_called_stopped(
    opened: Opener,
) -> None:
    """It runs on behind its shield, and the report does not pretend otherwise."""
    stage = ControllableTools()

    @tool
    async def shielded() -> str:
        """Let nobody in until it is done."""
        stage.start("shielded").set()
        with anyio.CancelScope(shield=True):
            await stage.gate("shielded").wait()
        return "never"

    model = ScriptedModel([Use("shielded")])
    midrun = await opened(Agent("actor", model=model, tools=[shielded], grace=SHORT))
    run = await midrun.start("actor", "go")
    await stage.start("shielded").wait()
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert [deed.tool for deed in report.unsure] == ["shielded"]
    assert not report.stopped
    assert not report.clean
    stage.gate("shielded").set()


async def test_a_thread_that_ignores_its_cancel_is_shown_and_its_outcome_is_unknown(
    opened: Opener,
) -> None:
    """Nobody can stop a thread. What it brings in the end is kept as late evidence."""
    gate, stage = threading.Event(), ControllableTools()

    @tool(in_process=True)
    def stubborn() -> str:
        """Wait where nobody can reach it."""
        anyio.from_thread.run_sync(stage.start("stubborn").set)
        gate.wait()
        return "done after all"

    model = ScriptedModel([Use("stubborn")])
    midrun = await opened(Agent("actor", model=model, tools=[stubborn], grace=SHORT))
    run = await midrun.start("actor", "go")
    await stage.start("stubborn").wait()
    try:
        await run.cancel()
        shown = [item async for item in run.feed() if isinstance(item, FeedEntry)]
        (lost,) = [item.entry for item in shown if isinstance(item.entry, CallUnknown)]
        assert lost.why == "not_responding"
        report = await run.report()
        assert [deed.tool for deed in report.unsure] == ["stubborn"]
        assert not report.stopped
    finally:
        gate.set()
    with anyio.fail_after(60):
        while not (late := await entries(run, LateResult)):
            await anyio.lowlevel.checkpoint()
    assert late[0].result == "done after all"
    assert (await run.view()).phase == "cancelled"


async def test_a_blocking_tool_is_killed_and_its_effect_never_comes(
    opened: Opener, tmp_path: Path
) -> None:
    """It waits in front of its effect; let on later, there is nobody to be let on."""
    middle = Middle(tmp_path)
    model = ScriptedModel([Use("hold", **middle.args)])
    midrun = await opened(Agent("actor", model=model, tools=[hold]))
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.hear()
    watch = Watch(pid)
    await run.cancel()
    await run.until("cancelled")
    await watch.end()
    middle.gate.open()
    assert not middle.effect.exists()
    assert [deed.tool for deed in (await run.report()).stopped] == ["hold"]


async def test_a_blocking_tool_is_killed_with_its_children(
    opened: Opener, tmp_path: Path
) -> None:
    """A shell, and what the shell started, wait for the same effect."""
    middle = Middle(tmp_path)
    model = ScriptedModel([Use("hold_with_family", **middle.args)])
    midrun = await opened(Agent("actor", model=model, tools=[hold_with_family], grace=SHORT))
    run = await midrun.start("actor", "go")
    pids = await middle.fifo.hear()
    assert len(pids) == 3
    watches = [Watch(pid) for pid in pids]
    await run.cancel()
    await run.until("cancelled")
    for watch in watches:
        await watch.end()
    middle.gate.open()
    assert not middle.effect.exists()


async def test_a_blocking_tool_that_ignores_being_asked_is_killed_after_its_grace(
    opened: Opener, tmp_path: Path
) -> None:
    """SIGTERM is a request; SIGKILL is not."""
    middle = Middle(tmp_path)
    model = ScriptedModel([Use("ignore_requests_to_stop", **middle.args)])
    agent = Agent("actor", model=model, tools=[ignore_requests_to_stop], grace=SHORT)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.hear()
    watch = Watch(pid)
    await run.cancel()
    await run.until("cancelled")
    await watch.end()
    middle.gate.open()
    assert not middle.effect.exists()
    report = await run.report()
    assert [deed.tool for deed in (*report.stopped, *report.unsure)] == [
        "ignore_requests_to_stop"
    ]


async def test_a_tool_that_asks_a_person_after_the_cancel_does_not_hold_it_up(
    opened: Opener,
) -> None:
    """It was stopped in the middle, and its question is nobody's any more."""
    stage = ControllableTools()

    @tool
    async def curious() -> str:
        """Ask instead of stopping."""
        stage.start("curious").set()
        try:
            await anyio.sleep_forever()
        finally:
            pause_here("Shall I stop?")

    midrun = await opened(
        Agent("actor", model=ScriptedModel([Use("curious")]), tools=[curious], grace=SHORT)
    )
    run = await midrun.start("actor", "go")
    await stage.start("curious").wait()
    await run.cancel()
    with anyio.fail_after(60):
        await run.until("cancelled")
    assert not (await run.view()).asks
    assert [deed.tool for deed in (await run.report()).stopped] == ["curious"]
