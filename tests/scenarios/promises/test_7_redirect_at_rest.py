"""Promise 7, for a run at rest: a redirect continues it with the new instruction.

This holds for paused, failed and queued runs; a pausing run pauses first. The redirect closes
the open asks and voids the approvals of calls that have not started.
"""

from pathlib import Path

import pytest

from midrun import Agent, ControlRefused, Midrun, Tool, ask_human, tool
from midrun.core.entries import CallSealed, CallStarted, RedirectApplied, RunPaused, RunResumed
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import is_instruction, read_entries, read_kinds
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


async def test_a_redirect_continues_a_paused_run(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
