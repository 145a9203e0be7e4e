"""Cancel stops what it says it stops. The failures named here were seen in other frameworks."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from select import select

import anyio.to_thread
import pytest

from midrun import Agent, Cancelled, ControlRefused
from midrun.models import ScriptedModel
from midrun.models.scripted import Line
from tests.scenarios.peers.cast import Cast, Use, entry, journal
from tests.scenarios.peers.deeds import BEGUN, GATE, carve, stamp, stamp_soon, warm_up
from tests.unit.driver.subprocess.deeds import hold_with_family
from tests.unit.driver.subprocess.scene import Middle, Watch, is_there
from tests.unit.runs.conftest import Opener


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Middle]:
    """Give what a blocking tool says when it has begun, waits for, and does in the end."""
    middle = Middle(tmp_path)
    yield middle
    middle.fifo.close()
    middle.gate.close()


@pytest.fixture
def thread() -> Iterator[None]:
    """Let the thread go at the end, whatever the test found."""
    BEGUN.clear()
    GATE.clear()
    yield
    GATE.set()


async def test_the_effect_of_a_blocking_tool_does_not_land_after_the_cancel(
    opened: Opener, held: Middle
) -> None:
    """LangGraph, OpenAI, Pydantic AI: the cancel returns at once; the effect lands later."""
    use = Use("stamp", **held.args)
    agent = Agent("stamper", model=ScriptedModel([use, "never"]), tools=[stamp])
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    (pid,) = await held.fifo.hear()
    process = Watch(pid)
    await run.cancel()
    await run.until("cancelled")
    held.gate.open()
    await process.end()
    assert not held.effect.exists()
    assert [deed.tool for deed in (await run.report()).stopped] == ["stamp"]


async def test_what_a_tool_has_started_ends_with_it(opened: Opener, held: Middle) -> None:
    """Codex: Stop ends the turn, and the command that the tool had started lives on."""
    use = Use("hold_with_family", **held.args)
    agent = Agent("parent", model=ScriptedModel([use, "never"]), tools=[hold_with_family])
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    family = [Watch(pid) for pid in await held.fifo.hear()]
    assert len(family) == 3
    await run.cancel()
    await run.until("cancelled")
    for _ in family:
        held.gate.open()
    for process in family:
        await process.end()
    assert not held.effect.exists()


async def test_a_blocking_tool_that_takes_too_long_is_not_left_running(
    opened: Opener, held: Middle
) -> None:
    """Pydantic AI: a blocking tool whose time is up is abandoned in silence, and goes on."""
    use = Use("stamp_soon", **held.args)
    cast = Cast()
    model = ScriptedModel([Use("warm_up"), use, cast.says("Too slow.")])
    agent = Agent("stamper", model=model, tools=[warm_up, stamp_soon])
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    await run.until("completed")
    if select([held.fifo._fd], [], [], 0)[0]:  # or it was too slow even to begin
        (pid,) = await held.fifo.hear()
        assert not is_there(pid)
    held.gate.open()
    assert cast.heard[-1][-1].uses[0].problem.startswith("stopped midway")
    assert not held.effect.exists()


@pytest.mark.usefixtures("thread")
async def test_a_tool_that_nobody_can_stop_is_reported_as_unsure(
    opened: Opener, tmp_path: Path
) -> None:
    """Pydantic AI: the history says "interrupted" of a call that goes on to take effect."""
    effect = tmp_path / "effect"
    model = ScriptedModel([Use("carve", effect=str(effect)), "never"])
    agent = Agent("carver", model=model, tools=[carve], grace=timedelta(milliseconds=20))
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    await anyio.to_thread.run_sync(BEGUN.wait)
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert [deed.tool for deed in report.unsure] == ["carve"]
    assert not report.stopped
    assert not report.clean
    GATE.set()
    await entry(run, "LateResult")
    assert effect.exists()


@pytest.mark.usefixtures("thread")
async def test_a_cancel_is_heard_while_a_blocking_tool_is_still_busy(
    opened: Opener, tmp_path: Path
) -> None:
    """ADK: a blocking tool holds the event loop, and the abort is seen when it has finished."""
    effect = tmp_path / "effect"
    model = ScriptedModel([Use("carve", effect=str(effect)), "never"])
    agent = Agent("carver", model=model, tools=[carve], grace=timedelta(hours=1))
    midrun = await opened(agent)
    run = await midrun.start(agent, "go")
    await anyio.to_thread.run_sync(BEGUN.wait)
    receipt = await run.cancel()
    view = await run.view()
    assert (receipt.phase, view.phase) == ("cancelling", "cancelling")
    assert [call.tool for call in view.in_flight] == ["carve"]
    assert not effect.exists()
    GATE.set()
    await run.until("cancelled")
    assert [deed.tool for deed in (await run.report()).done] == ["carve"]


async def test_an_async_tool_is_stopped_without_looking_for_a_signal(opened: Opener) -> None:
    """Strands: tools in flight run to their end unless they poll a flag."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.cancel()
    await run.until("cancelled")
    assert (cast.stopped, cast.completed) == (["a"], [])


