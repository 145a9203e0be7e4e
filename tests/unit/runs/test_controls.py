"""Controls reach the call: the whole way from a handle to a tool and back, on a real store."""

import anyio
import pytest

from midrun import Agent, Call, Completed, ControlRefused, Paused, tool
from midrun.driver.live import Delta
from midrun.models import ScriptedModel
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use


async def test_a_run_calls_its_tools_and_completes(opened: Opener) -> None:
    """The smallest whole run."""
    stage = ControllableTools()
    agent = stage.agent(["One. ", Use("quick", name="a")], "Done.")
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Done."
    assert stage.completed == ["a"]


async def test_a_pause_lets_the_tool_finish_and_resume_does_not_make_it_again(
    opened: Opener,
) -> None:
    """Pausing names what it waits for; paused is said when it is true."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    receipt = await run.pause(actor="ada")
    assert (receipt.phase, receipt.applied) == ("pausing", False)
    view = await run.view()
    assert [call.tool for call in view.in_flight] == ["slow"]
    stage.gate("a").set()
    await run.until("paused")
    assert stage.called == ["a"]
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "user"
    await run.resume()
    await run.until("completed")
    assert stage.completed == ["a", "b"]


async def test_pause_now_stops_the_tool_midway(opened: Opener) -> None:
    """It may have acted, so the agent is told, and nobody makes it again."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Told so."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause(now=True)
    await run.until("paused")
    assert (stage.stopped, stage.completed) == (["a"], [])
    await run.resume()
    await run.until("completed")
    assert stage.called == ["a"]  # a call that may have acted is not made again


async def test_cancel_stops_what_is_in_flight_and_undoes_it(opened: Opener) -> None:
    """Finished work is kept, what was held is released."""
    stage = ControllableTools()
    agent = stage.agent(
        [Use("draft", name="kept"), Use("lock", name="table")],
        Use("slow_draft", name="midway"),
        "never",
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("midway").wait()
    await run.cancel(reason="enough")
    await run.until("cancelled")
    assert stage.undone == ["midway"]
    assert stage.released == ["table"]
    report = await run.report()
    assert [deed.args for deed in report.done] == ['{"name":"kept"}']
    assert [deed.args for deed in report.released] == ['{"name":"table"}']
    assert [deed.args for deed in report.undone] == ['{"name":"midway"}']


async def test_cancel_all_undoes_what_was_finished_in_reverse_order(opened: Opener) -> None:
    """What came last goes first."""
    stage = ControllableTools()
    agent = stage.agent(
        Use("draft", name="1"), Use("draft", name="2"), Use("slow", name="x"), "never"
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("x").wait()
    await run.cancel(undo="all")
    await run.until("terminal")
    assert stage.undone == ["2", "1"]


async def test_redirect_now_reaches_the_model_with_what_changed(opened: Opener) -> None:
    """The tool is stopped, and the next thing the model reads is the instruction."""
    stage = ControllableTools()
    heard: list[str] = []

    def turn(messages: object) -> object:
        last = messages[-1]  # type: ignore[index]  # a transcript
        heard.append(last.text)
        return Use("slow", name="a") if len(heard) == 1 else "On the new course."

    agent = stage.agent(turn, turn)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    receipt = await run.redirect("Use the 2026 figures", when="now")
    assert not receipt.applied
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert heard[-1] == "Use the 2026 figures"
    assert stage.stopped == ["a"]


async def test_a_refusal_names_what_was_refused_and_what_is_possible(opened: Opener) -> None:
    """So that a surface can say it in words."""
    stage = ControllableTools()
    midrun = await opened(stage.agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.pause()
    assert (refused.value.reason, refused.value.phase) == ("is_completed", "completed")


async def test_the_feed_has_every_entry_once_and_the_words_as_they_come(opened: Opener) -> None:
    """Entries in order, without a gap; words only while somebody listens."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(["Let me see. ", Use("slow", name="a")], "Done now."))
    run = await midrun.start("actor", "go")
    seqs: list[int] = []
    words: list[str] = []
    async for item in run.feed():
        if isinstance(item, Delta):
            words.append(item.text)
            continue
        seqs.append(item.seq)
        if item.kind == "CallStarted" and len(seqs) > 4:
            stage.gate("a").set()
    assert seqs == list(range(1, len(seqs) + 1))
    assert all(isinstance(word, str) for word in words)


async def test_two_processes_one_drives_and_the_other_controls(opened: Opener) -> None:
    """Two stores on one file are all that two processes share."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow", name="a"), "Done."))
    watching = await opened()
    run = await driving.start("actor", "go")
    await stage.start("a").wait()
    other = await watching.get(run.id)
    await other.pause(now=True)
    await other.until("paused")
    assert stage.stopped == ["a"]
    with anyio.fail_after(60):
        await other.resume()
        await run.until("completed")


async def test_a_blocking_tool_in_a_thread_saves_how_far_it_is(opened: Opener) -> None:
    """Nothing can be awaited there: it is saved when the call returns."""

    @tool(in_process=True)
    def count(call: Call) -> object:
        """Count to two."""
        call.save(1)  # type: ignore[unused-awaitable]  # in a thread it is done by now
        call.note("one")  # type: ignore[unused-awaitable]  # as above
        return 2

    model = ScriptedModel([Use("count"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[count]))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    kinds = [item.kind async for item in run.feed()]
    assert "ProgressSaved" in kinds
