"""Promise 4: cancel really cancels.

From the moment that the cancel is in the journal no call of the run is started, by any process,
not even by one that was frozen and wakes up later. What is in flight is stopped: streams are
closed, async tools cancelled, blocking tools killed with their children. What cannot be stopped
is not called stopped.
"""

import os
import signal
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Call, Cancelled, ControlRefused, Midrun, Run, ask_human, pause_here, tool
from midrun.core.entries import CallAborted, CallUnknown, LateResult, RunStarted
from midrun.driver.live import Delta
from midrun.models import ScriptedModel
from tests.driver.blocking.deeds import hold_with_family, ignore_requests_to_stop
from tests.driver.blocking.scene import Middle, Watch
from tests.promises.blocking import hold
from tests.promises.crashing import LATER, child
from tests.promises.seen import entries, kinds, recorded, starts_after_the_cancel
from tests.promises.speaker import Line, Speaker
from tests.promises.world import World
from tests.runtime.conftest import Opener
from tests.runtime.stage import Stage, Use

SHORT = timedelta(milliseconds=50)


# ── nothing starts any more ───────────────────────────────────────────────────────────────


Bring = Callable[[Midrun, Stage], Awaitable[Run]]


async def running(midrun: Midrun, stage: Stage) -> Run:
    """Bring a run into the middle of a tool."""
    run = await midrun.start("actor", "go")
    await stage.start("held").wait()
    return run


async def pausing(midrun: Midrun, stage: Stage) -> Run:
    """Have it asked to pause."""
    run = await running(midrun, stage)
    await run.pause()
    return run


async def paused(midrun: Midrun, stage: Stage) -> Run:
    """Pause it."""
    run = await running(midrun, stage)
    await run.pause(now=True)
    await run.until("paused")
    return run


async def waiting(midrun: Midrun, stage: Stage) -> Run:
    """Have it ask a person."""
    del stage
    run = await midrun.start("asker", "go")
    await run.until("waiting")
    return run


async def failed(midrun: Midrun, stage: Stage) -> Run:
    """Have its model fail for good."""
    del stage
    run = await midrun.start("failer", "go")
    await run.until("failed")
    return run


async def halted(midrun: Midrun, stage: Stage) -> Run:
    """Hold it by a latch; nothing may be undone before that is lifted."""
    run = await running(midrun, stage)
    await midrun.halt("stop", actor="operator:olga")
    await run.until("halted")
    return run


@pytest.mark.parametrize("bring", [running, pausing, paused, waiting, failed, halted])
async def test_nothing_starts_after_a_cancel_in_any_phase(opened: Opener, bring: Bring) -> None:
    """And what was in flight, if anything, is stopped."""
    stage = Stage()
    first, ask = Use("draft", name="first"), Use("ask_human", question="Which?")
    midrun = await opened(
        Agent(
            "actor",
            model=ScriptedModel([first, Use("slow", name="held"), Use("quick", name="on"), "."]),
            tools=stage.tools(),
        ),
        Agent(
            "asker", model=ScriptedModel([first, ask, "."]), tools=[*stage.tools(), ask_human]
        ),
        Agent("failer", model=ScriptedModel([first]), tools=stage.tools()),
    )
    run = await bring(midrun, stage)
    began = list(stage.began)
    await run.cancel(undo="all")
    if bring is halted:
        assert (await run.view()).phase == "halted"
        assert stage.undone == []
        await midrun.lift(actor="operator:olga")
    await run.until("cancelled")
    assert await starts_after_the_cancel(run) == []
    assert stage.began == began
    assert "held" not in stage.did
    assert stage.undone == ["first"]
    assert not (await run.view()).asks