async def test_an_agent_that_is_a_tool_of_another_is_stopped_with_it(opened: Opener) -> None:
    """ADK: the signal does not reach an agent that works as a tool; it works on."""
    cast = Cast()
    aide = cast.agent(Use("slow", name="a"), "never", name="aide")
    turns: list[Line] = [Use("aide", task="go"), "never"]
    midrun = await opened(Agent("actor", model=ScriptedModel(turns), tools=[aide.as_tool()]))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.cancel()
    await run.until("cancelled")
    assert (cast.stopped, cast.completed) == (["a"], [])
    assert {view.phase for view in (await midrun.runs()).items} == {"cancelled"}


async def test_cancelled_is_not_said_before_the_tool_has_stopped(opened: Opener) -> None:
    """LangGraph Server: the word changes first, and the worker stops some time after that."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("tidy", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.cancel()
    await cast.start("a stopping").wait()
    view = await run.view()
    assert view.phase == "cancelling"
    assert [call.tool for call in view.in_flight] == ["tidy"]
    cast.gate("a").set()
    await run.until("cancelled")
    assert cast.stopped == ["a"]


async def test_nothing_is_asked_of_the_model_after_a_cancel(opened: Opener) -> None:
    """Claude Code: "interrupted" is shown, and the agent carries on."""
    cast = Cast()
    turns = cast.says([Use("slow", name="a"), Use("slow", name="b")]), cast.says("never")
    midrun = await opened(cast.agent(*turns))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await cast.start("b").wait()
    await run.cancel()
    await run.until("cancelled")
    kinds = await journal(run)
    assert "CallStarted" not in kinds[kinds.index("CancelRequested") :]
    assert len(cast.heard) == 1


async def test_a_cancel_in_the_first_moment_is_not_lost(opened: Opener) -> None:
    """AG-UI: Stop pressed before the first token is lost, and the run ends in success."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await run.cancel()
    assert isinstance(await run.result(), Cancelled)
    assert cast.completed == []


async def test_a_run_that_waits_for_a_person_can_be_cancelled(opened: Opener) -> None:
    """Mastra: a suspended run cannot be aborted."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("ask", name="a"), "never"))
    run = await midrun.start("actor", "go")
    ask = (await run.until("waiting")).asks[0]
    await run.cancel(actor="ada")
    await run.until("cancelled")
    with pytest.raises(ControlRefused, match=r"ada was first .*ask_closed"):
        await run.answer("yes", ask=ask.id)


async def test_a_cancelled_run_never_comes_back(opened: Opener) -> None:
    """Claude Code: killed background agents come back and deliver their output."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.cancel()
    ended = await run.until("cancelled")
    again = await (await opened(cast.agent("never"))).get(run.id)
    with pytest.raises(ControlRefused):
        await again.resume("go on all the same")
    assert (await again.view()).seq == ended.seq
    assert cast.called == ["a"]


async def test_an_approved_call_is_not_made_twice_by_a_cancel_in_the_middle(
    opened: Opener,
) -> None:
    """Strands: an approved tool runs twice if the cancel lands while it is at work."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("pay", amount=5, to="bob"), "never"))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.approve(actor="ada")
    await cast.start("bob").wait()
    await run.cancel()
    await run.until("cancelled")
    assert (cast.called, cast.completed) == (["bob"], [])


async def test_what_was_in_flight_is_on_the_record(opened: Opener) -> None:
    """OpenAI: an immediate cancel drops the turn; the effect has happened, with no trace."""
    cast = Cast()
    turn = [Use("quick", name="a"), Use("slow", name="b")]
    midrun = await opened(cast.agent(turn, "never"))
    run = await midrun.start("actor", "go")
    await cast.start("b").wait()
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert [deed.args for deed in report.done] == ['{"name":"a"}']
    assert [deed.args for deed in report.stopped] == ['{"name":"b"}']


async def test_undo_takes_back_the_effects_and_keeps_the_record(opened: Opener) -> None:
    """LangGraph Server: a rollback deletes the run and its checkpoints; the effects stay."""
    cast = Cast()
    turns = Use("draft", name="1"), Use("draft", name="2"), Use("slow", name="x"), "never"
    midrun = await opened(cast.agent(*turns))
    run = await midrun.start("actor", "go")
    await cast.start("x").wait()
    before = await journal(run)
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert cast.undone == ["2", "1"]
    assert (await journal(run))[: len(before)] == before


async def test_cancelled_waiting_and_paused_are_three_words(opened: Opener) -> None:
    """LangGraph: a run that was cancelled and one that waits for a person look the same."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("ask", name="a"), "Done."))
    runs = [await midrun.start("actor", "go") for _ in range(3)]
    for run in runs:
        await run.until("waiting")
    await runs[1].pause()
    await runs[2].cancel()
    await runs[2].until("cancelled")
    phases = [(await run.view()).phase for run in runs]
    assert phases == ["waiting", "paused", "cancelled"]
