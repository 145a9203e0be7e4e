"""Promise 7: a redirect keeps the work.

The new instruction reaches the agent at its next step, or now, without a restart. Finished
calls are kept; calls that have not started are not made. The journal has a one-line difference.
Text that could not be applied is returned.

A redirect of a run at rest (paused, failed, queued, waiting) continues it with the new
instruction; a pausing run pauses first. It closes the open asks, and voids the approvals of
calls that have not started.
"""

from pathlib import Path

import anyio
import pytest

from midrun import Agent, ControlRefused, Midrun, Run, Tool, ask_human, tool
from midrun.core.entries import (
    AskClosed,
    CallSealed,
    CallStarted,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RunPaused,
    RunResumed,
)
from midrun.core.transcript import Transcript
from midrun.core.values import RedirectTiming
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import (
    is_instruction,
    read_entries,
    read_kinds,
    read_turns,
    wait_for_entry,
)
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

NEW_INSTRUCTION = "Use the 2026 figures"


def build_send_tool(sent: list[str]) -> Tool:
    """Return a tool that needs an approval; it appends its argument to `sent`."""

    @tool(approve=True)
    async def send(name: str) -> str:
        sent.append(name)
        return "sent"

    return send


async def start_slow_tool(
    opened: OpenMidrun,
) -> tuple[Run, GatedModel, ControllableTools]:
    """Start a run, and return it while its tool call *a* is in flight."""
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    return run, model, tools


# ── a running run ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["next_step", "now"])
async def test_a_redirect_closes_the_model_stream_and_calls_the_model_again(
    opened: OpenMidrun, when: RedirectTiming
) -> None:
    """The text so far is kept; the call in the unfinished reply is not made."""
    tools = ControllableTools()
    model = GatedModel(
        GatedReply("As planned, ", "", Use("quick", name="old"), gate="half"), "Done."
    )
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    receipt = await run.redirect(NEW_INSTRUCTION, when=when, actor="ada")
    assert not receipt.applied
    await run.until("completed")
    assert model.closed_gates == ["half"]
    _, reply, instruction = model.transcripts[1]
    assert (reply.text, reply.interrupted) == ("As planned, ", True)
    assert is_instruction(instruction, NEW_INSTRUCTION)
    assert tools.called == []


async def test_a_redirect_at_the_next_step_lets_the_running_tool_finish(
    opened: OpenMidrun,
) -> None:
    """Until then the view lists the redirect as pending."""
    run, model, tools = await start_slow_tool(opened)
    receipt = await run.redirect(NEW_INSTRUCTION, actor="ada")
    assert not receipt.applied
    (pending,) = (await run.view()).pending
    assert (pending.seq, pending.text, pending.by) == (receipt.seq, NEW_INSTRUCTION, "ada")
    tools.gate("a").set()
    await run.until("completed")
    assert (tools.completed, tools.stopped) == (["a"], [])
    *_, step_turn, instruction = model.transcripts[1]
    assert step_turn.uses[0].result == "a done"
    assert is_instruction(instruction, NEW_INSTRUCTION)
    assert not (await run.view()).pending


