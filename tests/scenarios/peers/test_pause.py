"""Pause, compared with other frameworks: questions in a batch of calls, and partial output.

The docstrings name the framework and the failure that was seen there.
"""

import anyio
import pytest

from midrun import Agent, Checkpoint, Completed, ControlRefused, Paused
from midrun.core.transcript import CallResult
from midrun.models import Use
from tests.scenarios.peers.toolkit import (
    PeerToolkit,
    SlowModel,
    read_entry_kinds,
    wait_for_entries,
    wait_for_text,
)
from tests.unit.runs.conftest import OpenMidrun

BATCH = [Use("quick", name="a"), Use("ask", name="b"), Use("quick", name="c")]


def read_last_results(toolkit: PeerToolkit) -> list[tuple[str, object]]:
    """Return tool and result of each call in the last prompt, in their order."""
    calls: tuple[CallResult, ...] = toolkit.prompts[-1][-1].uses
    return [(call.tool, call.problem or call.result) for call in calls]


async def test_calls_beside_a_question_are_made_once(opened: OpenMidrun) -> None:
    """LangGraph: the calls beside a question are made again after the answer."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(BATCH, toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    assert sorted(toolkit.completed) == ["a", "c"]
    await run.answer("blue")
    await run.until("completed")
    assert sorted(toolkit.called) == ["a", "b", "c"]


async def test_a_call_after_a_question_is_made_and_has_its_result(opened: OpenMidrun) -> None:
    """Agentfootprint: later calls of the batch are dropped; the history lacks their results."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(BATCH, toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.answer("blue")
    await run.until("completed")
    assert read_last_results(toolkit) == [
        ("quick", "a done"),
        ("ask", "blue"),
        ("quick", "c done"),
    ]


async def test_a_batch_is_complete_after_a_resume_from_the_checkpoint_elsewhere() -> None:
    """LangGraph, Agentfootprint: the same two failures, in the process that resumes."""
    first, second = PeerToolkit(), PeerToolkit()
    outcome = await first.agent(BATCH, first.record_then_say("Done.")).run("go")
    assert isinstance(outcome, Paused)
    checkpoint = Checkpoint.from_json(outcome.checkpoint.to_json())
    ended = await second.agent(BATCH, second.record_then_say("Done.")).resume(
        checkpoint, "blue"
    )
    assert isinstance(ended, Completed)
    assert sorted(first.called) == ["a", "b", "c"]
    assert second.called == []
    assert read_last_results(second) == [
        ("quick", "a done"),
        ("ask", "blue"),
        ("quick", "c done"),
    ]


