"""New words reach a run that is at work, or come back; they are never lost in silence."""

import pytest

from midrun import Completed, ControlRefused
from tests.scenarios.peers.cast import Cast, Use, journal
from tests.unit.runs.conftest import Opener


async def test_words_that_come_while_a_tool_is_at_work_reach_the_next_model_call(
    opened: Opener,
) -> None:
    """LangGraph: an update of a run that is active is overwritten without an error."""
    cast = Cast()
    turns = Use("slow", name="a"), cast.says("On the new course.")
    midrun = await opened(cast.agent(*turns))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    receipt = await run.redirect("Use the 2026 figures", actor="ada")
    assert not receipt.applied
    assert [p.text for p in (await run.view()).pending] == ["Use the 2026 figures"]
    cast.gate("a").set()
    await run.until("completed")
    last = cast.heard[-1][-1]
    assert (last.role, last.text, last.by) == ("user", "Use the 2026 figures", "ada")
    assert cast.completed == ["a"]


async def test_words_that_come_too_late_are_refused_aloud(opened: Opener) -> None:
    """LangGraph: they are taken, and nobody reads them."""
    cast = Cast()
    midrun = await opened(cast.agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused, match="is_completed"):
        await run.redirect("Use the 2026 figures")


async def test_words_that_a_cancel_overtook_come_back(opened: Opener) -> None:
    """Claude Code: messages sent around an interrupt are swallowed."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), "never"))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.redirect("Use the 2026 figures")
    await run.cancel()
    await run.until("cancelled")
    assert "RedirectClosed" in await journal(run)
    back = [item async for item in run.feed() if item.seq and item.kind == "RedirectClosed"]
    assert [item.entry.text for item in back] == ["Use the 2026 figures"]  # type: ignore[union-attr]  # by its kind


async def test_a_run_that_waits_for_an_answer_can_be_given_other_words(opened: Opener) -> None:
    """Strands: while a question is open, anything but its answer raises a TypeError."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("ask", name="a"), cast.says("Then not.")))
    run = await midrun.start("actor", "go")
    ask = (await run.until("waiting")).asks[0]
    await run.redirect("Leave the colour alone", actor="ada")
    await run.until("completed")
    assert cast.heard[-1][-1].text == "Leave the colour alone"
    assert cast.heard[-1][-2].uses[0].problem.startswith("stopped midway")
    with pytest.raises(ControlRefused, match="ask_closed"):
        await run.answer("blue", ask=ask.id)


async def test_a_new_course_starts_nothing_of_the_old_one(opened: Opener) -> None:
    """Elsewhere the new message queues up behind what it was meant to prevent."""
    cast = Cast()
    turn = [Use("slow", name="a"), Use("pay", amount=500, to="bob")]
    midrun = await opened(cast.agent(turn, cast.says("Not paid.")))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.redirect("Do not pay anybody")
    cast.gate("a").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert cast.called == ["a"]
    assert cast.heard[-1][-2].uses[1].problem.startswith("not executed")


async def test_a_pause_that_was_not_meant_can_be_taken_back(opened: Opener) -> None:
    """Elsewhere a stop that was asked for cannot be taken back before it takes hold."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.pause()
    receipt = await run.resume()
    assert receipt.phase == "running"
    cast.gate("a").set()
    await run.until("completed")
    assert "RunPaused" not in await journal(run)


async def test_an_instruction_given_with_the_resume_is_the_next_thing_heard(
    opened: Opener,
) -> None:
    """Strands: resume takes answers only; Agentfootprint: nothing can be added to one."""
    cast = Cast()
    turns = Use("slow", name="a"), cast.says("Summary.")
    midrun = await opened(cast.agent(*turns))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.pause()
    cast.gate("a").set()
    await run.until("paused")
    await run.resume("Summarise and stop")
    await run.until("completed")
    assert [turn.text for turn in cast.heard[-1] if turn.role == "user"] == [
        "go",
        "Summarise and stop",
    ]
