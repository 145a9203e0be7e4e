"""Redirect, compared with other frameworks: no instruction is lost.

The docstrings name the framework and the failure that was seen there.
"""

import pytest

from midrun import Completed, ControlRefused
from midrun.models import Use
from tests.scenarios.peers.toolkit import PeerToolkit, read_entry_kinds
from tests.unit.runs.conftest import OpenMidrun


async def test_a_redirect_during_a_tool_call_reaches_the_next_model_call(
    opened: OpenMidrun,
) -> None:
    """LangGraph: an update of an active run is overwritten without an error."""
    toolkit = PeerToolkit()
    turns = Use("slow", name="a"), toolkit.record_then_say("On the new course.")
    midrun = await opened(toolkit.agent(*turns))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    receipt = await run.redirect("Use the 2026 figures", actor="ada")
    assert not receipt.applied
    assert [p.text for p in (await run.view()).pending] == ["Use the 2026 figures"]
    toolkit.gate("a").set()
    await run.until("completed")
    last = toolkit.prompts[-1][-1]
    assert (last.role, last.text, last.by) == ("user", "Use the 2026 figures", "ada")
    assert toolkit.completed == ["a"]


async def test_a_redirect_of_a_completed_run_is_refused(opened: OpenMidrun) -> None:
    """LangGraph: the update is accepted and never used."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused, match="is_completed"):
        await run.redirect("Use the 2026 figures")


async def test_a_redirect_before_a_cancel_is_returned(opened: OpenMidrun) -> None:
    """Claude Code: messages sent around an interrupt are lost."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.redirect("Use the 2026 figures")
    await run.cancel()
    await run.until("cancelled")
    assert "RedirectClosed" in await read_entry_kinds(run)
    returned = [item async for item in run.feed() if item.seq and item.kind == "RedirectClosed"]
    assert [item.entry.text for item in returned] == ["Use the 2026 figures"]  # type: ignore[union-attr]  # by its kind


async def test_a_run_that_waits_for_an_answer_can_be_redirected(opened: OpenMidrun) -> None:
    """Strands: while a question is open, any other input raises a TypeError."""
    toolkit = PeerToolkit()
    midrun = await opened(
        toolkit.agent(Use("ask", name="a"), toolkit.record_then_say("Then not."))
    )
    run = await midrun.start("actor", "go")
    ask = (await run.until("waiting")).asks[0]
    await run.redirect("Leave the colour alone", actor="ada")
    await run.until("completed")
    assert toolkit.prompts[-1][-1].text == "Leave the colour alone"
    assert toolkit.prompts[-1][-2].uses[0].problem.startswith("stopped midway")
    with pytest.raises(ControlRefused, match="ask_closed"):
        await run.answer("blue", ask=ask.id)


async def test_after_a_redirect_no_remaining_call_of_the_batch_starts(
    opened: OpenMidrun,
) -> None:
    """In other frameworks the message waits behind the calls that it was meant to prevent."""
    toolkit = PeerToolkit()
    turn = [Use("slow", name="a"), Use("pay", amount=500, to="bob")]
    midrun = await opened(toolkit.agent(turn, toolkit.record_then_say("Not paid.")))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.redirect("Pay nothing")
    toolkit.gate("a").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert toolkit.called == ["a"]
    assert toolkit.prompts[-1][-2].uses[1].problem.startswith("not executed")


async def test_a_pause_can_be_withdrawn_before_it_takes_effect(opened: OpenMidrun) -> None:
    """In other frameworks a requested stop cannot be withdrawn."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.pause()
    receipt = await run.resume()
    assert receipt.phase == "running"
    toolkit.gate("a").set()
    await run.until("completed")
    assert "RunPaused" not in await read_entry_kinds(run)


async def test_an_instruction_in_a_resume_is_the_next_message_to_the_model(
    opened: OpenMidrun,
) -> None:
    """Strands: resume takes answers only; Agentfootprint: a resume takes no message."""
    toolkit = PeerToolkit()
    turns = Use("slow", name="a"), toolkit.record_then_say("Summary.")
    midrun = await opened(toolkit.agent(*turns))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.pause()
    toolkit.gate("a").set()
    await run.until("paused")
    await run.resume("Summarise and stop")
    await run.until("completed")
    assert [turn.text for turn in toolkit.prompts[-1] if turn.role == "user"] == [
        "go",
        "Summarise and stop",
    ]
