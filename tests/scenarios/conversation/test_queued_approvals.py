"""Queued approvals: the agent goes on, and learns of the decision as a new message."""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Actor, Completed, ControlRefused, Midrun, Paused, Run
from midrun.core.entries import AskAnswered, AskClosed, CallSealed, CallStarted, RunCompleted
from midrun.core.transcript import Transcript
from midrun.models import Use
from midrun.ports.environment import Environment
from tests.scenarios.conversation.workshop import REVIEW, Workshop, last, told
from tests.scenarios.promises.clocks import FAR, Hand
from tests.scenarios.promises.seen import entries, journal, recorded, turns
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener

OUTCOME = "Outcome of post, which was awaiting review: "


async def refused(control: object) -> ControlRefused:
    """Return how a control was refused."""
    with pytest.raises(ControlRefused) as caught:
        await control  # type: ignore[misc]  # a coroutine of any control
    return caught.value


async def waiting(opened: Opener, shop: Workshop, *rest: object) -> tuple[Midrun, Run]:
    """Bring a run to where it has said its answer and a queued approval is still out."""
    midrun = await opened(shop.agent(Use("post", name="x"), "Posted, I hope.", *rest))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    return midrun, run


async def test_the_agent_goes_on_with_other_work_and_the_outcome_is_a_new_message(
    opened: Opener,
) -> None:
    """It is told at once that the call is under review, and later what came of it."""
    shop = Workshop()
    heard: list[str] = []

    def goes_on(messages: Transcript) -> Use:
        heard.append(told(messages))
        return Use("slow", name="other")

    agent = shop.agent(Use("post", name="x"), goes_on, last, "unheard")
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("other").wait()
    assert heard[0].startswith(f"post: {REVIEW}")
    view = await run.view()
    assert (view.phase, [ask.tool for ask in view.asks]) == ("running", ["post"])
    assert shop.called == ["other"]
    await run.approve(actor="ada")
    await shop.start("x").wait()  # it does not wait for the other work
    shop.gate("other").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == f'{OUTCOME}"x done"'
    assert shop.completed == ["x", "other"]


async def test_the_interim_result_is_never_rewritten(opened: Opener) -> None:
    """What the model was told once, it is told again in every later prompt."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "Good.")
    await run.approve()
    await run.until("completed")
    said = await turns(run)
    (made,) = next(turn.uses for turn in said if turn.uses)
    assert made.problem.startswith(REVIEW)
    assert [turn.text for turn in said if turn.kind == "outcome"] == [f'{OUTCOME}"x done"']


async def test_a_run_with_a_review_open_waits_instead_of_completing(opened: Opener) -> None:
    """It has its answer, and does not end behind anybody's back."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "Now it is.")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert (outcome.phase, outcome.reason) == ("waiting", "approval")
    assert shop.called == []
    await run.approve()
    done = await run.result()
    assert isinstance(done, Completed)
    assert done.output == "Now it is."


