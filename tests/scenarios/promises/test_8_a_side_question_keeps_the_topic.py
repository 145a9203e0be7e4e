"""Promise 8: a side question does not lose the topic.

It is acknowledged at once and answered. Then the run says where it continues: in the journal,
in its output and in the prompt of the model.
"""

import itertools
from datetime import timedelta

import anyio
import pytest

from midrun import Agent, Completed, ControlRefused, ask_human
from midrun.core.entries import (
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    MessageReceived,
)
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.support.run_journal import read_entries, read_turns
from tests.unit.runs.conftest import OpenMidrun

PLAN = ["Find papers", "Read them", "Synthesise"]


async def test_a_side_question_is_answered_and_the_run_says_where_it_continues(
    opened: OpenMidrun,
) -> None:
    """With a plan, the sentence counts the plan items."""
    tools = ControllableTools()
    prompt: list[str] = []

    def continue_task(messages: Transcript) -> str:
        prompt.extend(turn.text for turn in messages)
        return "The synthesis."

    agent = tools.agent(
        Use("plan", items=PLAN, marks={"1": "done", "2": "running"}),
        Use("slow", name="reading"),
        "It was Tuesday's paper.",
        continue_task,
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Literature synthesis")
    await tools.start("reading").wait()
    receipt = await run.say("What was that paper from Tuesday?")
    assert not receipt.applied
    assert receipt.acknowledgement == "Hold on — finishing *Read them* first"
    tools.gate("reading").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    back = "Back to *Literature synthesis* — plan 2/3"
    assert outcome.output == f"{back}\n\nThe synthesis."
    assert back in prompt
    (pushed,) = await read_entries(run, FramePushed)
    assert (pushed.goal, pushed.done, pushed.total) == ("Literature synthesis", 1, 3)
    (resumed,) = await read_entries(run, FrameResumed)
    assert resumed.text == back
    assert tools.called == ["reading"]


async def test_a_side_question_with_urgency_now_closes_the_model_stream(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    model = ScriptedModel(
        ["A long sentence that goes on.", "The answer.", "Done."], chunk_delay=0.02
    )
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "Write")
    async for item in run.feed():
        if item.seq is None:
            break
    receipt = await run.say("Which style?", urgency="now")
    assert receipt.acknowledgement == "Switching: *Which style?*"
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "Back to *Write*" in outcome.output


async def test_a_message_with_urgency_later_holds_no_topic(opened: OpenMidrun) -> None:
    """It is handled after the task, as a part of the task."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "First.", "And that."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    assert (
        await run.say("And that too", urgency="later")
    ).acknowledgement == "Noted — after *go*"
    tools.gate("a").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "And that."
    assert not await read_entries(run, FramePushed)


async def test_a_nested_side_question_returns_to_both_topics_by_name(
    opened: OpenMidrun,
) -> None:
    """The topic that was held last is resumed first."""
    tools = ControllableTools()
    agent = tools.agent(
        Use("slow", name="main"),
        Use("slow", name="side"),
        "Inner answer.",
        "Outer answer.",
        "Main answer.",
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Main")
    await tools.start("main").wait()
    await run.say("Outer?")
    tools.gate("main").set()
    await tools.start("side").wait()
    assert len((await run.view()).frames) == 1
    await run.say("Inner?")
    tools.gate("side").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    goals = [frame.goal for frame in await read_entries(run, FramePushed)]
    assert goals == ["Main", "Outer?"]
    words = [frame.text for frame in await read_entries(run, FrameResumed)]
    assert [word.partition(" — ")[0] for word in words] == [
        "Back to *Outer?*",
        "Back to *Main*",
    ]


async def test_a_message_is_queued_while_the_run_holds_its_maximum_of_topics(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    agent = tools.agent(
        Use("slow", name="main"),
        Use("slow", name="side"),
        "One.",
        "Two.",
        "Main.",
        frame_depth=1,
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Main")
    await tools.start("main").wait()
    await run.say("One?")
    tools.gate("main").set()
    await tools.start("side").wait()
    receipt = await run.say("Two?")
    assert (receipt.applied, receipt.acknowledgement[:5]) == (False, "Noted")
    tools.gate("side").set()
    assert isinstance(await run.result(), Completed)
    received = await read_entries(run, MessageReceived)
    assert [message.queued for message in received] == [False, True]
    assert len(await read_entries(run, FramePushed)) >= 1


async def test_a_topic_held_longer_than_its_ttl_is_reconstructed(
    opened: OpenMidrun,
) -> None:
    """The output says that it is a reconstruction."""
    tools = ControllableTools()
    agent = tools.agent(
        Use("slow", name="main"),
        "Quick answer.",
        "Main.",
        frame_ttl=timedelta(microseconds=1),
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Main")
    await tools.start("main").wait()
    await run.say("Quick?")
    tools.gate("main").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "reconstruction, not a continuation" in outcome.output
    assert len(await read_entries(run, FrameReconstructed)) == 1
    assert not await read_entries(run, FrameResumed)


async def test_a_cancel_journals_the_held_topic_as_abandoned(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="main"), Use("slow", name="side"), "x"))
    run = await midrun.start("actor", "Main")
    await tools.start("main").wait()
    await run.say("Side?")
    tools.gate("main").set()
    await tools.start("side").wait()
    await run.cancel()
    await run.until("cancelled")
    (gone,) = await read_entries(run, FrameAbandoned)
    assert gone.why == "cancelled"


async def test_a_side_question_to_a_paused_run_waits_for_the_resume(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="main"), "Side.", "Main."))
    run = await midrun.start("actor", "Main")
    await tools.start("main").wait()
    await run.pause()
    tools.gate("main").set()
    await run.until("paused")
    await run.say("Side?")
    assert (await run.view()).phase == "paused"
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Back to *Main* — turn 1\n\nMain."


async def test_a_waiting_run_answers_a_side_question_and_keeps_its_ask_open(
    opened: OpenMidrun,
) -> None:
    """A worker drives the run to answer it; then the run waits again."""
    tools = ControllableTools()
    model = ScriptedModel([Use("ask_human", question="Which?"), "Tuesday.", "Red it is."])
    midrun = await opened(Agent("actor", model=model, tools=[ask_human, *tools.tools()]))
    run = await midrun.start("actor", "Main")
    await run.until("waiting")
    await run.say("What day is it?")
    with anyio.fail_after(60):
        while not await read_entries(run, FrameResumed):
            await run.until("waiting")
    await run.answer("red")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("Red it is.")


@pytest.mark.parametrize("urgency", ["now", "next"])
async def test_a_side_question_at_the_moment_of_completion_is_answered_or_refused(
    opened: OpenMidrun, urgency: str
) -> None:
    """It is answered if it is journaled before the completion."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="main"), "Main.", "Side.", "Again."))
    run = await midrun.start("actor", "Main")
    await tools.start("main").wait()
    tools.gate("main").set()
    try:
        await run.say("Side?", urgency=urgency)  # type: ignore[arg-type]  # one of three
    except ControlRefused as refused:
        assert refused.reason == "is_completed"  # noqa: PT017 - if not refused, it is answered
        assert not await read_entries(run, MessageReceived)
        return
    assert isinstance(await run.result(), Completed)
    after = itertools.dropwhile(lambda turn: turn.text != "Side?", await read_turns(run))
    assert [turn for turn in after if turn.role == "assistant"]
