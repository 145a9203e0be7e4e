"""Promise 3: asked for and happened are different facts.

*Pausing* and *cancelling* are there to be seen, and name what they wait for. *Paused* and
*cancelled* are said only when they are true. A pause that has not taken hold can be withdrawn,
and whoever asks for something is told whether it has happened, or who was first.
"""

import threading
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Call, Completed, ControlRefused, Midrun, Paused, pause_here, tool
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
from midrun.driver.live import Delta
from midrun.ports.environment import Environment, read_wall_clock
from tests.scenarios.promises.crashing import LATER, child
from tests.scenarios.promises.seen import entries, kinds, recorded, true
from tests.scenarios.promises.speaker import Line, Speaker
from tests.scenarios.promises.world import World
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import LEASE, Opener
from tests.unit.runs.stage import ControllableTools, Use


async def test_pausing_names_what_it_waits_for(opened: Opener) -> None:
    """Two tools are at work: the run says which, and is not paused when one of them is done."""
    stage = ControllableTools()
    step = [Use("slow", name="a"), Use("read", name="b")]
    midrun = await opened(stage.agent(step, "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await stage.start("b").wait()
    receipt = await run.pause(actor="ada")
    assert (receipt.phase, receipt.applied, receipt.by) == ("pausing", False, "ada")
    view = await run.view()
    assert (view.phase, view.since_by) == ("pausing", "ada")
    assert [call.tool for call in view.in_flight] == ["slow", "read"]
    assert "slow" in view.controls["pause"].consequence
    stage.gate("b").set()
    await true(lambda: "b" in stage.completed)
    await run.view()
    assert not await entries(run, RunPaused)
    stage.gate("a").set()
    assert not (await run.until("paused")).in_flight


async def test_cancelling_names_what_it_waits_for(opened: Opener) -> None:
    """A tool that tidies up when it is stopped: until it has, the run is not cancelled."""
    stage = ControllableTools()

    @tool
    async def tidy(call: Call) -> str:
        """Work, and tidy up when stopped."""
        del call
        stage.start("work").set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                stage.start("tidying").set()
                await stage.gate("tidied").wait()
        return "never"

    model = Speaker(Line("", "", Use("tidy")))
    midrun = await opened(Agent("actor", model=model, tools=[tidy]))
    run = await midrun.start("actor", "go")
    await stage.start("work").wait()
    receipt = await run.cancel(actor="ada")
    assert receipt.phase == "cancelling"
    await stage.start("tidying").wait()
    view = await run.view()
    assert (view.phase, view.since_by) == ("cancelling", "ada")
    assert [call.tool for call in view.in_flight] == ["tidy"]
    stage.gate("tidied").set()
    assert not (await run.until("cancelled")).in_flight


async def test_resume_withdraws_a_pause_that_has_not_taken_hold(opened: Opener) -> None:
    """The tool does not notice, and the run was never paused."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause(actor="ada")
    receipt = await run.resume(actor="bob")
    assert (receipt.phase, receipt.applied, receipt.already) == ("running", True, None)
    stage.gate("a").set()
    await run.until("completed")
    assert (stage.called, stage.stopped) == (["a"], [])
    assert [withdrawn.by for withdrawn in await entries(run, PauseWithdrawn)] == ["bob"]
    assert not await entries(run, RunPaused)


async def test_resume_with_words_withdraws_a_pause_and_redirects(opened: Opener) -> None:
    """The words are not lost because the pause had not taken hold."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    receipt = await run.resume("Be brief")
    assert not receipt.applied
    stage.gate("a").set()
    await run.until("completed")
    assert [applied.plus for applied in await entries(run, RedirectApplied)] == ["Be brief"]
    assert model.heard[1][-1].text == "Be brief"


async def test_a_pause_is_withdrawn_by_its_seq_only_while_it_pends(opened: Opener) -> None:
    """Once it has taken hold there is nothing to withdraw: resume ends it."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    first = await run.pause()
    assert (await run.withdraw(first.seq)).phase == "running"
    stage.gate("a").set()
    await stage.start("b").wait()
    second = await run.pause()
    stage.gate("b").set()
    await run.until("paused")
    with pytest.raises(ControlRefused, match="not_pending"):
        await run.withdraw(second.seq)
    assert (await run.view()).phase == "paused"


async def test_a_held_pause_that_never_took_hold_lets_go_by_itself(opened: Opener) -> None:
    """The tool takes longer than the pause was meant to last."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause(hold=timedelta(milliseconds=1))
    withdrawn = await recorded(run, PauseWithdrawn)
    assert withdrawn.by == "system:clock"
    assert (await run.view()).phase == "running"
    stage.gate("a").set()
    await run.until("completed")
    assert (stage.called, stage.stopped) == (["a"], [])


async def test_a_held_pause_lets_go_by_itself_when_its_time_is_over(path: Path) -> None:
    """Nobody holds the run in memory meanwhile: whoever drives on this store wakes it."""
    stage, ahead = ControllableTools(), [0]

    def clock() -> Micros:
        return Micros(read_wall_clock() + ahead[0])

    agent = stage.agent(Use("slow", name="a"), "Done.")
    outside = Environment(clock=clock, lease=LEASE)
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=outside) as midrun:
            run = await midrun.start("actor", "go")
            await stage.start("a").wait()
            await run.pause(hold=timedelta(hours=1))
            stage.gate("a").set()
            await run.until("paused")
            ahead[0] = 3_601_000_000
            await run.until("completed")
            (resumed,) = await entries(run, RunResumed)
            assert resumed.by == "system:clock"
            assert await midrun.verify(run.id)


async def test_a_pause_for_good_outlasts_one_that_is_held(opened: Opener) -> None:
    """The second asks for more than the first, so it is not *already so*."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause(hold=timedelta(hours=1))
    assert (await run.pause()).already is None
    stage.gate("a").set()
    await run.until("paused")
    assert (await midrun.store.get_row(run.id)).head.wake_at is None


async def test_a_pause_beats_a_completion_that_is_not_in_the_journal(opened: Opener) -> None:
    """The answer is whole but not journaled: it waits, and ends the run once it is resumed."""
    model = Speaker(Line("All is ", "done.", gate="end", at="end"))
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("end").wait()
    await run.pause()
    await run.until("paused")
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "All is done."
    assert len(model.heard) == 1
    told = await kinds(run)
    assert told.index("RunPaused") < told.index("RunCompleted")


async def test_a_completion_in_the_journal_beats_a_pause(opened: Opener) -> None:
    """The other way round: the pause is refused, by name."""
    midrun = await opened(ControllableTools().agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.pause()
    assert (refused.value.reason, refused.value.phase) == ("is_completed", "completed")


async def test_who_asks_for_what_is_so_already_learns_who_was_first(opened: Opener) -> None:
    """Nothing changes, nothing is an error; words, though, are never swallowed."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    first = await run.pause(actor="ada")
    second = await run.pause(actor="bob")
    assert (second.already, second.by, second.seq) == ("already_pausing", "ada", first.seq)
    stage.gate("a").set()
    await run.until("paused")
    third = await run.pause(actor="bob")
    assert (third.already, third.by, third.applied) == ("already_paused", "ada", True)
    resumed = await run.resume(actor="bob")
    await stage.start("b").wait()
    again = await run.resume(actor="ada")
    assert (again.already, again.by) == ("already_running", "bob")
    assert resumed.seq <= again.seq
    with pytest.raises(ControlRefused) as refused:
        await run.resume("And be quick", actor="ada")
    assert (refused.value.reason, refused.value.by) == ("not_paused", "bob")
    assert "redirect" in refused.value.allowed
    stage.gate("b").set()
    await run.until("completed")


async def test_a_call_that_ignores_its_pause_keeps_the_run_pausing_and_is_named(
    opened: Opener,
) -> None:
    """Nobody can stop a thread. The run says so, and waits until a person has had enough."""
    gate, stage = threading.Event(), ControllableTools()

    @tool(in_process=True)
    def stubborn() -> str:
        """Wait where nobody can reach it."""
        anyio.from_thread.run_sync(stage.start("stubborn").set)
        gate.wait()
        return "done after all"

    model = Speaker(Line("", "", Use("stubborn")), "Done.")
    grace = timedelta(milliseconds=20)
    midrun = await opened(Agent("actor", model=model, tools=[stubborn], grace=grace))
    run = await midrun.start("actor", "go")
    await stage.start("stubborn").wait()
    try:
        shown: list[Delta] = []
        await run.pause(now=True)
        async for item in run.feed():
            if isinstance(item, Delta) and item.kind == "not_responding":
                shown.append(item)
                break
        view = await run.view()
        assert view.phase == "pausing"
        assert [call.id for call in view.in_flight] == [shown[0].call]
        assert view.in_flight[0].not_responding
        assert (await run.force_pause(actor="ada")).phase == "paused"
        assert [lost.why for lost in await entries(run, CallUnknown)] == ["forced"]
    finally:
        gate.set()
    late = await recorded(run, LateResult)
    assert late.result == "done after all"
    await run.resume()
    await run.until("completed")
    assert model.heard[1][-1].uses[0].result == "done after all"


async def test_after_a_forced_pause_a_person_is_asked_what_became_of_the_call(
    opened: Opener,
) -> None:
    """Nobody waited for it, so nobody knows; it is not made again on a guess."""
    gate, stage = threading.Event(), ControllableTools()

    @tool(in_process=True)
    def stubborn() -> str:
        """Wait where nobody can reach it."""
        anyio.from_thread.run_sync(stage.start("stubborn").set)
        gate.wait()
        raise ValueError("it did not work out")

    model = Speaker(Line("", "", Use("stubborn")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[stubborn]))
    run = await midrun.start("actor", "go")
    await stage.start("stubborn").wait()
    await run.pause()
    await run.force_pause()
    await run.resume()
    await run.until("waiting")
    gate.set()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.reason, outcome.asks[0].tool) == ("unsure", "stubborn")
    await run.answer("unknown")
    await run.until("completed")


