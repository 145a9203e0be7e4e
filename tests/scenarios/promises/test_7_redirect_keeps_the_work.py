"""Promise 7: a redirect keeps the work.

The new instruction reaches the agent at its next step, or now, without a restart. Finished
calls are kept; calls that have not started are not made. The journal has a one-line difference.
Text that could not be applied is returned.
"""

import anyio
import pytest

from midrun import Agent, ControlRefused, tool
from midrun.core.entries import AskClosed, RedirectApplied, RedirectClosed, RedirectRequested
from midrun.core.values import RedirectTiming
from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import is_instruction, read_entries, read_turns, wait_for_entry
from tests.unit.runs.conftest import OpenMidrun

NEW_INSTRUCTION = "Use the 2026 figures"


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
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
    tools = ControllableTools()
    long = "Use the\n2026 figures, " + "and mind the footnotes, " * 10
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
    tools = ControllableTools()
    model = GatedModel(GatedReply("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=tools.tools()))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    if end == "cancelled":
        await run.cancel()
    tools.gate("a").set()
    await run.until(end)
    with pytest.raises(ControlRefused) as refused:
        await run.redirect(NEW_INSTRUCTION)
    assert refused.value.reason == f"is_{end}"


async def test_a_redirect_without_text_is_refused(opened: OpenMidrun) -> None:
    """It would stop the model for no reason."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
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