async def test_a_decline_is_told_with_its_reason_and_the_run_ends(opened: Opener) -> None:
    """The call is never made."""
    shop = Workshop()
    _, run = await waiting(opened, shop, last)
    await run.decline("too loud", actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == f"{OUTCOME}declined by ada: too loud"
    assert shop.called == []


async def test_edited_arguments_are_made_and_told(opened: Opener) -> None:
    """The start cites the approval of these arguments, and of no others."""
    shop = Workshop()
    _, run = await waiting(opened, shop, last)
    await run.approve(args={"name": "y"}, actor="ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (shop.completed, outcome.output) == (["y"], f'{OUTCOME}"y done"')
    (answered,) = await entries(run, AskAnswered)
    (started,) = [e for e in await entries(run, CallStarted) if e.approval is not None]
    assert started.approval is not None
    assert started.approval.args_hash == answered.args_hash


async def test_two_reviews_are_decided_apart_and_in_any_order(opened: Opener) -> None:
    """Each outcome is told under its own name."""
    shop = Workshop()
    both = [Use("post", name="x"), Use("post", name="y")]
    midrun = await opened(shop.agent(both, "Hm.", "One.", "Two.", "Three."))
    run = await midrun.start("actor", "go")
    view = await run.until("waiting")
    first, second = (ask.id for ask in view.asks)
    await run.approve(ask=second)
    await shop.start("y").wait()
    await run.until("waiting")
    assert shop.completed == ["y"]
    await run.decline("no", ask=first, actor="ada")
    await run.until("completed")
    outcomes = [turn.text for turn in await turns(run) if turn.kind == "outcome"]
    assert outcomes == [f'{OUTCOME}"y done"', f"{OUTCOME}declined by ada: no"]


async def test_a_call_beside_the_queued_one_is_made_at_once(opened: Opener) -> None:
    """The step ends although one of its calls is parked."""
    shop = Workshop()
    beside = [Use("post", name="x"), Use("quick", name="y")]
    midrun = await opened(shop.agent(beside, Use("slow", name="z"), "Done.", "Done."))
    run = await midrun.start("actor", "go")
    await shop.start("z").wait()
    assert shop.completed == ["y"]
    await run.approve()
    shop.gate("z").set()
    await run.until("completed")
    assert sorted(shop.completed) == ["x", "y", "z"]


# ── time ──────────────────────────────────────────────────────────────────────────────────


async def test_a_review_that_nobody_makes_in_time_is_a_no(path: Path) -> None:
    """The agent is told so, and whoever comes after learns that it is over."""
    shop, clock = Workshop(), Hand()
    agent = shop.agent(Use("brief_post", name="x"), "Hm.", last)
    outside = Environment(clock=clock, lease=FAR)
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=outside) as midrun:
            run = await midrun.start("actor", "go")
            (ask,) = (await run.until("waiting")).asks
            assert ask.expires_at == clock.now + 3_600_000_000
            clock.move(timedelta(hours=2))
            assert (await refused(run.approve(ask=ask.id))).reason == "ask_closed"
            view = await run.until("completed")
            assert "nobody decided in time" in view.output
            assert await midrun.verify(run.id)
    assert shop.called == []


# ── a new course ──────────────────────────────────────────────────────────────────────────


async def test_a_redirect_while_it_waits_withdraws_the_review(opened: Opener) -> None:
    """What was proposed for the old plan is not made for the new one."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "Something else.")
    (ask,) = (await run.view()).asks
    await run.redirect("Something else", actor="bob")
    late = await refused(run.approve(ask=ask.id, actor="ada"))
    assert (late.reason, late.by) == ("ask_closed", "bob")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert shop.called == []
    (closed,) = await entries(run, AskClosed)
    assert (closed.why, closed.by) == ("superseded", "bob")


async def test_a_redirect_while_it_works_withdraws_the_review(opened: Opener) -> None:
    """At once: nobody can approve between the request and its boundary."""
    shop = Workshop()
    agent = shop.agent(Use("post", name="x"), Use("slow", name="other"), "New.", "New.")
    run = await (await opened(agent)).start("actor", "go")
    await shop.start("other").wait()
    (ask,) = (await run.view()).asks
    await run.redirect("New")
    assert (await refused(run.approve(ask=ask.id))).reason == "ask_closed"
    shop.gate("other").set()
    assert isinstance(await run.result(), Completed)
    assert shop.completed == ["other"]


async def test_a_redirect_withdraws_what_was_approved_and_not_made_yet(opened: Opener) -> None:
    """A yes for the old plan is no yes for the new one."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "New.")
    await run.pause()
    await run.approve()
    await run.redirect("New")
    assert isinstance(await run.result(), Completed)
    assert shop.called == []
    assert len(await entries(run, CallSealed)) == 1


async def test_a_cancel_closes_the_review(opened: Opener) -> None:
    """And the report says that it was never started."""
    shop = Workshop()
    _, run = await waiting(opened, shop)
    (ask,) = (await run.view()).asks
    await run.cancel()
    await run.until("cancelled")
    assert (await refused(run.approve(ask=ask.id))).reason == "ask_closed"
    assert [deed.tool for deed in (await run.report()).never_started] == ["post"]
    assert shop.called == []


async def test_what_was_approved_and_made_is_undone_with_the_rest(opened: Opener) -> None:
    """A review changes who decides, not what a cancel means."""
    shop = Workshop()
    agent = shop.agent(Use("post_draft", name="x"), "Hm.", Use("slow", name="y"))
    run = await (await opened(agent)).start("actor", "go")
    await run.until("waiting")
    await run.approve()
    await shop.start("y").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert shop.undone == ["x"]


# ── pauses, questions, restarts ───────────────────────────────────────────────────────────


async def test_a_paused_run_keeps_the_decision_until_it_is_resumed(opened: Opener) -> None:
    """A yes is not a resume."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "Good.")
    await run.pause()
    await run.approve()
    assert (await run.view()).phase == "paused"
    assert shop.called == []
    await run.resume()
    await run.until("completed")
    assert shop.completed == ["x"]


async def test_a_side_question_while_a_review_is_out_is_answered_and_it_stays_out(
    opened: Opener,
) -> None:
    """The run waits again afterwards, and nothing is made."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "Tuesday.", "Good.")
    await run.say("What day is it?")
    with anyio.fail_after(60):
        while (await turns(run))[-1].text != "Tuesday.":
            await run.until("waiting")
    view = await run.until("waiting")
    assert [ask.tool for ask in view.asks] == ["post"]
    assert shop.called == []
    await run.approve()
    await run.until("completed")
    assert shop.completed == ["x"]


async def test_a_review_outlives_the_process_and_may_be_made_where_nothing_is_driven(
    opened: Opener, path: Path
) -> None:
    """Proposed in one process, approved in a second, made in a third."""
    shop = Workshop()
    turns_ = (Use("post", name="x"), "Hm.", last)
    async with Midrun(kept_at(path), agents=[shop.agent(*turns_)]) as first:
        run = await first.start("actor", "go")
        await run.until("waiting")
    async with Midrun(kept_at(path)) as desk:
        await (await desk.get(run.id)).approve(args={"name": "y"}, actor="ada")
    assert shop.called == []
    third = await opened(shop.agent(*turns_))
    view = await (await third.get(run.id)).until("completed")
    assert (shop.completed, view.output) == (["y"], f'{OUTCOME}"y done"')


async def test_of_two_people_who_decide_at_once_one_does_and_the_other_learns_who(
    opened: Opener,
) -> None:
    """From two processes: the order of the journal decides, and the call is made once."""
    shop = Workshop()
    midrun, run = await waiting(opened, shop, "Good.")
    elsewhere = await (await opened()).get(run.id)
    (ask,) = (await run.view()).asks
    lost: list[ControlRefused] = []

    async def decide(handle: Run, name: str, args: dict[str, str]) -> None:
        try:
            await handle.approve(ask=ask.id, args=args, actor=name)
        except ControlRefused as error:
            lost.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(decide, run, "ada", {"name": "by ada"})
        tasks.start_soon(decide, elsewhere, "bob", {"name": "by bob"})
    await run.until("completed")
    (answered,) = await entries(run, AskAnswered)
    assert shop.completed == [f"by {answered.by}"]
    (late,) = lost  # the run may have ended by then
    assert late.reason in {"already_answered", "ask_closed"}
    assert late.by == answered.by
    assert await midrun.verify(run.id)


@pytest.mark.parametrize("first", ["approve", "redirect"])
async def test_a_decision_and_a_redirect_at_once_leave_one_truth(
    opened: Opener, first: str
) -> None:
    """Either it was made before the new course, or it is never made."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "Good.", "Good.", "Good.")
    (ask,) = (await run.view()).asks
    won: list[str] = []

    async def approve() -> None:
        try:
            await run.approve(ask=ask.id)
            won.append("approve")
        except ControlRefused as error:
            assert error.reason == "ask_closed"  # noqa: PT017 - the other order raises nothing

    async def redirect() -> None:
        try:
            await run.redirect("New")
        except ControlRefused as error:
            assert error.reason == "is_completed"  # noqa: PT017 - approved, and over already

    async with anyio.create_task_group() as tasks:
        for ask_for in (approve, redirect) if first == "approve" else (redirect, approve):
            tasks.start_soon(ask_for)
    await run.until("completed")
    said = await journal(run)
    made = [e for e in said if isinstance(e, CallStarted) and e.approval is not None]
    assert len(made) == len(shop.completed) <= 1
    assert not (made and not won)


async def test_only_the_audience_may_make_a_queued_review(opened: Opener) -> None:
    """A queue does not loosen who decides."""
    shop = Workshop()
    midrun = await opened(shop.agent(Use("wire_post", name="x"), "Hm.", "Good."))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    assert (await refused(run.approve(actor="ada"))).reason == "not_allowed"
    await run.approve(actor=Actor(name="olga", role="operator"))
    await run.until("completed")
    assert shop.completed == ["x"]


async def test_the_last_entry_of_a_reviewed_run_is_its_end(opened: Opener) -> None:
    """Nothing of the review comes after it."""
    shop = Workshop()
    _, run = await waiting(opened, shop, "Good.")
    await run.approve()
    await recorded(run, RunCompleted)
    assert isinstance((await journal(run))[-1], RunCompleted)
