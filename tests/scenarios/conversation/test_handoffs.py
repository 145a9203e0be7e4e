"""Handoffs: another agent of the family continues the run, under every control."""

from pathlib import Path

import pytest

from midrun import Agent, Completed, Failed, Midrun, Misconfigured, Paused, tool
from midrun.core.entries import CapReached, HandedOff
from midrun.core.values import ModelSettings
from midrun.events import HandoffFinished
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxToolCalls
from midrun.testing.controllable_tools import ControllableTools
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, read_turns
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

TO_DESK = Use("hand_off_to_desk", why="it is a bill")


class Family:
    """`front` hands off to `desk`. Both have tools of the same names, with separate records."""

    def __init__(self, front: list[object], desk: list[object], **options: object) -> None:
        self.front_tools, self.desk_tools = ControllableTools(), ControllableTools()
        self.desk = self.desk_tools.agent(
            *desk, name="desk", instructions="You answer for bills.", handoffs=["front"]
        )
        self.front = self.front_tools.agent(
            *front, name="front", handoffs=[self.desk], **options
        )


async def test_the_other_agent_answers_with_its_own_tools_and_is_shown(
    opened: OpenMidrun,
) -> None:
    family = Family(
        [[Use("quick", name="a"), TO_DESK]], [Use("quick", name="b"), "The bill is 5."]
    )
    run = await (await opened(family.front)).start("front", "How much?")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "The bill is 5."
    assert (family.front_tools.completed, family.desk_tools.completed) == (["a"], ["b"])
    view = await run.view()
    assert (view.agent, view.speaker) == ("front", "desk")
    events = [event async for event in run.events()]
    (shown,) = (event for event in events if isinstance(event, HandoffFinished))
    assert (shown.previous, shown.agent, shown.reason) == ("front", "desk", "it is a bill")
    assert shown.sentence == "the agent front handed over to desk: it is a bill"
    assert "the agent desk began turn 2" in [event.sentence for event in events]
    report = await run.report()
    assert report.speakers == ("front", "desk")
    assert "- Handed over: front, then desk" in str(report)


async def test_two_agents_hand_the_run_to_each_other_and_caps_go_on_counting(
    opened: OpenMidrun,
) -> None:
    """The stop condition is that of the run, whichever agent speaks."""
    family = Family(
        [TO_DESK, Use("quick", name="again"), "Thanks."],
        [Use("hand_off_to_front")],
        stop=MaxToolCalls(2),
    )
    run = await (await opened(family.front)).start("front", "go")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "cap"
    assert len(await read_entries(run, CapReached)) == 1
    await run.resume(caps={"tool_calls": 9})
    assert (await run.until("completed")).output == "Thanks."
    handed_off = await read_entries(run, HandedOff)
    assert [entry.agent for entry in handed_off] == ["desk", "front"]
    assert (await run.view()).speaker == ""
    assert (await run.report()).speakers == ("front", "desk", "front")


async def test_instructions_model_and_settings_of_the_speaker_are_in_force(
    opened: OpenMidrun,
) -> None:
    front_model, desk_model = (
        GatedModel(GatedReply("", "", TO_DESK)),
        GatedModel("I am the desk."),
    )
    hot = ModelSettings(temperature=0.9)
    desk = Agent("desk", model=desk_model, instructions="You are the desk.", model_settings=hot)
    front = Agent("front", model=front_model, instructions="You are front.", handoffs=[desk])
    run = await (await opened(front)).start(front, "go")
    assert (await run.until("completed")).output == "I am the desk."
    (prompt,) = desk_model.prompts
    assert (prompt.instructions, prompt.settings) == ("You are the desk.", hot)
    assert [spec.name for spec in prompt.tools] == ["plan"]
    texts = [turn.text for turn in prompt.transcript]
    assert texts[0] == "go"


async def test_a_run_that_is_paused_before_the_handoff_continues_with_the_other_agent(
    opened: OpenMidrun,
) -> None:
    """Another process resumes it; the new instruction reaches the new speaker."""
    family = Family([[Use("slow", name="a"), TO_DESK]], [lambda messages: messages[-1].text])
    first = await opened(family.front)
    run = await first.start("front", "go")
    await family.front_tools.start("a").wait()
    await run.pause()
    family.front_tools.gate("a").set()
    assert (await run.until("paused")).speaker == ""
    await run.resume("Only this year.")
    view = await run.until("completed")
    assert (view.speaker, view.output) == ("desk", "Only this year.")


