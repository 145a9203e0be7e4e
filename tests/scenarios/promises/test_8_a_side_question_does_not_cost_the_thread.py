"""Promise 8: a side question pushes a thought, is acknowledged at once, and the run comes back.

The acknowledgement is the runtime's, in words that are true; the way back is in the journal, in
the reply, and in what the model is given.
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
from tests.scenarios.promises.seen import entries, turns
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

PLAN = ["Find papers", "Read them", "Synthesise"]


async def test_a_question_mid_chain_is_answered_and_the_run_says_where_it_goes_on(
    opened: Opener,
) -> None:
    """With a plan, the way back counts its items."""
    stage = ControllableTools()
    heard: list[str] = []

    def goes_on(messages: Transcript) -> str:
        heard.extend(turn.text for turn in messages)
        return "The synthesis."

    agent = stage.agent(
        Use("plan", items=PLAN, marks={"1": "done", "2": "running"}),
        Use("slow", name="reading"),
        "It was Tuesday's paper.",
        goes_on,
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Literature synthesis")
    await stage.start("reading").wait()
    receipt = await run.say("What was that paper from Tuesday?")
    assert not receipt.applied
    assert receipt.said == "Hold on — finishing *Read them* first"
    stage.gate("reading").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    back = "Back to *Literature synthesis* — step 2 of 3"
    assert outcome.output == f"{back}\n\nThe synthesis."
    assert back in heard
    (pushed,) = await entries(run, FramePushed)
    assert (pushed.goal, pushed.done, pushed.total) == ("Literature synthesis", 1, 3)
    (resumed,) = await entries(run, FrameResumed)
    assert resumed.words == back
    assert stage.called == ["reading"]


async def test_a_question_that_cannot_wait_closes_the_stream_and_switches(
    opened: Opener,
) -> None:
    """Said *now*, it does not wait for the model to finish its sentence."""
    stage = ControllableTools()
    model = ScriptedModel(
        ["A long sentence that goes on.", "The answer.", "Done."], chunk_delay=0.02
    )
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "Write")
    async for item in run.feed():
        if item.seq is None:
            break
    receipt = await run.say("Which style?", urgency="now")
    assert receipt.said == "Switching: *Which style?*"
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "Back to *Write*" in outcome.output


async def test_later_never_pushes(opened: Opener) -> None:
    """It is more of the task, once the task is done."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "First.", "And that."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    assert (await run.say("And that too", urgency="later")).said == "Noted — after *go*"
    stage.gate("a").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "And that."
    assert not await entries(run, FramePushed)


async def test_a_question_inside_a_question_comes_back_to_both(opened: Opener) -> None:
    """Last in, first out; each by name."""
    stage = ControllableTools()
    agent = stage.agent(
        Use("slow", name="main"),
        Use("slow", name="side"),
        "Inner answer.",
        "Outer answer.",
        "Main answer.",
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Main")
    await stage.start("main").wait()
    await run.say("Outer?")
    stage.gate("main").set()
    await stage.start("side").wait()
    assert len((await run.view()).frames) == 1
    await run.say("Inner?")
    stage.gate("side").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    goals = [frame.goal for frame in await entries(run, FramePushed)]
    assert goals == ["Main", "Outer?"]
    words = [frame.words for frame in await entries(run, FrameResumed)]
    assert [word.partition(" — ")[0] for word in words] == [
        "Back to *Outer?*",
        "Back to *Main*",
    ]


async def test_a_full_stack_queues_the_message_and_takes_it_up_when_a_frame_closes(
    opened: Opener,
) -> None:
    """It is accepted, and says that it waits."""
    stage = ControllableTools()
    agent = stage.agent(
        Use("slow", name="main"),
        Use("slow", name="side"),
        "One.",
        "Two.",
        "Main.",
        frame_depth=1,
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Main")
    await stage.start("main").wait()
    await run.say("One?")
    stage.gate("main").set()
    await stage.start("side").wait()
    receipt = await run.say("Two?")
    assert (receipt.applied, receipt.said[:5]) == (False, "Noted")
    stage.gate("side").set()
    assert isinstance(await run.result(), Completed)
    received = await entries(run, MessageReceived)
    assert [message.queued for message in received] == [False, True]
    assert len(await entries(run, FramePushed)) >= 1


async def test_a_thought_that_was_held_too_long_comes_back_as_a_reconstruction(
    opened: Opener,
) -> None:
    """It says so instead of pretending to remember."""
    stage = ControllableTools()
    agent = stage.agent(
        Use("slow", name="main"),
        "Quick answer.",
        "Main.",
        frame_ttl=timedelta(microseconds=1),
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "Main")
    await stage.start("main").wait()
    await run.say("Quick?")
    stage.gate("main").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "reconstruction, not a continuation" in outcome.output
    assert len(await entries(run, FrameReconstructed)) == 1
    assert not await entries(run, FrameResumed)


async def test_a_cancel_gives_up_every_held_thought_by_name(opened: Opener) -> None:
    """None vanishes."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="main"), Use("slow", name="side"), "x"))
    run = await midrun.start("actor", "Main")
    await stage.start("main").wait()
    await run.say("Side?")
    stage.gate("main").set()
    await stage.start("side").wait()
    await run.cancel()
    await run.until("cancelled")
    (gone,) = await entries(run, FrameAbandoned)
    assert gone.why == "cancelled"


async def test_a_question_to_a_paused_run_waits_for_the_resume(opened: Opener) -> None:
    """Speaking is not resuming."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="main"), "Side.", "Main."))
    run = await midrun.start("actor", "Main")
    await stage.start("main").wait()
    await run.pause()
    stage.gate("main").set()
    await run.until("paused")
    await run.say("Side?")
    assert (await run.view()).phase == "paused"
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Back to *Main* — step 1\n\nMain."


async def test_a_question_to_a_run_that_waits_is_answered_and_the_ask_stays_open(
    opened: Opener,
) -> None:
    """The run is driven to answer it, and waits again."""
    stage = ControllableTools()
    model = ScriptedModel([Use("ask_human", question="Which?"), "Tuesday.", "Red it is."])
    midrun = await opened(Agent("actor", model=model, tools=[ask_human, *stage.tools()]))
    run = await midrun.start("actor", "Main")
    await run.until("waiting")
    await run.say("What day is it?")
    with anyio.fail_after(60):
        while not await entries(run, FrameResumed):
            await run.until("waiting")
    await run.answer("red")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("Red it is.")


@pytest.mark.parametrize("urgency", ["now", "next"])
async def test_a_question_at_the_moment_of_completion_is_answered_before_the_end(
    opened: Opener, urgency: str
) -> None:
    """Whoever speaks before the end is in the journal is heard, or told that it is over."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="main"), "Main.", "Side.", "Again."))
    run = await midrun.start("actor", "Main")
    await stage.start("main").wait()
    stage.gate("main").set()
    try:
        await run.say("Side?", urgency=urgency)  # type: ignore[arg-type]  # one of three
    except ControlRefused as refused:
        assert refused.reason == "is_completed"  # noqa: PT017 - else it came in time
        assert not await entries(run, MessageReceived)
        return
    assert isinstance(await run.result(), Completed)
    after = itertools.dropwhile(lambda turn: turn.text != "Side?", await turns(run))
    assert [turn for turn in after if turn.role == "assistant"]
