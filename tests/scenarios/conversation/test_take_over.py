"""Take over and hand back: a person writes and uses tools in place of the agent."""

import pytest

from midrun import Agent, Completed, ControlRefused, Paused, Run
from midrun.core.entries import CallProposed, HandedBack, PersonWrote, TakenOver
from midrun.core.transcript import Transcript, Turn
from midrun.models import Use
from tests.scenarios.conversation.toolkit import (
    OPERATOR,
    ApprovalToolkit,
    expect_refusal,
    make_parent,
)
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, read_turns, wait_for_child, wait_for_entry
from tests.unit.runs.conftest import OpenMidrun


async def start_taken_over_run(
    opened: OpenMidrun, toolkit: ApprovalToolkit, *rest: object
) -> Run:
    """Return a run that `ada` has taken over, after one call of its own."""
    agent = toolkit.agent(Use("slow", name="own"), *rest)
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("own").wait()
    assert not (await run.take_over(actor="ada")).applied
    toolkit.gate("own").set()
    await run.until("paused")
    return run


async def test_a_person_takes_over_writes_uses_a_tool_and_hands_back(
    opened: OpenMidrun,
) -> None:
    """The take-over takes effect when the call in flight has finished."""
    toolkit = ApprovalToolkit()
    prompt: list[Turn] = []

    def record_prompt(messages: Transcript) -> str:
        prompt.extend(messages)
        return "Thanks, Ada."

    run = await start_taken_over_run(opened, toolkit, record_prompt)
    view = await run.view()
    assert (view.phase, view.reason, toolkit.completed) == ("paused", "taken_over", ["own"])
    await run.write("Let me do this one.", actor="ada")
    await run.use_tool("quick", {"name": "by hand"}, actor="ada")
    await toolkit.start("by hand").wait()
    view = await run.until("paused")
    assert view.reason == "taken_over"
    await run.write("It is done.", actor="ada")
    await run.hand_back(actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Thanks, Ada."
    assert toolkit.completed == ["own", "by hand"]
    written = [(t.role, t.by, t.text) for t in prompt if t.kind == "person" and t.text]
    assert written == [
        ("assistant", "ada", "Let me do this one."),
        ("assistant", "ada", "It is done."),
    ]


async def test_the_model_gets_the_calls_of_the_person_and_their_results(
    opened: OpenMidrun,
) -> None:
    """Otherwise it would make the same calls again."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Thanks.")
    await run.use_tool("quick", {"name": "by hand"}, actor="ada")
    await toolkit.start("by hand").wait()
    await run.until("paused")
    await run.hand_back(actor="ada")
    await run.until("completed")
    uses = [use for turn in await read_turns(run) for use in turn.uses]
    assert [(use.args, use.result) for use in uses] == [
        ({"name": "own"}, "own done"),
        ({"name": "by hand"}, "by hand done"),
    ]


async def test_an_instruction_of_the_hand_back_is_the_newest_message_to_the_model(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, lambda messages: messages[-1].text)
    await run.hand_back("Now the other half", actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Now the other half"
    instructions = [t for t in await read_turns(run) if t.kind == "instruction"]
    assert [(t.role, t.by) for t in instructions] == [("user", "ada")]


async def test_others_are_refused_by_name_until_it_is_handed_back(opened: OpenMidrun) -> None:
    """The refusal names the person who has taken over."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    for control in (
        run.resume(actor="bob"),
        run.redirect("Elsewhere", actor="bob"),
        run.take_over(actor="bob"),
    ):
        refusal = await expect_refusal(control)
        assert (refusal.reason, refusal.by) == ("taken_over", "ada")
    for control in (
        run.write("Me too", actor="bob"),
        run.use_tool("quick", {"name": "bob's"}, actor="bob"),
        run.hand_back(actor="bob"),
    ):
        refusal = await expect_refusal(control)
        assert (refusal.reason, refusal.by) == ("not_taken_over", "ada")
    assert toolkit.called == ["own"]
    assert not await read_entries(run, PersonWrote)