async def test_a_run_that_nobody_drives_yet_is_cancelled_at_once(
    opened: Opener, path: Path
) -> None:
    stage = Stage()
    agent = stage.agent(Use("quick", name="a"), "Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent], engine=None) as asking:
        run = await asking.start("actor", "go")
        assert (await run.cancel()).phase == "cancelled"
    midrun = await opened(agent)
    assert await kinds(await midrun.get(run.id)) == [
        RunStarted.__name__, "CancelRequested", "RunCancelled",
    ]  # fmt: skip
    assert stage.began == []


async def test_the_stream_is_closed_and_what_it_asked_for_is_not_made(opened: Opener) -> None:
    stage = Stage()
    model = Speaker(Line("So far. ", "", Use("quick", name="a"), gate="half"))
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.cancel()
    await run.until("cancelled")
    assert model.closed == ["half"]
    assert stage.began == []
    assert (await run.report()).partial == "So far. "


async def test_an_answer_that_comes_after_the_cancel_is_partial_work(opened: Opener) -> None:
    """Whole, but not journaled when the cancel came: the run is cancelled, the words are kept."""
    model = Speaker(Line("All is ", "done.", gate="end", at="end"))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("end").wait()
    await run.cancel()
    outcome = await run.result()
    assert isinstance(outcome, Cancelled)
    assert outcome.report.partial == "All is done."


async def test_a_second_cancel_changes_nothing_and_says_who_was_first(opened: Opener) -> None:
    stage = Stage()

    @tool
    async def tidy() -> str:
        """Take some time to stop."""
        stage.start("work").set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await stage.gate("tidied").wait()
        return "never"

    midrun = await opened(Agent("actor", model=ScriptedModel([Use("tidy")]), tools=[tidy]))
    run = await midrun.start("actor", "go")
    await stage.start("work").wait()
    first = await run.cancel(actor="ada")
    second = await run.cancel(undo="all", actor="bob")
    assert (second.already, second.by, second.seq) == ("already_cancelling", "ada", first.seq)
    for control in (run.pause, run.resume):
        with pytest.raises(ControlRefused, match="is_cancelling"):
            await control()
    with pytest.raises(ControlRefused, match="is_cancelling"):
        await run.redirect("Too late")
    stage.gate("tidied").set()
    await run.until("cancelled")
    third = await run.cancel(actor="bob")
    assert (third.already, third.by) == ("already_cancelled", "ada")
    assert (await kinds(run)).count("CancelRequested") == 1


async def test_a_completed_run_cannot_be_cancelled(opened: Opener) -> None:
    midrun = await opened(Stage().agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.cancel()
    assert refused.value.reason == "already_completed"


# ── what is in flight is stopped, or is not called stopped ────────────────────────────────


async def test_a_tool_that_swallows_a_cancellation_meets_the_next(opened: Opener) -> None:
    stage = Stage()

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

    midrun = await opened(Agent("actor", model=ScriptedModel([Use("deaf")]), tools=[deaf]))
    run = await midrun.start("actor", "go")
    await stage.start("deaf").wait()
    await run.cancel()
    await run.until("cancelled")
    assert stage.start("swallowed").is_set()
    assert len(await entries(run, CallAborted)) == 1
    assert [deed.tool for deed in (await run.report()).stopped] == ["deaf"]


async def test_an_async_tool_that_ignores_everything_is_not_called_stopped(
    opened: Opener,
) -> None:
    stage = Stage()

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
    gate, stage = threading.Event(), Stage()

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
    shown: list[str] = []
    try:
        await run.cancel()
        async for item in run.feed():
            if isinstance(item, Delta) and item.kind == "not_responding":
                shown.append(item.call)
                assert (await run.view()).phase == "cancelling"
        (lost,) = await entries(run, CallUnknown)
        assert (shown, lost.why) == ([lost.call], "not_responding")
        report = await run.report()
        assert [deed.tool for deed in report.unsure] == ["stubborn"]
        assert not report.stopped
    finally:
        gate.set()
    with anyio.fail_after(10):
        while not (late := await entries(run, LateResult)):
            await anyio.lowlevel.checkpoint()
    assert late[0].result == "done after all"
    assert (await run.view()).phase == "cancelled"


async def test_a_blocking_tool_is_killed_and_its_effect_never_comes(
    opened: Opener, tmp_path: Path
) -> None:
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
    stage = Stage()

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
    with anyio.fail_after(5):
        await run.until("cancelled")
    assert not (await run.view()).asks
    assert [deed.tool for deed in (await run.report()).stopped] == ["curious"]


# ── by any process ────────────────────────────────────────────────────────────────────────


async def test_a_cancel_from_another_process_reaches_the_call(
    opened: Opener, path: Path, tmp_path: Path
) -> None:
    """The process that drives is another one; what it has in flight is stopped there."""
    with child("drive", path, tmp_path, "notes", "note:before") as talk:
        run_id = talk.hear()
        midrun = await opened()
        run = await midrun.get(run_id)
        await run.cancel()
        await run.until("cancelled")
        assert await starts_after_the_cancel(run) == []
        assert World(tmp_path).told() == []


async def test_a_process_that_was_frozen_starts_nothing_when_it_wakes_up(
    path: Path, tmp_path: Path, opened: Opener
) -> None:
    """Frozen in a tool, taken over, cancelled. Awake again, it finds the run somebody else's."""
    world = World(tmp_path)
    with child("drive_until_let_go", path, tmp_path, "notes", "note:before") as talk:
        run_id = talk.hear()
        talk.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, talk.process.pid, os.WSTOPPED)
        agents = [world.agent("notes")]
        async with Midrun(f"sqlite:///{path}", agents=agents, outside=LATER) as midrun:
            run = await midrun.get(run_id)
            await recorded(run, CallUnknown)
            await run.cancel()
            await run.until("cancelled")
            end = (await run.view()).seq
        talk.process.send_signal(signal.SIGCONT)
        assert talk.hear() == "let go"
    after = await (await opened()).get(run_id)
    assert await starts_after_the_cancel(after) == []
    assert world.told() in ([], ["note 1"])  # what was in flight is the far end's to refuse
    assert set((await kinds(after))[end:]) <= {"LateResult"}


async def test_a_cancel_while_a_run_is_taken_over_is_finished_by_whoever_takes_it(
    path: Path, tmp_path: Path, opened: Opener
) -> None:
    """The driver died with the cancel in the journal; nothing starts, the report is honest."""
    with child("drive", path, tmp_path, "charge", "charge:after") as talk:
        run_id = talk.hear()
        talk.kill()
    midrun = await opened()
    run = await midrun.get(run_id)
    assert (await run.cancel()).phase == "cancelling"
    agents = [World(tmp_path).agent("charge")]
    async with Midrun(f"sqlite:///{path}", agents=agents, outside=LATER) as next_one:
        found = await next_one.get(run_id)
        await found.until("cancelled")
        assert await starts_after_the_cancel(found) == []
        assert [deed.tool for deed in (await found.report()).unsure] == ["charge"]
    assert World(tmp_path).told() == ["charge a"]


async def test_cancel_at_every_entry_of_a_run_starts_nothing_after_it(opened: Opener) -> None:
    """Whatever the run is at when the cancel lands, its entry is the last word on starts."""
    for seq in range(1, 14):
        stage = Stage()
        names = iter("abc")
        script = [Use("draft", name=next(names)), Use("draft", name=next(names)), "Done."]
        midrun = await opened(stage.agent(*script))
        run = await midrun.start("actor", "go")
        ended = False
        async for item in run.feed():
            if item.seq == seq:
                try:
                    await run.cancel(undo="all")
                except ControlRefused as refused:
                    assert refused.reason == "already_completed"
                    ended = True
                break
        view = await run.until("terminal")
        if ended or view.phase == "completed":
            assert stage.undone == []
            continue
        assert await starts_after_the_cancel(run) == []
        assert stage.undone == stage.did[::-1]
