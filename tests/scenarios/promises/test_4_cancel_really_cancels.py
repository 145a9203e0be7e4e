"""Promise 4: cancel really cancels.

From the moment that the cancel is in the journal no call of the run is started, by any process,
not even by one that was frozen and wakes up later. What is in flight is stopped; see also
`test_4_cancel_stops_what_is_in_flight.py`.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from midrun import Agent, ControlRefused, Midrun, Run, ask_human, tool
from midrun.core.entries import CallUnknown
from midrun.models import ScriptedModel
from tests.scenarios.promises.crashing import LATER, child
from tests.scenarios.promises.seen import kinds, recorded, starts_after_the_cancel
from tests.scenarios.promises.world import World
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use

Bring = Callable[[Midrun, ControllableTools], Awaitable[Run]]


async def running(midrun: Midrun, stage: ControllableTools) -> Run:
    """Bring a run into the middle of a tool."""
    run = await midrun.start("actor", "go")
    await stage.start("held").wait()
    return run


async def pausing(midrun: Midrun, stage: ControllableTools) -> Run:
    """Have it asked to pause."""
    run = await running(midrun, stage)
    await run.pause()
    return run


async def paused(midrun: Midrun, stage: ControllableTools) -> Run:
    """Pause it."""
    run = await running(midrun, stage)
    await run.pause(now=True)
    await run.until("paused")
    return run


async def waiting(midrun: Midrun, stage: ControllableTools) -> Run:
    """Have it ask a person."""
    del stage
    run = await midrun.start("asker", "go")
    await run.until("waiting")
    return run


async def failed(midrun: Midrun, stage: ControllableTools) -> Run:
    """Have its model fail for good."""
    del stage
    run = await midrun.start("failer", "go")
    await run.until("failed")
    return run


async def halted(midrun: Midrun, stage: ControllableTools) -> Run:
    """Hold it by a latch; nothing may be undone before that is lifted."""
    run = await running(midrun, stage)
    await midrun.halt("stop", actor="operator:olga")
    await run.until("halted")
    return run


@pytest.mark.parametrize("bring", [running, pausing, paused, waiting, failed, halted])
async def test_nothing_starts_after_a_cancel_in_any_phase(opened: Opener, bring: Bring) -> None:
    """And what was in flight, if anything, is stopped."""
    stage = ControllableTools()
    first, ask = Use("draft", name="first"), Use("ask_human", question="Which?")
    midrun = await opened(
        Agent(
            "actor",
            model=ScriptedModel(
                [first, Use("slow", name="held"), Use("quick", name="on"), "."]
            ),
            tools=stage.tools(),
        ),
        Agent(
            "asker", model=ScriptedModel([first, ask, "."]), tools=[*stage.tools(), ask_human]
        ),
        Agent("failer", model=ScriptedModel([first]), tools=stage.tools()),
    )
    run = await bring(midrun, stage)
    began = list(stage.called)
    await run.cancel(undo="all")
    if bring is halted:
        assert (await run.view()).phase == "halted"
        assert stage.undone == []
        await midrun.lift(actor="operator:olga")
    await run.until("cancelled")
    assert await starts_after_the_cancel(run) == []
    assert stage.called == began
    assert "held" not in stage.completed
    assert stage.undone == ["first"]
    assert not (await run.view()).asks


async def test_a_run_that_nobody_drives_yet_is_cancelled_at_once(
    opened: Opener, path: Path
) -> None:
    """It needs no driver for that, and none ever takes it."""
    stage = ControllableTools()
    agent = stage.agent(Use("quick", name="a"), "Done.")
    async with Midrun(kept_at(path), agents=[agent], engine=None) as asking:
        run = await asking.start("actor", "go")
        assert (await run.cancel()).phase == "cancelled"
    midrun = await opened(agent)
    told = await kinds(await midrun.get(run.id))
    assert told == ["RunStarted", "CancelRequested", "RunCancelled"]
    assert stage.called == []


async def test_a_second_cancel_changes_nothing_and_says_who_was_first(opened: Opener) -> None:
    """Nor can anybody pause, resume or redirect what is being cancelled."""
    stage = ControllableTools()

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
    """Whoever was first in the journal has won."""
    midrun = await opened(ControllableTools().agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.cancel()
    assert refused.value.reason == "already_completed"


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
    """Frozen in a tool, taken over, cancelled; awake again, it has no say."""
    world = World(tmp_path)
    with child("drive_until_let_go", path, tmp_path, "notes", "note:before") as talk:
        run_id = talk.hear()
        talk.freeze()
        agents = [world.agent("notes")]
        async with Midrun(kept_at(path), agents=agents, outside=LATER) as midrun:
            run = await midrun.get(run_id)
            await recorded(run, CallUnknown)
            await run.cancel()
            await run.until("cancelled")
            end = (await run.view()).seq
        talk.thaw()
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
    async with Midrun(kept_at(path), agents=agents, outside=LATER) as next_one:
        found = await next_one.get(run_id)
        await found.until("cancelled")
        assert await starts_after_the_cancel(found) == []
        assert [deed.tool for deed in (await found.report()).unsure] == ["charge"]
    assert World(tmp_path).told() == ["charge a"]


@pytest.mark.parametrize("seq", range(1, 12))
async def test_a_cancel_at_any_entry_is_the_last_word_on_starts(
    opened: Opener, seq: int
) -> None:
    """Whatever the run is at when the cancel lands; one that lands too late is refused."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("draft", name="a"), Use("draft", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    async for item in run.feed():
        if item.seq == seq:
            break
    with suppress(ControlRefused):
        await run.cancel(undo="all")
    if (await run.until("terminal")).phase == "completed":
        assert stage.undone == []
    else:
        assert await starts_after_the_cancel(run) == []
        assert stage.undone == stage.completed[::-1]