async def test_two_questions_of_one_batch_are_open_together(opened: OpenMidrun) -> None:
    """Agentfootprint: one question for each resume; a second one is an error."""
    toolkit = PeerToolkit()
    batch = [Use("ask", name="a"), Use("quick", name="b"), Use("ask", name="c")]
    midrun = await opened(toolkit.agent(batch, toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    asks = (await run.until("waiting")).asks
    assert [ask.question for ask in asks] == ["What about a?", "What about c?"]
    with pytest.raises(ControlRefused, match="several_asks_open"):
        await run.answer("for which?")
    await run.answer("for c", ask=asks[1].id)
    assert (await run.view()).phase == "waiting"
    await run.answer("for a", ask=asks[0].id)
    await run.until("completed")
    assert read_last_results(toolkit) == [
        ("ask", "for a"),
        ("quick", "b done"),
        ("ask", "for c"),
    ]


async def test_an_answer_goes_to_the_call_that_asked(opened: OpenMidrun) -> None:
    """Mastra: resume data reaches the wrong one of two suspended calls of the same tool."""
    toolkit = PeerToolkit()
    batch = [Use("ask", name=name) for name in "abc"]
    midrun = await opened(toolkit.agent(batch, toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    asks = (await run.until("waiting")).asks
    for ask in reversed(asks):
        await run.answer(f"to {ask.question}", ask=ask.id)
    await run.until("completed")
    assert read_last_results(toolkit) == [("ask", f"to What about {name}?") for name in "abc"]


async def test_a_pause_in_the_middle_of_a_batch_keeps_every_call(opened: OpenMidrun) -> None:
    """Other frameworks repeat finished calls of the batch, or drop others."""
    toolkit = PeerToolkit()
    batch = [Use("quick", name="a"), Use("slow", name="b"), Use("ask", name="c")]
    midrun = await opened(toolkit.agent(batch, toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    await toolkit.start("b").wait()
    await run.pause()
    toolkit.gate("b").set()
    await run.until("paused")
    await run.resume()
    await run.until("waiting")
    await run.answer("blue")
    await run.until("completed")
    assert sorted(toolkit.called) == ["a", "b", "c"]
    assert read_last_results(toolkit) == [
        ("quick", "a done"),
        ("slow", "b done"),
        ("ask", "blue"),
    ]


async def test_after_a_pause_now_the_model_gets_the_outcome_of_every_call(
    opened: OpenMidrun,
) -> None:
    """Agent Framework: after an interrupt the history has to be repaired by hand."""
    toolkit = PeerToolkit()
    batch = [Use("quick", name="a"), Use("slow", name="b"), Use("pay", amount=5, to="bob")]
    midrun = await opened(toolkit.agent(batch, toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    await toolkit.start("b").wait()
    await run.pause(now=True)
    await run.until("paused")
    await run.redirect("Leave it")
    await run.until("completed")
    (a, b, pay) = toolkit.prompts[-1][-2].uses
    assert (a.result, b.result, pay.result) == ("a done", None, None)
    assert b.problem.startswith("stopped midway")
    assert pay.problem.startswith("not executed")
    assert toolkit.called == ["a", "b"]


# ── partial output ────────────────────────────────────────────────────────────────────────


async def test_the_partial_text_of_the_model_survives_a_cancel(opened: OpenMidrun) -> None:
    """LangGraph, OpenAI, ADK: the streamed text is lost; Strands: a notice replaces it."""
    agent = Agent("writer", model=SlowModel(["Half a sentence, cut."]))
    midrun = await opened(agent)
    run = await midrun.start(agent, "write")
    text = await wait_for_text(run)
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert text
    assert report.partial == text
    assert text.strip() in str(report)


async def test_the_partial_text_of_the_model_survives_a_pause_and_is_marked_as_interrupted(
    opened: OpenMidrun,
) -> None:
    """Strands drops it; other frameworks repeat the model call without it."""
    model = SlowModel(["Half a sentence, cut.", "And the rest."])
    agent = Agent("writer", model=model)
    midrun = await opened(agent)
    run = await midrun.start(agent, "write")
    text = await wait_for_text(run)
    await run.pause()
    await run.until("paused")
    cut = (await run.result()).checkpoint.state().messages[-1]  # type: ignore[union-attr]  # it is paused
    assert (cut.role, cut.text, cut.interrupted) == ("assistant", text, True)


async def test_the_model_stream_is_closed_before_the_run_is_paused(opened: OpenMidrun) -> None:
    """Strands: the provider's stream is left to the garbage collector, and is billed."""
    model = SlowModel(["Half a sentence, cut."])
    agent = Agent("writer", model=model)
    midrun = await opened(agent)
    run = await midrun.start(agent, "write")
    await wait_for_text(run)
    assert model.streams == ["open"]
    await run.pause()
    await run.until("paused")
    assert model.streams == ["closed"]


async def test_a_run_without_watchers_can_be_paused_and_resumed(opened: OpenMidrun) -> None:
    """OpenAI: only a streamed run can be stopped; Pydantic AI: a stopped run is over."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.pause()
    toolkit.gate("a").set()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    await run.resume()
    await run.until("completed")
    assert toolkit.completed == ["a"]


async def test_a_run_is_not_paused_while_a_tool_is_running(opened: OpenMidrun) -> None:
    """OpenHands: PAUSED is reported while tools are running."""
    toolkit = PeerToolkit()
    midrun = await opened(
        toolkit.agent([Use("slow", name="a"), Use("slow", name="b")], "Done.")
    )
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await toolkit.start("b").wait()
    await run.pause()
    toolkit.gate("a").set()
    await wait_for_entries(run, "CallDone", 2)  # the model call, and tool call a
    assert (await run.view()).phase == "pausing"
    toolkit.gate("b").set()
    await run.until("paused")
    kinds = await read_entry_kinds(run)
    assert kinds.index("RunPaused") > max(n for n, k in enumerate(kinds) if k == "CallDone")


async def test_the_feed_of_an_ended_run_returns_the_missed_entries_and_ends(
    opened: OpenMidrun,
) -> None:
    """In other frameworks the stream of an ended run cannot be opened again."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent("Done."))
    run = await midrun.start("actor", "go")
    view = await run.until("completed")
    with anyio.fail_after(60):
        missed = [item.seq async for item in run.feed(after=1)]
        nothing = [item async for item in run.feed(after=view.seq)]
    assert missed == list(range(2, view.seq + 1))
    assert nothing == []