async def test_a_redirect_reaches_the_new_speaker(opened: OpenMidrun) -> None:
    family = Family([TO_DESK], [Use("slow", name="b"), lambda messages: messages[-1].text])
    run = await (await opened(family.front)).start("front", "go")
    await family.desk_tools.start("b").wait()
    await run.redirect("Vendor B instead.")
    family.desk_tools.gate("b").set()
    view = await run.until("completed")
    assert (view.speaker, view.output) == ("desk", "Vendor B instead.")


async def test_a_cancel_undoes_the_calls_of_the_former_speaker_with_its_own_tools(
    opened: OpenMidrun,
) -> None:
    family = Family(
        [[Use("draft", name="a"), TO_DESK]], [Use("draft", name="b"), Use("slow", name="c")]
    )
    run = await (await opened(family.front)).start("front", "go")
    await family.desk_tools.start("c").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (family.front_tools.undone, family.desk_tools.undone) == (["a"], ["b"])
    assert [call.tool for call in (await run.report()).undone] == ["draft", "draft"]


async def test_only_the_first_handoff_of_a_reply_is_made(opened: OpenMidrun) -> None:
    other = Agent("other", model=ScriptedModel([]))
    desk = Agent("desk", model=ScriptedModel(["Mine."]))
    script = [[TO_DESK, Use("hand_off_to_other")]]
    front = Agent("front", model=ScriptedModel(script), handoffs=[desk, other])
    run = await (await opened(front)).start(front, "go")
    assert (await run.until("completed")).output == "Mine."
    problems = [use.problem for turn in await read_turns(run) for use in turn.uses]
    assert problems == ["", "not made: desk continues"]


async def test_a_held_topic_returns_to_the_agent_that_held_it(opened: OpenMidrun) -> None:
    """The side question is handed off; the work is not."""
    family = Family(
        [Use("slow", name="a"), TO_DESK, "Work done."],
        ["A colleague."],
    )
    run = await (await opened(family.front)).start("front", "go")
    await family.front_tools.start("a").wait()
    await run.say("Who is eve?")
    family.front_tools.gate("a").set()
    view = await run.until("completed")
    assert (view.speaker, "Work done." in view.output) == ("", True)
    assert [entry.agent for entry in await read_entries(run, HandedOff)] == ["desk"]


async def test_an_agent_that_was_removed_fails_the_run_by_name_until_it_is_back(
    path: Path,
) -> None:
    """Its calls are not made with tools of another agent that have the same names."""
    family = Family([TO_DESK], [Use("slow", name="b"), "Done."])
    async with Midrun(get_store_url(path), agents=[family.front]) as midrun:
        run = await midrun.start("front", "go")
        await family.desk_tools.start("b").wait()
        await run.pause()
        family.desk_tools.gate("b").set()
        await run.until("paused")
    async with Midrun(
        get_store_url(path), agents=[ControllableTools().agent(name="front")]
    ) as midrun:
        run = await midrun.get(run.id)
        await run.resume()
        outcome = await run.result()
        assert isinstance(outcome, Failed)
        assert "The agent desk is not among the handoffs of front any more" in outcome.error
    async with Midrun(get_store_url(path), agents=[family.front]) as midrun:
        run = await midrun.get(run.id)
        await run.resume()
        assert (await run.until("completed")).output == "Done."


def test_a_handoff_that_cannot_work_is_refused_when_it_is_declared() -> None:
    desk = Agent("desk", model=ScriptedModel([]))
    twin = Agent("desk", model=ScriptedModel([]))
    for handoffs, problem in (
        ([desk, twin], "Two tools have the name hand_off_to_desk"),
        ("desk", "handoffs must be a list of agents"),
        ([tool], "handoffs must have agents or their names"),
    ):
        with pytest.raises(Misconfigured, match=problem):
            Agent("front", model=ScriptedModel([]), handoffs=handoffs)  # type: ignore[arg-type]  # on purpose
    lost = Agent("front", model=ScriptedModel([]), handoffs=["desk"])
    with pytest.raises(Misconfigured, match="Cannot hand off to desk"):
        lost.spec()


def test_the_fingerprint_covers_all_agents_of_the_family() -> None:
    """A run is not resumed by another version of an agent that it may be handed to."""

    def make_fingerprint(instructions: str) -> str:
        last = Agent("last", model=ScriptedModel([]), instructions=instructions)
        desk = Agent("desk", model=ScriptedModel([]), handoffs=[last])
        return Agent("front", model=ScriptedModel([]), handoffs=[desk]).fingerprint

    assert make_fingerprint("Be brief.") == make_fingerprint("Be brief.")
    assert make_fingerprint("Be brief.") != make_fingerprint("Be kind.")
