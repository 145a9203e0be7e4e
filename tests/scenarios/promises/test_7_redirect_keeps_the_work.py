"""Promise 7: a redirect keeps the work.

A new instruction reaches the agent at its next step, or now, without a restart. What was done
stays done; what had not begun is not begun. The one-line difference is on the record and the
agent is told. Words that could not be applied come back to whoever wrote them.
"""

import anyio
import pytest

from midrun import Agent, ControlRefused, tool
from midrun.core.entries import AskClosed, RedirectApplied, RedirectClosed, RedirectRequested
from midrun.core.values import RedirectTiming
from tests.scenarios.promises.seen import entries, instructed, recorded, turns
from tests.scenarios.promises.speaker import Line, Speaker
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use

NEW = "Use the 2026 figures"


# ── while it runs ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("when", ["next_step", "now"])
async def test_a_model_that_speaks_is_closed_and_asked_again_with_the_instruction(
    opened: Opener, when: RedirectTiming
) -> None:
    """Its words so far are kept; nothing of the old course is decided by it any more."""
    stage = ControllableTools()
    model = Speaker(Line("As planned, ", "", Use("quick", name="old"), gate="half"), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    receipt = await run.redirect(NEW, when=when, actor="ada")
    assert not receipt.applied
    await run.until("completed")
    assert model.closed == ["half"]
    _, said, told = model.heard[1]
    assert (said.text, said.interrupted) == ("As planned, ", True)
    assert instructed(told, NEW)
    assert stage.called == []


async def test_at_the_next_step_a_tool_at_work_finishes_and_its_result_is_kept(
    opened: Opener,
) -> None:
    """Until then the words are there to be seen, and to be withdrawn."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    receipt = await run.redirect(NEW, actor="ada")
    assert not receipt.applied
    (pending,) = (await run.view()).pending
    assert (pending.seq, pending.text, pending.by) == (receipt.seq, NEW, "ada")
    stage.gate("a").set()
    await run.until("completed")
    assert (stage.completed, stage.stopped) == (["a"], [])
    *_, acted, told = model.heard[1]
    assert acted.uses[0].result == "a done"
    assert instructed(told, NEW)
    assert not (await run.view()).pending


async def test_now_a_tool_at_work_is_stopped_and_not_made_again(opened: Opener) -> None:
    """Not even one that only reads: it belonged to the old course."""
    stage = ControllableTools()
    step = (Use("slow", name="a"), Use("read", name="b"))
    model = Speaker(Line("", "", *step), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await stage.start("b").wait()
    await run.redirect(NEW, when="now", actor="ada")
    await run.until("completed")
    assert sorted(stage.stopped) == ["a", "b"]
    assert sorted(stage.called) == ["a", "b"]
    *_, acted, told = model.heard[1]
    assert all("stopped midway" in made.problem for made in acted.uses)
    assert instructed(told, NEW)


async def test_finished_work_stays_and_is_not_repeated(opened: Opener) -> None:
    """Nothing is undone, and the agent still has every result."""
    stage = ControllableTools()
    model = Speaker(
        Line("", "", Use("draft", name="1")),
        Line("", "", Use("draft", name="2"), Use("slow", name="x")),
        Line("", "", Use("quick", name="new")),
        "Done.",
    )
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("x").wait()
    await run.redirect(NEW, when="now", actor="ada")
    await run.until("completed")
    assert stage.completed == ["1", "2", "new"]
    assert stage.undone == []
    results = [made.result for turn in model.heard[-1] for made in turn.uses if made.result]
    assert results == ["1 done", "2 done", "new done"]


async def test_calls_of_the_step_that_had_not_begun_are_not_made_and_the_agent_is_told(
    opened: Opener,
) -> None:
    """One of them waits for a person's yes, which nobody is asked for any more."""
    stage = ControllableTools()

    @tool(approve=True)
    async def send(name: str) -> str:
        """Need a person first."""
        stage.completed.append(name)
        return "sent"

    model = Speaker(Line("", "", Use("slow", name="a"), Use("send", name="mail")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[*stage.tools(), send]))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    (ask,) = (await run.view()).asks
    await run.redirect(NEW, actor="ada")
    (closed,) = await entries(run, AskClosed)
    assert (closed.ask, closed.why, closed.by) == (ask.id, "superseded", "ada")
    with pytest.raises(ControlRefused) as refused:
        await run.approve(ask=ask.id, actor="bob")
    assert (refused.value.reason, refused.value.by) == ("ask_closed", "ada")
    stage.gate("a").set()
    await run.until("completed")
    assert stage.completed == ["a"]
    slow, sealed = model.heard[1][-2].uses
    assert slow.result == "a done"
    assert sealed.problem == "not executed: the run was redirected"


async def test_the_one_line_difference_is_on_the_record(opened: Opener) -> None:
    """What would have come next, and what comes instead; long words are cut to a line."""
    stage = ControllableTools()
    long = "Use the\n2026 figures, " + "and mind the footnotes, " * 10
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    receipt = await run.redirect(long)
    stage.gate("a").set()
    await run.until("completed")
    (applied,) = await entries(run, RedirectApplied)
    assert applied.redirect == receipt.seq
    assert applied.minus == "the next step as planned"
    assert applied.plus.startswith("Use the 2026 figures, and mind")
    assert "\n" not in applied.plus
    assert len(applied.plus) <= 80
    (asked,) = await entries(run, RedirectRequested)
    assert asked.text == long
    assert (await turns(run))[-2].text == long


async def test_redirects_that_come_together_are_all_told_in_order(opened: Opener) -> None:
    """The second does not replace the first: both are somebody's words."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.redirect("First this")
    await run.redirect("Then that")
    stage.gate("a").set()
    await run.until("completed")
    assert [turn.text for turn in model.heard[1][-2:]] == ["First this", "Then that"]
    assert len(await entries(run, RedirectApplied)) == 2


async def test_a_redirect_beats_an_answer_that_is_not_in_the_journal(opened: Opener) -> None:
    """The answer was to the old task: the run does not end with it."""
    model = Speaker(Line("The old ", "answer.", gate="end", at="end"), "The new answer.")
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("end").wait()
    await run.redirect(NEW, actor="ada")
    view = await run.until("completed")
    assert view.output == "The new answer."
    assert model.heard[1][-2].text == "The old answer."
    assert instructed(model.heard[1][-1], NEW)


# ── words that are not applied ────────────────────────────────────────────────────────────


async def test_words_that_come_too_late_for_a_cancelled_run_come_back(opened: Opener) -> None:
    """In the same breath as the cancel, with the text."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    receipt = await run.redirect(NEW, actor="ada")
    await run.cancel(actor="bob")
    (closed,) = await entries(run, RedirectClosed)
    assert (closed.redirect, closed.why, closed.text) == (receipt.seq, "returned", NEW)
    await run.until("cancelled")
    assert not await entries(run, RedirectApplied)
    assert not (await run.view()).pending


@pytest.mark.parametrize("end", ["completed", "cancelled"])
async def test_words_for_a_run_that_is_over_are_refused(opened: Opener, end: str) -> None:
    """Nothing is taken that could not be given to the agent."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    if end == "cancelled":
        await run.cancel()
    stage.gate("a").set()
    await run.until(end)
    with pytest.raises(ControlRefused) as refused:
        await run.redirect(NEW)
    assert refused.value.reason == f"is_{end}"


async def test_empty_words_are_refused(opened: Opener) -> None:
    """They would stop the model for nothing."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    with pytest.raises(ControlRefused, match="empty_text"):
        await run.redirect("  \n")
    stage.gate("a").set()
    await run.until("completed")


async def test_words_can_be_withdrawn_until_the_agent_has_them(opened: Opener) -> None:
    """Before that they leave no trace in what it is told."""
    stage = ControllableTools()
    step = Line("", "", Use("slow", name="a"))
    model = Speaker(step, Line("", "", Use("slow", name="b")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    receipt = await run.redirect(NEW)
    await run.withdraw(receipt.seq, actor="ada")
    (closed,) = await entries(run, RedirectClosed)
    assert (closed.why, closed.text, closed.by) == ("withdrawn", NEW, "ada")
    with pytest.raises(ControlRefused, match="not_pending"):
        await run.withdraw(receipt.seq)
    stage.gate("a").set()
    await stage.start("b").wait()
    assert not any(turn.text == NEW for turn in model.heard[1])
    late = await run.redirect("Be brief")
    stage.gate("b").set()
    await recorded(run, RedirectApplied)
    with pytest.raises(ControlRefused):
        await run.withdraw(late.seq)
    await run.until("completed")


async def test_a_withdrawn_now_leaves_the_step_as_it_was(opened: Opener) -> None:
    """Withdrawn while the tool still stops: as it only reads, it is made again."""
    stage, looks = ControllableTools(), []

    @tool(read_only=True)
    async def look() -> str:
        """Look, and take some time to stop."""
        looks.append("look")
        if len(looks) > 1:
            return "seen"
        stage.start("look").set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                stage.start("stopping").set()
                await stage.gate("stopped").wait()
        return "never"

    model = Speaker(Line("", "", Use("look")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[look]))
    run = await midrun.start("actor", "go")
    await stage.start("look").wait()
    receipt = await run.redirect(NEW, when="now")
    await stage.start("stopping").wait()
    await run.withdraw(receipt.seq)
    stage.gate("stopped").set()
    await run.until("completed")
    assert len(looks) == 2
    assert model.heard[1][-1].uses[0].result == "seen"
    assert not await entries(run, RedirectApplied)