async def test_a_pause_outlives_the_process_that_was_asked_for_it(
    path: Path, tmp_path: Path, opened: Opener
) -> None:
    """Killed while pausing: whoever comes next says *paused*, and what nobody knows."""
    with child("drive", path, tmp_path, "charge", "charge:after") as talk:
        run_id = talk.hear()
        midrun = await opened()
        run = await midrun.get(run_id)
        receipt = await run.pause()
        assert (receipt.phase, receipt.applied) == ("pausing", False)
        assert [call.tool for call in (await run.view()).in_flight] == ["charge"]
        talk.kill()
    world = World(tmp_path)
    agents = [world.agent("charge")]
    async with Midrun(kept_at(path), agents=agents, outside=LATER) as next_one:
        found = await next_one.get(run_id)
        await found.until("paused")
        assert [lost.why for lost in await entries(found, CallUnknown)] == ["orphaned"]
        assert len(await entries(found, CallStarted)) == 2
    assert world.told() == ["charge a"]


async def test_a_tool_that_asks_while_the_run_is_pausing_is_parked_with_it(
    opened: Opener,
) -> None:
    """Paused, not waiting: the person who paused has the word, and then the question."""
    stage = ControllableTools()

    @tool
    async def curious() -> str:
        """Ask when the test says so."""
        stage.start("curious").set()
        await stage.gate("curious").wait()
        pause_here("Which?")

    model = Speaker(Line("", "", Use("curious")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[curious]))
    run = await midrun.start("actor", "go")
    await stage.start("curious").wait()
    await run.pause()
    stage.gate("curious").set()
    view = await run.until("paused")
    assert [ask.question for ask in view.asks] == ["Which?"]
    assert (await run.resume()).phase == "waiting"
    await run.answer("this")
    await run.until("completed")
    assert model.heard[1][-1].uses[0].result == "this"