async def test_an_operator_can_hand_back_for_another_person(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    await run.hand_back(actor=OPERATOR)
    assert isinstance(await run.result(), Completed)
    (hand_back,) = await read_entries(run, HandedBack)
    assert (hand_back.by, hand_back.role) == ("olga", "operator")


async def test_an_operator_can_take_over_from_another_person(opened: OpenMidrun) -> None:
    """The refusal of the first person names the operator."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    await run.take_over(actor=OPERATOR)
    refusal = await expect_refusal(run.write("Still me", actor="ada"))
    assert (refusal.reason, refusal.by) == ("not_taken_over", "olga")
    await run.write("It is me.", actor=OPERATOR)
    await run.hand_back(actor=OPERATOR)
    await run.until("completed")
    assert [take_over.by for take_over in await read_entries(run, TakenOver)] == ["ada", "olga"]


async def test_writing_is_refused_until_the_take_over_has_taken_effect(
    opened: OpenMidrun,
) -> None:
    """A call of the agent is still in flight."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("slow", name="own"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("own").wait()
    await run.take_over(actor="ada")
    assert (await expect_refusal(run.write("Hello", actor="ada"))).reason == "is_pausing"
    toolkit.gate("own").set()
    await run.until("paused")
    await run.write("Hello", actor="ada")
    await run.hand_back(actor="ada")
    await run.until("completed")


async def test_writing_into_a_paused_run_without_a_take_over_is_refused(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("slow", name="own"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("own").wait()
    await run.pause(actor="ada")
    toolkit.gate("own").set()
    await run.until("paused")
    refusals = [
        await expect_refusal(run.write("Hello", actor="ada")),
        await expect_refusal(run.use_tool("quick", {"name": "x"}, actor="ada")),
        await expect_refusal(run.hand_back(actor="ada")),
    ]
    assert {refusal.reason for refusal in refusals} == {"not_taken_over"}


async def test_a_tool_used_by_hand_needs_its_approval_too(opened: OpenMidrun) -> None:
    """The person who has taken over cannot approve for another audience."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    await run.use_tool("wire", {"name": "x"}, actor="ada")
    while not (view := await run.until("paused")).asks:
        pass
    assert (view.reason, toolkit.called) == ("taken_over", ["own"])
    assert (await expect_refusal(run.approve(actor="ada"))).reason == "not_allowed"
    await run.approve(actor=OPERATOR)
    await toolkit.start("x").wait()
    assert (await run.until("paused")).reason == "taken_over"
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert toolkit.completed == ["own", "x"]


async def test_a_declined_call_by_hand_is_not_made(opened: OpenMidrun) -> None:
    """The person still has the run."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    await run.use_tool("pay", {"name": "x"}, actor="ada")
    while not (await run.until("paused")).asks:
        pass
    await run.decline("no", actor="bob")
    assert (await run.until("paused")).reason == "taken_over"
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert toolkit.completed == ["own"]


@pytest.mark.parametrize(("tool", "args"), [("quick", {"nme": "x"}), ("quack", {"name": "x"})])
async def test_a_call_by_hand_with_an_unknown_tool_or_argument_is_refused_at_once(
    opened: OpenMidrun, tool: str, args: dict[str, str]
) -> None:
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    refusal = await expect_refusal(run.use_tool(tool, args, actor="ada"))
    assert refusal.detail
    assert not await read_entries(run, CallProposed)
    assert (await run.view()).phase == "paused"


async def test_a_cancel_undoes_a_call_by_hand(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit)
    await run.use_tool("draft", {"name": "by hand"}, actor="ada")
    await toolkit.start("by hand").wait()
    await run.until("paused")
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert toolkit.undone == ["by hand"]


async def test_a_repeated_request_id_makes_a_call_by_hand_once(opened: OpenMidrun) -> None:
    """A client repeats a request after a lost reply."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    for _ in range(2):
        await run.use_tool("quick", {"name": "x"}, actor="ada", request_id="once")
        await toolkit.start("x").wait()
        await run.until("paused")
    assert toolkit.completed == ["own", "x"]


async def test_a_take_over_closes_the_model_stream_and_keeps_its_text(
    opened: OpenMidrun,
) -> None:
    model = GatedModel(GatedReply("Half a", " sentence.", gate="middle"), "Whole.")
    toolkit = ApprovalToolkit()
    agent = Agent("actor", model=model, tools=toolkit.tools())
    run = await (await opened(agent)).start("actor", "go")
    await model.reached("middle").wait()
    await run.take_over(actor="ada")
    await run.until("paused")
    assert model.closed_gates == ["middle"]
    assert [
        (t.text, t.interrupted) for t in await read_turns(run) if t.role == "assistant"
    ] == [("Half a", True)]
    await run.write(" sentence, by me.", actor="ada")
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert [t.by for t in model.transcripts[1] if t.kind == "person"] == ["ada"]


async def test_the_ask_of_a_waiting_run_stays_open_during_a_take_over(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("ask_human", question="Which?"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await run.until("waiting")
    await run.take_over(actor="ada")
    await run.write("I know this one.", actor="ada")
    assert len((await run.view()).asks) == 1
    await run.hand_back(actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "question"
    await run.answer("red")
    assert isinstance(await run.result(), Completed)


async def test_a_failed_run_can_be_taken_over(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("quick", name="own"))  # the script ends here, so the model fails
    run = await (await opened(agent)).start("actor", "go")
    await run.until("failed")
    await run.take_over(actor="ada")
    assert (await run.view()).phase == "paused"
    await run.use_tool("quick", {"name": "by hand"}, actor="ada")
    await toolkit.start("by hand").wait()
    await run.until("paused")
    assert toolkit.completed == ["own", "by hand"]


async def test_a_person_can_start_a_child_run_by_hand(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("quick", name="inner"), "Found.", name="aide")
    script = [Use("slow", name="own"), "Done."]
    midrun = await opened(make_parent(child_agent, turns=script, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("own").wait()
    await run.take_over(actor="ada")
    toolkit.gate("own").set()
    await run.until("paused")
    await run.use_tool("aide", {"task": "Find"}, actor="ada")
    child = await wait_for_child(midrun, run, "c3")
    await child.until("completed")
    await run.until("paused")
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert toolkit.completed == ["own", "inner"]


async def test_a_message_to_a_taken_over_run_waits_for_the_hand_back(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Tuesday.", "Done.")
    await run.say("What day is it?", actor="bob")
    assert (await run.view()).pending[0].text == "What day is it?"
    await run.hand_back(actor="ada")
    await run.until("completed")
    assert "What day is it?" in [t.text for t in await read_turns(run)]


async def test_a_taken_over_run_can_be_cancelled_by_another_person(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit)
    await run.use_tool("slow_draft", {"name": "by hand"}, actor="ada")
    await toolkit.start("by hand").wait()
    await run.cancel(actor="bob")
    await run.until("cancelled")
    assert toolkit.undone == ["by hand"]
    assert toolkit.stopped == ["by hand"]


async def test_a_process_without_agents_can_take_over_write_and_hand_back(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("slow", name="own"), "Done.")
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("own").wait()
    remote_run = await (await opened()).get(run.id)
    await remote_run.take_over(actor="ada")
    toolkit.gate("own").set()
    await remote_run.until("paused")
    await remote_run.write("From afar.", actor="ada")
    await remote_run.hand_back(actor="ada")
    await wait_for_entry(run, HandedBack)
    await run.until("completed")
    assert [message.text for message in await read_entries(run, PersonWrote)] == ["From afar."]


async def test_a_call_by_hand_from_a_process_without_the_agent_needs_its_approval(
    opened: OpenMidrun,
) -> None:
    """A process that does not know the tools must not make the call look harmless."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Done.")
    remote_run = await (await opened()).get(run.id)
    try:
        await remote_run.use_tool("wire", {"name": "x"}, actor="ada")
    except ControlRefused:
        return  # a process without the agent may refuse the control
    while not (view := await run.until("paused")).asks:
        assert toolkit.called == ["own"], "the call was made without an approval"
    assert view.asks[0].audience == "operator"
    assert toolkit.called == ["own"]


async def test_the_queued_review_of_a_call_by_hand_stays_open_after_the_hand_back(
    opened: OpenMidrun,
) -> None:
    """The call is made once, after the approval."""
    toolkit = ApprovalToolkit()
    run = await start_taken_over_run(opened, toolkit, "Waiting.", "Done.")
    await run.use_tool("post", {"name": "x"}, actor="ada")
    while not (await run.until("paused")).asks:
        pass
    await run.hand_back(actor="ada")
    await run.until("waiting")
    assert toolkit.called == ["own"]
    await run.approve(actor="bob")
    await run.until("completed")
    assert toolkit.completed == ["own", "x"]
