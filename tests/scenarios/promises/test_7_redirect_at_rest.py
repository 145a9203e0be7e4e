"""Promise 7, of a run that rests: told where to go, it goes there.

Paused, failed or queued, it goes on with the text; pausing, it pauses first. What it had asked,
and every yes it was given for the old course, is void.
"""

from pathlib import Path

import pytest

from midrun import Agent, ControlRefused, Midrun, ask_human, tool
from midrun.core.entries import CallSealed, CallStarted, RedirectApplied, RunPaused, RunResumed
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel
from tests.scenarios.promises.seen import entries, instructed, kinds
from tests.scenarios.promises.speaker import Line, Speaker
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use

NEW = "Use the 2026 figures"


async def test_while_paused_it_goes_on_with_the_text(opened: Opener) -> None:
    """Whoever says where to go wants it to go."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    await run.redirect(NEW, actor="ada")
    await run.until("completed")
    assert instructed(model.heard[1][-1], NEW)
    assert [applied.plus for applied in await entries(run, RedirectApplied)] == [NEW]


async def test_resume_with_words_says_the_difference_too(opened: Opener) -> None:
    """The same words by another button mean the same."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    await run.resume(NEW, actor="ada")
    await run.until("completed")
    (resumed,) = await entries(run, RunResumed)
    assert (resumed.minus, resumed.plus) == ("the next step as planned", NEW)
    assert instructed(model.heard[1][-1], NEW)


async def test_while_pausing_it_pauses_and_then_goes_on_with_the_text(opened: Opener) -> None:
    """The pause is not overtaken: the tool at work finishes first, and *paused* is a fact."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause(actor="bob")
    receipt = await run.redirect(NEW, actor="ada")
    assert (receipt.phase, receipt.applied) == ("pausing", False)
    stage.gate("a").set()
    await run.until("completed")
    told = await kinds(run)
    assert told.index("RunPaused") < told.index("RedirectApplied")
    assert len(await entries(run, RunPaused)) == 1
    assert instructed(model.heard[1][-1], NEW)


async def test_while_waiting_its_questions_are_superseded(opened: Opener) -> None:
    """Whoever answers the old question learns that it is nobody's any more, and by whom."""
    question = Use("ask_human", question="Which year?")
    model = Speaker(Line("", "", question), Line("Done.", gate="on"))
    midrun = await opened(Agent("actor", model=model, tools=[ask_human]))
    run = await midrun.start("actor", "go")
    (ask,) = (await run.until("waiting")).asks
    await run.redirect(NEW, actor="ada")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("2025", ask=ask.id, actor="bob")
    assert (refused.value.reason, refused.value.by) == ("ask_closed", "ada")
    model.gate("on").set()
    await run.until("completed")
    *_, asked, told = model.heard[1]
    assert "the run was redirected" in asked.uses[0].problem
    assert instructed(told, NEW)


async def test_while_failed_it_goes_on_with_the_text(opened: Opener) -> None:
    """From its last boundary, with what was done before the failure."""
    stage = ControllableTools()

    def play(messages: Transcript) -> str | Use:
        last = messages[-1]
        if last.kind == "instruction":
            return "Done."
        if last.role == "assistant":
            raise RuntimeError("lost the thread")
        return Use("quick", name="a")

    model = ScriptedModel(play)
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await run.until("failed")
    await run.redirect(NEW)
    view = await run.until("completed")
    assert view.output == "Done."
    assert stage.called == ["a"]


async def test_while_queued_it_is_there_before_the_first_step(
    opened: Opener, path: Path
) -> None:
    """The agent's first thought knows it."""
    model = Speaker("Done.")
    agent = Agent("actor", model=model)
    async with Midrun(kept_at(path), agents=[agent], engine=None) as asking:
        run = await asking.start("actor", "go")
        assert (await run.redirect(NEW, actor="ada")).phase == "queued"
    midrun = await opened(agent)
    await (await midrun.get(run.id)).until("completed")
    ((task, told),) = model.heard
    assert task.text == "go"
    assert instructed(told, NEW)


async def test_a_yes_for_the_old_course_does_not_count_for_the_new_one(opened: Opener) -> None:
    """Approved while paused, and not begun when the redirect comes."""
    sent: list[str] = []

    @tool(approve=True)
    async def send(name: str) -> str:
        """Need a person first."""
        sent.append(name)
        return "sent"

    model = Speaker(Line("", "", Use("send", name="mail")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[send]))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.pause()
    await run.approve(actor="bob")
    assert (await run.view()).phase == "paused"
    await run.redirect(NEW, actor="ada")
    await run.until("completed")
    assert sent == []
    (sealed,) = await entries(run, CallSealed)
    assert sealed.why == "not executed: the run was redirected"
    (applied,) = await entries(run, RedirectApplied)
    assert (applied.minus, applied.plus) == ("send", NEW)
    assert [start.call_kind for start in await entries(run, CallStarted)] == ["model", "model"]


async def test_a_yes_stays_void_when_the_redirect_is_withdrawn(
    opened: Opener, path: Path
) -> None:
    """Somebody had changed their mind about the course: the yes has to be given again."""
    sent: list[str] = []

    @tool(approve=True)
    async def send(name: str) -> str:
        """Need a person first."""
        sent.append(name)
        return "sent"

    def agent() -> Agent:
        model = ScriptedModel([Use("send", name="mail"), "Done."])
        return Agent("actor", model=model, tools=[send])

    address = kept_at(path)
    async with Midrun(address, agents=[agent()]) as first:
        run_id = (await first.start("actor", "go")).id
        await (await first.get(run_id)).until("waiting")
    async with Midrun(address) as nobody:
        resting = await nobody.get(run_id)
        await resting.pause()
        await resting.approve(actor="bob")
        redirect = await resting.redirect(NEW, actor="ada")
        await resting.withdraw(redirect.seq, actor="ada")
    midrun = await opened(agent())
    run = await midrun.get(run_id)
    (ask,) = (await run.until("waiting")).asks
    assert (ask.kind, sent) == ("approval", [])
    await run.approve(actor="bob")
    await run.until("completed")
    assert sent == ["mail"]
