"""Side questions: nested, dropped and resumed frames, several processes, child runs."""

from pathlib import Path

import pytest

from midrun import Completed, ControlRefused, Midrun, Run
from midrun.core.entries import FrameAbandoned, FramePushed, FrameResumed, MessageClosed
from midrun.core.transcript import Transcript, Turn
from midrun.models import Use
from midrun.models.scripted import Line
from tests.scenarios.conversation.toolkit import ApprovalToolkit, make_parent
from tests.support.run_journal import read_entries, read_turns, wait_for_child, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

HELD_TOPIC_MAX_CHARS = 200  # the text about a held topic in a prompt


async def start_side_question(
    opened: OpenMidrun, toolkit: ApprovalToolkit, *rest: object, frame_depth: int = 4
) -> Run:
    """Return a run whose task is held, with a call of a side question in flight."""
    script = (Use("slow", name="main"), Use("slow", name="side"), *rest)
    agent = toolkit.agent(*script, frame_depth=frame_depth)
    run = await (await opened(agent)).start("actor", "Main")
    await toolkit.start("main").wait()
    await run.say("Side?")
    toolkit.gate("main").set()
    await toolkit.start("side").wait()
    return run


async def test_a_dropped_topic_is_named_in_the_next_reply(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    run = await start_side_question(opened, toolkit, "Side answer.", "Main.")
    (frame,) = (await run.view()).frames
    await run.drop_frame(frame.id, actor="ada")
    toolkit.gate("side").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.startswith("Dropped *Main*")
    (abandoned,) = await read_entries(run, FrameAbandoned)
    assert (abandoned.why, abandoned.by) == ("dropped", "ada")


async def test_only_the_top_frame_can_be_dropped_or_resumed(opened: OpenMidrun) -> None:
    """The refusal names the top frame."""
    toolkit = ApprovalToolkit()
    run = await start_side_question(
        opened, toolkit, Use("slow", name="inner"), "1.", "2.", "3.", "4."
    )
    await run.say("Inner?")
    toolkit.gate("side").set()
    await toolkit.start("inner").wait()
    below, top = (frame.id for frame in (await run.view()).frames)
    for control in (run.drop_frame(below), run.resume_frame(below)):
        with pytest.raises(ControlRefused) as refusal:
            await control
        assert (refusal.value.reason, refusal.value.by) == ("frame_not_on_top", top)
    with pytest.raises(ControlRefused) as unknown:
        await run.drop_frame("f99")
    assert unknown.value.reason == "no_such_frame"
    toolkit.gate("inner").set()
    await run.until("completed")


async def test_a_person_can_resume_a_frame_before_the_question_is_answered(
    opened: OpenMidrun,
) -> None:
    """The journal has the person, and the reply names the topic."""
    toolkit = ApprovalToolkit()
    run = await start_side_question(opened, toolkit, "Main.", "Main.")
    (frame,) = (await run.view()).frames
    await run.resume_frame(frame.id, actor="ada")
    toolkit.gate("side").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "Back to *Main*" in outcome.output
    (resumed,) = await read_entries(run, FrameResumed)
    assert resumed.by == "ada"


async def test_three_nested_side_questions_resume_three_topics(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    run = await start_side_question(
        opened,
        toolkit,
        Use("slow", name="inner"),
        "Inmost.",
        "Inner.",
        "Side.",
        "Main.",
    )
    await run.say("Inner?")
    toolkit.gate("side").set()
    await toolkit.start("inner").wait()
    await run.say("Inmost?")
    toolkit.gate("inner").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    resumed_topics = [
        resumed.text.split("*")[1] for resumed in await read_entries(run, FrameResumed)
    ]
    assert resumed_topics == ["Inner?", "Side?", "Main"]
    assert outcome.output.endswith("Main.")


async def test_the_plan_returns_after_a_side_question_with_its_own_plan(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(
        Use("plan", items=["A", "B", "C"], marks={"1": "done"}),
        Use("slow", name="main"),
        Use("plan", items=["only this"]),
        "Side.",
        Use("slow", name="again"),
        "Main.",
    )
    run = await (await opened(agent)).start("actor", "Main")
    await toolkit.start("main").wait()
    await run.say("Side?")
    toolkit.gate("main").set()
    await toolkit.start("again").wait()
    view = await run.view()
    assert (view.position, [item.text for item in view.plan]) == (
        "plan 2/3",
        ["A", "B", "C"],
    )
    toolkit.gate("again").set()
    await run.until("completed")


async def test_the_text_about_a_held_topic_is_limited(opened: OpenMidrun) -> None:
    """A long task is not sent again for each side question."""
    toolkit = ApprovalToolkit()
    prompt: list[Turn] = []

    def record_prompt(messages: Transcript) -> Line:
        prompt.extend(messages)
        return "Side."

    agent = toolkit.agent(Use("slow", name="main"), record_prompt, "Main.")
    run = await (await opened(agent)).start("actor", "A long task. " * 1_000)
    await toolkit.start("main").wait()
    await run.say("Side?")
    toolkit.gate("main").set()
    await run.until("completed")
    frame_turns = [
        turn for turn in [*prompt, *await read_turns(run)] if turn.kind in {"held", "back"}
    ]
    assert len(frame_turns) >= 2
    assert max(len(turn.text) for turn in frame_turns) <= HELD_TOPIC_MAX_CHARS


async def test_held_frames_survive_their_process(opened: OpenMidrun, path: Path) -> None:
    """The next process answers the question, and returns to the held topic."""
    toolkit = ApprovalToolkit()
    script = (Use("read", name="main"), Use("read", name="side"), "Side.", "Main.")
    async with Midrun(get_store_url(path), agents=[toolkit.agent(*script)]) as first:
        run = await first.start("actor", "Main")
        await toolkit.start("main").wait()
        await run.say("Side?")
        toolkit.gate("main").set()
        await toolkit.start("side").wait()
    toolkit.gate("side").set()
    run = await (await opened(toolkit.agent(*script))).get(run.id)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    (resumed,) = await read_entries(run, FrameResumed)
    assert outcome.output == f"{resumed.text}\n\nMain."


async def test_a_side_question_before_a_cancel_is_returned(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("slow", name="main"), "x")
    run = await (await opened(agent)).start("actor", "Main")
    await toolkit.start("main").wait()
    await run.say("Side?")
    await run.cancel()
    await run.until("cancelled")
    (message,) = await read_entries(run, MessageClosed)
    assert (message.why, message.text) == ("returned", "Side?")


async def test_a_side_question_to_a_parent_waits_until_its_child_has_finished(
    opened: OpenMidrun,
) -> None:
    """The child is a call in flight."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("slow", name="x"), "Found.", name="aide")
    script = [Use("aide", task="Find"), "Tuesday.", "Done."]
    midrun = await opened(make_parent(child_agent, turns=script))
    run = await midrun.start("parent", "Main")
    await toolkit.start("x").wait()
    receipt = await run.say("What day is it?")
    assert receipt.acknowledgement == "Hold on — finishing *Main* first"
    toolkit.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("Done.")
    assert toolkit.called == ["x"]


async def test_a_side_question_to_the_child_is_answered_by_the_child(
    opened: OpenMidrun,
) -> None:
    """The parent gets the result of the child, not the side answer."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("slow", name="x"), "Tuesday.", "Found.", name="aide")
    script = [Use("aide", task="Find"), lambda messages: str(messages[-1].uses[0].result)]
    midrun = await opened(make_parent(child_agent, turns=script))
    run = await midrun.start("parent", "Main")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await child.say("What day is it?")
    toolkit.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("Found.")
    assert len(await read_entries(child, FramePushed)) == 1


async def test_a_redirect_during_a_side_question_resumes_or_abandons_the_held_frame(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    run = await start_side_question(opened, toolkit, "New.", "Main.", "Main.")
    await run.redirect("Look elsewhere")
    toolkit.gate("side").set()
    await run.until("completed")
    pushed_count = len(await read_entries(run, FramePushed))
    closed_count = len(await read_entries(run, FrameResumed)) + len(
        await read_entries(run, FrameAbandoned)
    )
    assert pushed_count == closed_count == 1


async def test_a_side_question_over_the_frame_depth_is_answered_before_the_run_ends(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()

    def next_turn(messages: Transcript) -> Line:
        newest = next(t for t in reversed(messages) if t.role == "user")
        return f"Re {newest.text}"

    run = await start_side_question(
        opened, toolkit, next_turn, next_turn, next_turn, next_turn, next_turn, frame_depth=1
    )
    await run.say("Second?")
    toolkit.gate("side").set()
    await wait_for_entry(run, FrameResumed)
    await run.until("completed")
    replies = [t.text for t in await read_turns(run) if t.role == "assistant"]
    assert any("Re Second?" in text for text in replies)
