"""Promise 1: a pause is not a stop.

Once a run says *paused*, nothing of it runs, nothing is spent, and nothing of it is left in
memory: it is on disk. Resumed, here or in another process, it goes on at its next step, and
what was done is not done again.
"""

import asyncio
import gc
import weakref
from pathlib import Path

from midrun import Agent, Midrun, Paused, ask_human
from midrun.core.entries import CallStarted, LeaseTaken
from midrun.ports.store import RunQuery
from tests.scenarios.promises.crashing import child
from tests.scenarios.promises.seen import engine, entries, journal, kinds, true
from tests.scenarios.promises.speaker import Line, Speaker
from tests.scenarios.promises.world import World
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use


async def test_nothing_runs_and_nothing_is_spent_after_paused(opened: Opener) -> None:
    """A second run lives its whole life meanwhile: there was every opportunity."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    other = stage.agent("Bye.", name="other")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()), other)
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    stage.gate("a").set()
    paused = await run.until("paused")
    await (await midrun.start("other", "live")).until("completed")
    later = await run.view()
    assert (later.seq, later.usage) == (paused.seq, paused.usage)
    assert (await kinds(run))[-1] == "RunPaused"
    assert len(model.heard) == 1
    assert not await midrun.store.list_drivable(limit=10, agents=["actor"])


async def test_nothing_of_a_paused_run_is_left_in_memory(opened: Opener) -> None:
    """No drive, no task, no lease: a thousand paused runs cost what their rows cost."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    before = asyncio.all_tasks()
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    driven = weakref.ref(engine(midrun)._run_loops[run.id])
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    await true(lambda: run.id not in engine(midrun)._active_runs)
    await true(lambda: asyncio.all_tasks() <= before)
    gc.collect()
    assert driven() is None
    assert run.id not in engine(midrun)._run_loops
    row = await midrun.store.get_row(run.id)
    assert row.holder == ""


async def test_another_holder_goes_on_at_the_next_step_and_repeats_nothing(
    opened: Opener, path: Path
) -> None:
    """The one that paused it is gone by then: all there is is the file."""
    stage = ControllableTools()
    script = (Use("quick", name="a"), Use("slow", name="b"), Use("quick", name="c"), "Done.")
    async with Midrun(kept_at(path), agents=[stage.agent(*script)]) as first:
        run = await first.start("actor", "go")
        await stage.start("b").wait()
        await run.pause()
        stage.gate("b").set()
        await run.until("paused")
    second = await opened(stage.agent(*script))
    found = await second.get(run.id)
    await found.resume()
    await found.until("completed")
    assert stage.completed == ["a", "b", "c"]
    leases = await entries(found, LeaseTaken)
    assert [lease.epoch for lease in leases] == [1, 2]
    assert leases[0].holder != leases[1].holder
    assert [start.attempt for start in await entries(found, CallStarted)] == [1] * 7


async def test_a_run_paused_in_a_process_that_is_gone_goes_on_in_this_one(
    opened: Opener, path: Path, tmp_path: Path
) -> None:
    """A real process: it pauses its run in the middle, and ends."""
    world = World(tmp_path)
    with child("pause", path, tmp_path) as talk:
        run_id = talk.hear()
        assert talk.process.wait(20) == 0
    assert world.told() == ["note 1"]
    midrun = await opened(world.agent("notes"))
    run = await midrun.get(run_id)
    assert (await run.view()).phase == "paused"
    await run.resume()
    await run.until("completed")
    assert world.told() == ["note 1", "note 2", "note 3"]


async def test_a_run_that_nobody_drives_yet_is_paused_at_once(
    opened: Opener, path: Path
) -> None:
    """There is no boundary to wait for, so the receipt says that it is done."""
    stage = ControllableTools()
    agent = stage.agent(Use("quick", name="a"), "Done.")
    async with Midrun(kept_at(path), agents=[agent], engine=None) as asking:
        run = await asking.start("actor", "go")
        receipt = await run.pause()
        assert (receipt.phase, receipt.applied) == ("paused", True)
    midrun = await opened(agent)
    found = await midrun.get(run.id)
    assert [row.run for row in (await midrun.store.list_runs(RunQuery(limit=9))).items] == [
        run.id
    ]
    assert not await midrun.store.list_drivable(limit=9, agents=["actor"])
    await found.resume()
    await found.until("completed")
    assert stage.completed == ["a"]


async def test_siblings_in_flight_finish_before_paused_and_are_not_made_again(
    opened: Opener,
) -> None:
    """*Paused* waits for the last of them."""
    stage = ControllableTools()
    step = [Use("slow", name="a"), Use("slow", name="b"), Use("quick", name="c")]
    midrun = await opened(stage.agent(step, "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await stage.start("b").wait()
    await true(lambda: stage.completed == ["c"])
    await run.pause()
    stage.gate("b").set()
    await true(lambda: "b" in stage.completed)
    assert (await run.view()).phase == "pausing"
    stage.gate("a").set()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert stage.completed == ["c", "b", "a"]
    assert len(stage.called) == 3


async def test_a_question_stays_open_through_a_pause(opened: Opener) -> None:
    """An answer that comes meanwhile is kept, and changes nothing until somebody resumes."""
    model = Speaker(Line("", "", Use("ask_human", question="Which?")), "Then the red one.")
    midrun = await opened(Agent("actor", model=model, tools=[ask_human]))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.pause()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, [ask.question for ask in outcome.asks]) == ("user", ["Which?"])
    await run.answer("red", actor="ada")
    assert (await run.view()).phase == "paused"
    assert len(model.heard) == 1
    await run.resume()
    await run.until("completed")
    (made,) = model.heard[1][-1].uses
    assert made.result == "red"


async def test_every_pause_of_a_run_costs_it_nothing(opened: Opener) -> None:
    """Paused at each of its steps, it does what it would have done without any pause."""
    stage = ControllableTools()
    names = [str(number) for number in range(5)]
    midrun = await opened(stage.agent(*(Use("slow", name=name) for name in names), "Done."))
    run = await midrun.start("actor", "go")
    for name in names:
        await stage.start(name).wait()
        await run.pause()
        stage.gate(name).set()
        await run.until("paused")
        await run.resume()
    await run.until("completed")
    assert stage.called == stage.completed == names
    told = await journal(run)
    assert sum(isinstance(entry, CallStarted) for entry in told) == 2 * len(names) + 1
