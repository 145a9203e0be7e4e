"""Queued approvals: the agent continues, and gets the outcome of the call as a new message."""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Completed, ControlRefused, Midrun, Paused, Run
from midrun.core.entries import AskAnswered, AskClosed, CallSealed, CallStarted, RunCompleted
from midrun.core.transcript import Transcript
from midrun.models import Use
from midrun.ports.environment import Environment
from tests.scenarios.conversation.toolkit import (
    OPERATOR,
    REVIEW_RESULT,
    ApprovalToolkit,
    expect_refusal,
    repeat_last_message,
)
from tests.support.clocks import YEAR_LEASE, ManualClock
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, read_journal, read_turns, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

OUTCOME_PREFIX = "Outcome of post, which was awaiting review: "


async def start_waiting_run(
    opened: OpenMidrun, toolkit: ApprovalToolkit, *rest: object
) -> tuple[Midrun, Run]:
    """Return a run that has given its answer while a queued approval is still open."""
    midrun = await opened(toolkit.agent(Use("post", name="x"), "Posted, I hope.", *rest))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    return midrun, run


async def test_the_agent_continues_and_the_outcome_is_a_new_message(opened: OpenMidrun) -> None:
    """The model first gets the interim result that the call is under review."""
    toolkit = ApprovalToolkit()
    results: list[str] = []

    def continue_work(messages: Transcript) -> Use:
        results.append(repeat_results(messages))
        return Use("slow", name="other")

    agent = toolkit.agent(Use("post", name="x"), continue_work, repeat_last_message, "unheard")
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("other").wait()
    assert results[0].startswith(f"post: {REVIEW_RESULT}")
    view = await run.view()
    assert (view.phase, [ask.tool for ask in view.asks]) == ("running", ["post"])
    assert toolkit.called == ["other"]
    await run.approve(actor="ada")
    await toolkit.start("x").wait()  # the call does not wait for the other one
    toolkit.gate("other").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == f'{OUTCOME_PREFIX}"x done"'
    assert toolkit.completed == ["x", "other"]


async def test_the_interim_result_stays_in_later_prompts(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "Good.")
    await run.approve()
    await run.until("completed")
    transcript = await read_turns(run)
    (use,) = next(turn.uses for turn in transcript if turn.uses)
    assert use.problem.startswith(REVIEW_RESULT)
    assert [turn.text for turn in transcript if turn.kind == "outcome"] == [
        f'{OUTCOME_PREFIX}"x done"'
    ]


async def test_a_run_with_an_open_review_waits_instead_of_completing(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "Now it is.")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.phase, outcome.reason) == ("waiting", "approval")
    assert toolkit.called == []
    await run.approve()
    done = await run.result()
    assert isinstance(done, Completed)
    assert done.output == "Now it is."