async def test_a_redirect_now_stops_the_running_tools_and_does_not_repeat_them(
    opened: OpenMidrun,
) -> None:
    """A read-only tool is stopped as well: it belonged to the old instruction."""
    tools = ControllableTools()
    step = (Use("slow", name="a"), Use("read", name="b"))
    model = GatedModel(GatedReply("", "", *step), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await tools.start("b").wait()
    await run.redirect(NEW_INSTRUCTION, when="now", actor="ada")
    await run.until("completed")
    assert sorted(tools.stopped) == ["a", "b"]
    assert sorted(tools.called) == ["a", "b"]
    *_, step_turn, instruction = model.transcripts[1]
    assert all("stopped midway" in made.problem for made in step_turn.uses)
    assert is_instruction(instruction, NEW_INSTRUCTION)


async def test_a_redirect_neither_undoes_nor_repeats_finished_calls(opened: OpenMidrun) -> None:
    """The model still has all their results."""
    tools = ControllableTools()
    model = GatedModel(
        GatedReply("", "", Use("draft", name="1")),
        GatedReply("", "", Use("draft", name="2"), Use("slow", name="x")),
        GatedReply("", "", Use("quick", name="new")),
        "Done.",
    )
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("x").wait()
    await run.redirect(NEW_INSTRUCTION, when="now", actor="ada")
    await run.until("completed")
    assert tools.completed == ["1", "2", "new"]
    assert tools.undone == []
    results = [
        made.result for turn in model.transcripts[-1] for made in turn.uses if made.result
    ]
    assert results == ["1 done", "2 done", "new done"]


async def test_calls_of_the_step_that_have_not_started_are_not_made(
    opened: OpenMidrun,
) -> None:
    """One of them waits for an approval: its ask is closed, and the agent is told."""
    tools = ControllableTools()

    @tool(approve=True)
    async def send(name: str) -> str:
        """Need an approval."""
        tools.completed.append(name)
        return "sent"

    model = GatedModel(
        GatedReply("", "", Use("slow", name="a"), Use("send", name="mail")), "Done."
    )
    midrun = await opened(Agent("actor", model=model, tools=[*tools.tools(), send]))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    (ask,) = (await run.view()).asks
    await run.redirect(NEW_INSTRUCTION, actor="ada")
    (closed,) = await read_entries(run, AskClosed)
    assert (closed.ask, closed.why, closed.by) == (ask.id, "superseded", "ada")
    with pytest.raises(ControlRefused) as refused:
        await run.approve(ask=ask.id, actor="bob")
    assert (refused.value.reason, refused.value.by) == ("ask_closed", "ada")
    tools.gate("a").set()
    await run.until("completed")
    assert tools.completed == ["a"]
    slow, sealed = model.transcripts[1][-2].uses
    assert slow.result == "a done"
    assert sealed.problem == "not executed: the run was redirected"


async def test_a_redirect_journals_a_one_line_difference(opened: OpenMidrun) -> None:
    """The whole text is in `RedirectRequested`."""
    long = "Use the\n2026 figures, " + "and mind the footnotes, " * 10
    run, _, tools = await start_slow_tool(opened)
    receipt = await run.redirect(long)
    tools.gate("a").set()
    await run.until("completed")
    (applied,) = await read_entries(run, RedirectApplied)
    assert applied.redirect == receipt.seq
    assert applied.minus == "the work as planned"
    assert applied.plus.startswith("Use the 2026 figures, and mind")
    assert "\n" not in applied.plus
    assert len(applied.plus) <= 80
    (request,) = await read_entries(run, RedirectRequested)
    assert request.text == long
    assert (await read_turns(run))[-2].text == long


async def test_two_pending_redirects_are_both_applied_in_order(opened: OpenMidrun) -> None:
    run, model, tools = await start_slow_tool(opened)
    await run.redirect("First this")
    await run.redirect("Then that")
    tools.gate("a").set()
    await run.until("completed")
    assert [turn.text for turn in model.transcripts[1][-2:]] == ["First this", "Then that"]
    assert len(await read_entries(run, RedirectApplied)) == 2


async def test_a_redirect_beats_an_answer_that_is_not_in_the_journal(
    opened: OpenMidrun,
) -> None:
    """The reply answered the old instruction, so it does not complete the run."""
    model = GatedModel(
        GatedReply("The old ", "answer.", gate="end", gate_at="end"), "The new answer."
    )
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("end").wait()
    await run.redirect(NEW_INSTRUCTION, actor="ada")
    view = await run.until("completed")
    assert view.output == "The new answer."
    assert model.transcripts[1][-2].text == "The old answer."
    assert is_instruction(model.transcripts[1][-1], NEW_INSTRUCTION)


# ── text that is not applied ──────────────────────────────────────────────────────────────


async def test_a_cancel_returns_the_text_of_a_pending_redirect(opened: OpenMidrun) -> None:
    run, _, _ = await start_slow_tool(opened)
    receipt = await run.redirect(NEW_INSTRUCTION, actor="ada")
    await run.cancel(actor="bob")
    (closed,) = await read_entries(run, RedirectClosed)
    assert (closed.redirect, closed.why, closed.text) == (
        receipt.seq,
        "returned",
        NEW_INSTRUCTION,
    )
    await run.until("cancelled")
    assert not await read_entries(run, RedirectApplied)
    assert not (await run.view()).pending


@pytest.mark.parametrize("end", ["completed", "cancelled"])
async def test_a_redirect_of_a_run_that_has_ended_is_refused(
    opened: OpenMidrun, end: str
) -> None:
    run, _, tools = await start_slow_tool(opened)
    if end == "cancelled":
        await run.cancel()
    tools.gate("a").set()
    await run.until(end)
    with pytest.raises(ControlRefused) as refused:
        await run.redirect(NEW_INSTRUCTION)
    assert refused.value.reason == f"is_{end}"


async def test_a_redirect_without_text_is_refused(opened: OpenMidrun) -> None:
    """It would stop the model for no reason."""
    run, _, tools = await start_slow_tool(opened)
    with pytest.raises(ControlRefused, match="empty_text"):
        await run.redirect("  \n")
    tools.gate("a").set()
    await run.until("completed")


async def test_a_redirect_can_be_withdrawn_until_it_is_applied(opened: OpenMidrun) -> None:
    """A withdrawn text does not reach the model."""
    tools = ControllableTools()
    step = GatedReply("", "", Use("slow", name="a"))
    model = GatedModel(step, GatedReply("", "", Use("slow", name="b")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    receipt = await run.redirect(NEW_INSTRUCTION)
    await run.withdraw(receipt.seq, actor="ada")
    (closed,) = await read_entries(run, RedirectClosed)
    assert (closed.why, closed.text, closed.by) == ("withdrawn", NEW_INSTRUCTION, "ada")
    with pytest.raises(ControlRefused, match="not_pending"):
        await run.withdraw(receipt.seq)
    tools.gate("a").set()
    await tools.start("b").wait()
    assert not any(turn.text == NEW_INSTRUCTION for turn in model.transcripts[1])
    late = await run.redirect("Be brief")
    tools.gate("b").set()
    await wait_for_entry(run, RedirectApplied)
    with pytest.raises(ControlRefused):
        await run.withdraw(late.seq)
    await run.until("completed")


async def test_after_a_withdrawn_redirect_now_the_step_continues(opened: OpenMidrun) -> None:
    """The read-only tool that was being stopped is called again."""
    tools, looks = ControllableTools(), []

    @tool(read_only=True)
    async def look() -> str:
        """Wait at a gate when it is cancelled; a second call returns at once."""
        looks.append("look")
        if len(looks) > 1:
            return "seen"
        tools.start("look").set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                tools.start("stopping").set()
                await tools.gate("stopped").wait()
        return "never"

    model = GatedModel(GatedReply("", "", Use("look")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[look]))
    run = await midrun.start("actor", "go")
    await tools.start("look").wait()
    receipt = await run.redirect(NEW_INSTRUCTION, when="now")
    await tools.start("stopping").wait()
    await run.withdraw(receipt.seq)
    tools.gate("stopped").set()
    await run.until("completed")
    assert len(looks) == 2
    assert model.transcripts[1][-1].uses[0].result == "seen"
    assert not await read_entries(run, RedirectApplied)


# ── a run at rest ─────────────────────────────────────────────────────────────────────────


async def test_a_redirect_continues_a_paused_run(opened: OpenMidrun) -> None:
    run, model, tools = await start_slow_tool(opened)
    await run.pause()
    tools.gate("a").set()
    await run.until("paused")
    await run.redirect(NEW_INSTRUCTION, actor="ada")
    await run.until("completed")
    assert is_instruction(model.transcripts[1][-1], NEW_INSTRUCTION)
    assert [applied.plus for applied in await read_entries(run, RedirectApplied)] == [
        NEW_INSTRUCTION
    ]


async def test_resume_with_an_instruction_journals_the_difference_too(
    opened: OpenMidrun,
) -> None:
    run, model, tools = await start_slow_tool(opened)
    await run.pause()
    tools.gate("a").set()
    await run.until("paused")
    await run.resume(NEW_INSTRUCTION, actor="ada")
    await run.until("completed")
    (resumed,) = await read_entries(run, RunResumed)
    assert resumed.minus
    assert resumed.plus == NEW_INSTRUCTION
    assert is_instruction(model.transcripts[1][-1], NEW_INSTRUCTION)


async def test_a_redirect_of_a_pausing_run_is_applied_after_the_pause(
    opened: OpenMidrun,
) -> None:
    """The tool in flight finishes, and `RunPaused` is journaled first."""
    run, model, tools = await start_slow_tool(opened)
    await run.pause(actor="bob")
    receipt = await run.redirect(NEW_INSTRUCTION, actor="ada")
    assert (receipt.phase, receipt.applied) == ("pausing", False)
    tools.gate("a").set()
    await run.until("completed")
    journaled = await read_kinds(run)
    assert journaled.index("RunPaused") < journaled.index("RedirectApplied")
    assert len(await read_entries(run, RunPaused)) == 1
    assert is_instruction(model.transcripts[1][-1], NEW_INSTRUCTION)


async def test_a_redirect_closes_the_questions_of_a_waiting_run(opened: OpenMidrun) -> None:
    """A later answer is refused; the refusal names the actor of the redirect."""
    question = Use("ask_human", question="Which year?")
    model = GatedModel(GatedReply("", "", question), GatedReply("Done.", gate="on"))
    midrun = await opened(Agent("actor", model=model, tools=[ask_human]))
    run = await midrun.start("actor", "go")
    (ask,) = (await run.until("waiting")).asks
    await run.redirect(NEW_INSTRUCTION, actor="ada")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("2025", ask=ask.id, actor="bob")
    assert (refused.value.reason, refused.value.by) == ("ask_closed", "ada")
    model.gate("on").set()
    await run.until("completed")
    *_, question_turn, instruction = model.transcripts[1]
    assert "the run was redirected" in question_turn.uses[0].problem
    assert is_instruction(instruction, NEW_INSTRUCTION)


async def test_a_redirect_continues_a_failed_run(opened: OpenMidrun) -> None:
    """It continues from its last boundary; the finished call is kept."""
    tools = ControllableTools()

    def play(messages: Transcript) -> str | Use:
        last = messages[-1]
        if last.kind == "instruction":
            return "Done."
        if last.role == "assistant":
            raise RuntimeError("lost the thread")
        return Use("quick", name="a")

    model = ScriptedModel(play)
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await run.until("failed")
    await run.redirect(NEW_INSTRUCTION)
    view = await run.until("completed")
    assert view.output == "Done."
    assert tools.called == ["a"]


async def test_a_redirect_of_a_queued_run_is_in_its_first_prompt(
    opened: OpenMidrun, path: Path
) -> None:
    model = GatedModel("Done.")
    agent = Agent("actor", model=model)
    async with Midrun(get_store_url(path), agents=[agent], engine=None) as without_worker:
        run = await without_worker.start("actor", "go")
        assert (await run.redirect(NEW_INSTRUCTION, actor="ada")).phase == "queued"
    midrun = await opened(agent)
    await (await midrun.get(run.id)).until("completed")
    ((task, instruction),) = model.transcripts
    assert task.text == "go"
    assert is_instruction(instruction, NEW_INSTRUCTION)


async def test_a_redirect_voids_an_approval_whose_call_has_not_started(
    opened: OpenMidrun,
) -> None:
    sent: list[str] = []
    model = GatedModel(GatedReply("", "", Use("send", name="mail")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[build_send_tool(sent)]))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.pause()
    await run.approve(actor="bob")
    assert (await run.view()).phase == "paused"
    await run.redirect(NEW_INSTRUCTION, actor="ada")
    await run.until("completed")
    assert sent == []
    (sealed,) = await read_entries(run, CallSealed)
    assert "the run was redirected" in sealed.why
    (applied,) = await read_entries(run, RedirectApplied)
    assert (applied.minus, applied.plus) == ("Send", NEW_INSTRUCTION)
    assert [start.call_kind for start in await read_entries(run, CallStarted)] == [
        "model",
        "model",
    ]


async def test_an_approval_stays_void_when_the_redirect_is_withdrawn(
    opened: OpenMidrun, path: Path
) -> None:
    """The call needs a new approval."""
    sent: list[str] = []

    def agent() -> Agent:
        model = ScriptedModel([Use("send", name="mail"), "Done."])
        return Agent("actor", model=model, tools=[build_send_tool(sent)])

    address = get_store_url(path)
    async with Midrun(address, agents=[agent()]) as first:
        run_id = (await first.start("actor", "go")).id
        await (await first.get(run_id)).until("waiting")
    async with Midrun(address) as without_agents:
        resting = await without_agents.get(run_id)
        await resting.pause()
        await resting.approve(actor="bob")
        redirect = await resting.redirect(NEW_INSTRUCTION, actor="ada")
        await resting.withdraw(redirect.seq, actor="ada")
    midrun = await opened(agent())
    run = await midrun.get(run_id)
    (ask,) = (await run.until("waiting")).asks
    assert (ask.kind, sent) == ("approval", [])
    await run.approve(actor="bob")
    await run.until("completed")
    assert sent == ["mail"]
