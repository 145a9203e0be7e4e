"""Promise 1: a pause is not a stop.

While a run is paused, nothing of it runs, nothing is billed, and no process holds it in memory.
A resume in this or another process continues at the next step and repeats nothing.
"""

import asyncio
import gc
import weakref
from pathlib import Path

from midrun import Agent, Midrun, Paused, ask_human
from midrun.core.entries import CallStarted, LeaseTaken
from midrun.models import Use
from midrun.ports.store import RunQuery
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.killable_process import EffectsFile, start_process
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import get_worker, read_entries, read_kinds, yield_until
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


async def test_nothing_runs_and_nothing_is_spent_after_paused(opened: OpenMidrun) -> None:
    """A second run starts and completes meanwhile, so the worker had a chance to continue."""
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    other = tools.agent("Bye.", name="other")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()), other)
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause()
    tools.gate("a").set()
    paused = await run.until("paused")
    await (await midrun.start("other", "live")).until("completed")
    later = await run.view()
    assert (later.seq, later.usage) == (paused.seq, paused.usage)
    assert (await read_kinds(run))[-1] == "RunPaused"
    assert len(model.transcripts) == 1
    assert not await midrun.store.list_drivable(limit=10, agents=["actor"])


async def test_nothing_of_a_paused_run_is_left_in_memory(opened: OpenMidrun) -> None:
    """The worker has dropped the run loop, its tasks and the lease."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    before = asyncio.all_tasks()
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    run_loop = weakref.ref(get_worker(midrun)._run_loops[run.id])
    await run.pause()
    tools.gate("a").set()
    await run.until("paused")
    await yield_until(lambda: run.id not in get_worker(midrun)._active_runs)
    await yield_until(lambda: asyncio.all_tasks() <= before)
    gc.collect()
    assert run_loop() is None
    assert run.id not in get_worker(midrun)._run_loops
    row = await midrun.store.get_row(run.id)
    assert row.holder == ""


async def test_another_worker_continues_at_the_next_step_and_repeats_nothing(
    opened: OpenMidrun, path: Path
) -> None:
    """The worker that paused the run is closed by then."""
    tools = ControllableTools()
    script = (Use("quick", name="a"), Use("slow", name="b"), Use("quick", name="c"), "Done.")
    async with Midrun(get_store_url(path), agents=[tools.agent(*script)]) as first:
        run = await first.start("actor", "go")
        await tools.start("b").wait()
        await run.pause()
        tools.gate("b").set()
        await run.until("paused")
    second = await opened(tools.agent(*script))
    found = await second.get(run.id)
    await found.resume()
    await found.until("completed")
    assert tools.completed == ["a", "b", "c"]
    leases = await read_entries(found, LeaseTaken)
    assert [lease.epoch for lease in leases] == [1, 2]
    assert leases[0].holder != leases[1].holder
    assert [start.attempt for start in await read_entries(found, CallStarted)] == [1] * 7


async def test_a_run_paused_in_a_process_that_has_exited_continues_in_this_one(
    opened: OpenMidrun, path: Path, tmp_path: Path
) -> None:
    effects = EffectsFile(tmp_path)
    with start_process("pause", path, tmp_path) as process:
        run_id = process.read_line()
        assert process.process.wait(20) == 0
    assert effects.read_effects() == ["note 1"]
    midrun = await opened(effects.agent("notes"))
    run = await midrun.get(run_id)
    assert (await run.view()).phase == "paused"
    await run.resume()
    await run.until("completed")
    assert effects.read_effects() == ["note 1", "note 2", "note 3"]


async def test_a_queued_run_without_a_worker_is_paused_at_once(
    opened: OpenMidrun, path: Path
) -> None:
    """There is no boundary to wait for, so the receipt says `applied`."""
    tools = ControllableTools()
    agent = tools.agent(Use("quick", name="a"), "Done.")
    async with Midrun(get_store_url(path), agents=[agent], engine=None) as without_worker:
        run = await without_worker.start("actor", "go")
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
    assert tools.completed == ["a"]


async def test_parallel_calls_finish_before_paused_and_are_not_repeated(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    step = [Use("slow", name="a"), Use("slow", name="b"), Use("quick", name="c")]
    midrun = await opened(tools.agent(step, "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await tools.start("b").wait()
    await yield_until(lambda: tools.completed == ["c"])
    await run.pause()
    tools.gate("b").set()
    await yield_until(lambda: "b" in tools.completed)
    assert (await run.view()).phase == "pausing"
    tools.gate("a").set()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert tools.completed == ["c", "b", "a"]
    assert len(tools.called) == 3


async def test_a_question_stays_open_through_a_pause(opened: OpenMidrun) -> None:
    """An answer during the pause is stored; the run stays paused until it is resumed."""
    model = GatedModel(
        GatedReply("", "", Use("ask_human", question="Which?")), "Then the red one."
    )
    midrun = await opened(Agent("actor", model=model, tools=[ask_human]))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.pause()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, [ask.question for ask in outcome.asks]) == ("user", ["Which?"])
    await run.answer("red", actor="ada")
    assert (await run.view()).phase == "paused"
    assert len(model.transcripts) == 1
    await run.resume()
    await run.until("completed")
    (made,) = model.transcripts[1][-1].uses
    assert made.result == "red"


async def test_a_run_paused_at_every_step_makes_the_same_calls(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    names = [str(number) for number in range(5)]
    midrun = await opened(tools.agent(*(Use("slow", name=name) for name in names), "Done."))
    run = await midrun.start("actor", "go")
    for name in names:
        await tools.start(name).wait()
        await run.pause()
        tools.gate(name).set()
        await run.until("paused")
        await run.resume()
    await run.until("completed")
    assert tools.called == tools.completed == names
    assert len(await read_entries(run, CallStarted)) == 2 * len(names) + 1