async def test_a_decline_reaches_the_model_with_its_reason(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, repeat_last_message)
    await run.decline("too loud", actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == f"{OUTCOME_PREFIX}declined by ada: too loud"
    assert toolkit.called == []


async def test_a_call_with_edited_arguments_refers_to_their_approval(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, repeat_last_message)
    await run.approve(args={"name": "y"}, actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (toolkit.completed, outcome.output) == (["y"], f'{OUTCOME_PREFIX}"y done"')
    (answer,) = await read_entries(run, AskAnswered)
    (started,) = [e for e in await read_entries(run, CallStarted) if e.approval is not None]
    assert started.approval is not None
    assert started.approval.args_hash == answer.args_hash


async def test_two_reviews_are_settled_separately_and_in_any_order(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    both = [Use("post", name="x"), Use("post", name="y")]
    midrun = await opened(toolkit.agent(both, "Hm.", "One.", "Two.", "Three."))
    run = await midrun.start("actor", "go")
    view = await run.until("waiting")
    first, second = (ask.id for ask in view.asks)
    await run.approve(ask=second)
    await toolkit.start("y").wait()
    await run.until("waiting")
    assert toolkit.completed == ["y"]
    await run.decline("no", ask=first, actor="ada")
    await run.until("completed")
    outcomes = [turn.text for turn in await read_turns(run) if turn.kind == "outcome"]
    assert outcomes == [f'{OUTCOME_PREFIX}"y done"', f"{OUTCOME_PREFIX}declined by ada: no"]


async def test_a_call_beside_the_queued_one_is_made_at_once(opened: OpenMidrun) -> None:
    """The step ends while one of its calls waits for its review."""
    toolkit = ApprovalToolkit()
    beside = [Use("post", name="x"), Use("quick", name="y")]
    midrun = await opened(toolkit.agent(beside, Use("slow", name="z"), "Done.", "Done."))
    run = await midrun.start("actor", "go")
    await toolkit.start("z").wait()
    assert toolkit.completed == ["y"]
    await run.approve()
    toolkit.gate("z").set()
    await run.until("completed")
    assert sorted(toolkit.completed) == ["x", "y", "z"]


# ── expiry ────────────────────────────────────────────────────────────────────────────────


async def test_an_expired_review_counts_as_declined(path: Path) -> None:
    """A later approval is refused."""
    toolkit, clock = ApprovalToolkit(), ManualClock()
    agent = toolkit.agent(Use("brief_post", name="x"), "Hm.", repeat_last_message)
    outside = Environment(clock=clock, lease=YEAR_LEASE)
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=[agent], outside=outside) as midrun:
            run = await midrun.start("actor", "go")
            (ask,) = (await run.until("waiting")).asks
            assert ask.expires_at == clock.now + 3_600_000_000
            clock.advance(timedelta(hours=2))
            assert (await expect_refusal(run.approve(ask=ask.id))).reason == "ask_closed"
            view = await run.until("completed")
            assert "no decision in time" in view.output
            assert await midrun.verify(run.id)
    assert toolkit.called == []


# ── redirect and cancel ────────────────────────────────────────────────────────────────────


async def test_a_redirect_of_a_waiting_run_closes_the_review(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "Something else.")
    (ask,) = (await run.view()).asks
    await run.redirect("Something else", actor="bob")
    refusal = await expect_refusal(run.approve(ask=ask.id, actor="ada"))
    assert (refusal.reason, refusal.by) == ("ask_closed", "bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert toolkit.called == []
    (closed,) = await read_entries(run, AskClosed)
    assert (closed.why, closed.by) == ("superseded", "bob")


async def test_a_redirect_of_a_running_run_closes_the_review_at_once(
    opened: OpenMidrun,
) -> None:
    """No approval is possible between the request and the next boundary."""
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("post", name="x"), Use("slow", name="other"), "New.", "New.")
    run = await (await opened(agent)).start("actor", "go")
    await toolkit.start("other").wait()
    (ask,) = (await run.view()).asks
    await run.redirect("New")
    assert (await expect_refusal(run.approve(ask=ask.id))).reason == "ask_closed"
    toolkit.gate("other").set()
    assert isinstance(await run.result(), Completed)
    assert toolkit.completed == ["other"]


async def test_a_redirect_drops_an_approved_call_that_has_not_started(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "New.")
    await run.pause()
    await run.approve()
    await run.redirect("New")
    assert isinstance(await run.result(), Completed)
    assert toolkit.called == []
    assert len(await read_entries(run, CallSealed)) == 1


async def test_a_cancel_closes_the_review(opened: OpenMidrun) -> None:
    """The report lists the call as never started."""
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit)
    (ask,) = (await run.view()).asks
    await run.cancel()
    await run.until("cancelled")
    assert (await expect_refusal(run.approve(ask=ask.id))).reason == "ask_closed"
    assert [call.tool for call in (await run.report()).never_started] == ["post"]
    assert toolkit.called == []


async def test_a_cancel_undoes_a_reviewed_call(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    agent = toolkit.agent(Use("post_draft", name="x"), "Hm.", Use("slow", name="y"))
    run = await (await opened(agent)).start("actor", "go")
    await run.until("waiting")
    await run.approve()
    await toolkit.start("y").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert toolkit.undone == ["x"]


# ── pause, side question, processes ──────────────────────────────────────────────────────


async def test_an_approval_does_not_resume_a_paused_run(opened: OpenMidrun) -> None:
    """The call is made after the resume."""
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "Good.")
    await run.pause()
    await run.approve()
    assert (await run.view()).phase == "paused"
    assert toolkit.called == []
    await run.resume()
    await run.until("completed")
    assert toolkit.completed == ["x"]


async def test_a_side_question_keeps_the_review_open(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "Tuesday.", "Good.")
    await run.say("What day is it?")
    with anyio.fail_after(60):
        while (await read_turns(run))[-1].text != "Tuesday.":
            await run.until("waiting")
    view = await run.until("waiting")
    assert [ask.tool for ask in view.asks] == ["post"]
    assert toolkit.called == []
    await run.approve()
    await run.until("completed")
    assert toolkit.completed == ["x"]


async def test_a_process_without_agents_settles_a_review(
    opened: OpenMidrun, path: Path
) -> None:
    """The first process proposes the call, the second approves it, the third makes it."""
    toolkit = ApprovalToolkit()
    script = (Use("post", name="x"), "Hm.", repeat_last_message)
    async with Midrun(get_store_url(path), agents=[toolkit.agent(*script)]) as first:
        run = await first.start("actor", "go")
        await run.until("waiting")
    async with Midrun(get_store_url(path)) as second:
        await (await second.get(run.id)).approve(args={"name": "y"}, actor="ada")
    assert toolkit.called == []
    third = await opened(toolkit.agent(*script))
    view = await (await third.get(run.id)).until("completed")
    assert (toolkit.completed, view.output) == (["y"], f'{OUTCOME_PREFIX}"y done"')


async def test_of_two_approvals_at_once_one_wins_and_the_other_is_refused(
    opened: OpenMidrun,
) -> None:
    """They come from two processes; the refusal names the first actor."""
    toolkit = ApprovalToolkit()
    midrun, run = await start_waiting_run(opened, toolkit, "Good.")
    remote_run = await (await opened()).get(run.id)
    (ask,) = (await run.view()).asks
    refusals: list[ControlRefused] = []

    async def decide(handle: Run, name: str, args: dict[str, str]) -> None:
        try:
            await handle.approve(ask=ask.id, args=args, actor=name)
        except ControlRefused as error:
            refusals.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(decide, run, "ada", {"name": "by ada"})
        tasks.start_soon(decide, remote_run, "bob", {"name": "by bob"})
    await run.until("completed")
    (answer,) = await read_entries(run, AskAnswered)
    assert toolkit.completed == [f"by {answer.by}"]
    (refusal,) = refusals  # the run may have ended by then
    assert refusal.reason in {"already_answered", "ask_closed"}
    assert refusal.by == answer.by
    assert await midrun.verify(run.id)


@pytest.mark.parametrize("first", ["approve", "redirect"])
async def test_an_approval_and_a_redirect_at_once_make_the_call_at_most_once(
    opened: OpenMidrun, first: str
) -> None:
    """The call is made only if the approval came first."""
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "Good.", "Good.", "Good.")
    (ask,) = (await run.view()).asks
    applied: list[str] = []

    async def approve() -> None:
        try:
            await run.approve(ask=ask.id)
            applied.append("approve")
        except ControlRefused as error:
            assert error.reason == "ask_closed"  # noqa: PT017 - the approval may come first

    async def redirect() -> None:
        try:
            await run.redirect("New")
        except ControlRefused as error:
            assert error.reason == "is_completed"  # noqa: PT017 - approved, and completed already

    async with anyio.create_task_group() as tasks:
        for send_control in (approve, redirect) if first == "approve" else (redirect, approve):
            tasks.start_soon(send_control)
    await run.until("completed")
    journal_entries = await read_journal(run)
    started = [
        e for e in journal_entries if isinstance(e, CallStarted) and e.approval is not None
    ]
    assert len(started) == len(toolkit.completed) <= 1
    assert not (started and not applied)


async def test_only_the_audience_can_settle_a_queued_review(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    midrun = await opened(toolkit.agent(Use("wire_post", name="x"), "Hm.", "Good."))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    assert (await expect_refusal(run.approve(actor="ada"))).reason == "not_allowed"
    await run.approve(actor=OPERATOR)
    await run.until("completed")
    assert toolkit.completed == ["x"]


async def test_the_last_entry_of_a_reviewed_run_is_its_end(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    _, run = await start_waiting_run(opened, toolkit, "Good.")
    await run.approve()
    await wait_for_entry(run, RunCompleted)
    assert isinstance((await read_journal(run))[-1], RunCompleted)
