"""Races have one winner, and both sides learn who won.

Whatever comes first into the journal counts. Whoever comes second is told so, by name, with the
place and the person that came first; nobody is told two things.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import pytest

from midrun import Completed, ControlRefused, Midrun, Receipt, Run
from midrun.core.entries import (
    AskAnswered,
    CancelRequested,
    PauseRequested,
    RequestNoted,
    RunCompleted,
    RunResumed,
)
from midrun.models import Use
from tests.scenarios.promises.office import office, script, written
from tests.scenarios.promises.seen import entries, journal, kinds, true
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

CROWD = 20


async def at_once(*asking: Callable[[], Awaitable[Receipt]]) -> list[Receipt | ControlRefused]:
    """Let all of them ask at the same moment; return what each was told, in their order."""
    told: list[Receipt | ControlRefused | None] = [None] * len(asking)
    gate = anyio.Event()

    async def ask(place: int) -> None:
        await gate.wait()
        try:
            told[place] = await asking[place]()
        except ControlRefused as refused:
            told[place] = refused

    async with anyio.create_task_group() as tasks:
        for place in range(len(asking)):
            tasks.start_soon(ask, place)
        gate.set()
    return [one for one in told if one is not None]


def winners(told: Sequence[Receipt | ControlRefused]) -> list[int]:
    """Return the places of those who were told that it was they."""
    return [n for n, one in enumerate(told) if isinstance(one, Receipt) and one.already is None]


async def crowd(one: Run, two: Run) -> list[tuple[Run, str]]:
    """Return twenty people, at two processes."""
    return [((one, two)[n % 2], f"person{n}") for n in range(CROWD)]


async def paused(opened: Opener, stage: ControllableTools) -> tuple[Run, Run]:
    """Return the handles that two processes have of a paused run."""
    driving = await opened(stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done."))
    watching = await opened()
    run = await driving.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    return run, await watching.get(run.id)


# ── twenty at once, from two processes ────────────────────────────────────────────────────


async def test_of_twenty_cancels_one_counts_and_the_others_learn_whose(opened: Opener) -> None:
    """One entry, one undo; nobody is told that it was refused, for it is what they wanted."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow_draft", name="a"), "Done."))
    watching = await opened()
    run = await driving.start("actor", "go")
    other = await watching.get(run.id)
    await stage.start("a").wait()
    people = await crowd(run, other)
    told = await at_once(
        *(lambda h=handle, p=person: h.cancel(actor=p) for handle, person in people)
    )
    (winner,) = winners(told)
    (counted,) = await entries(run, CancelRequested)
    assert counted.by == people[winner][1]
    for place, one in enumerate(told):
        assert isinstance(one, Receipt)
        if place != winner:
            assert one.already in {"already_cancelling", "already_cancelled"}
            assert one.by == counted.by
    await run.until("cancelled")
    assert stage.undone == ["a"]


async def test_of_twenty_resumes_one_counts_and_the_others_learn_whose(opened: Opener) -> None:
    """Whatever the run has come to meanwhile, there was one resumption of this pause."""
    stage = ControllableTools()
    run, other = await paused(opened, stage)
    people = await crowd(run, other)
    told = await at_once(
        *(lambda h=handle, p=person: h.resume(actor=p) for handle, person in people)
    )
    (winner,) = winners(told)
    (counted,) = await entries(run, RunResumed)
    assert counted.by == people[winner][1]
    for place, one in enumerate(told):
        if place == winner:
            continue
        if isinstance(one, Receipt):
            assert one.already in {"already_queued", "already_running"}
        else:
            assert one.reason == "is_completed"  # it was too quick for them
    await run.until("completed")
    assert stage.completed == ["a", "b"]


async def test_a_resume_that_lost_names_the_one_that_won(opened: Opener) -> None:
    """Bare, it is a no-op; with words it is refused, so that nobody's words are lost."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    watching = await opened()
    run = await driving.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    first = await run.resume(actor="ada")
    await stage.start("b").wait()
    other = await watching.get(run.id)
    second = await other.resume(actor="bob")
    assert (second.already, second.by) == ("already_running", "ada")
    with pytest.raises(ControlRefused) as refused:
        await other.resume("and hurry", actor="bob")
    assert (refused.value.reason, refused.value.by) == ("not_paused", "ada")
    assert refused.value.seq >= first.seq
    stage.gate("b").set()
    await run.until("completed")


async def test_of_twenty_answers_one_is_the_result(opened: Opener, tmp_path: Path) -> None:
    """And the nineteen others are told by whom and where."""
    log = str(tmp_path / "book.txt")
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    driving = await opened(office(asks, "Done."))  # the second keeps the run from ending
    watching = await opened()
    run = await driving.start("office", "go")
    one, _ = (await run.until("waiting")).asks
    people = await crowd(run, await watching.get(run.id))
    told = await at_once(
        *(
            lambda h=handle, p=person: h.answer(p, ask=one.id, actor=p)
            for handle, person in people
        )
    )
    (winner,) = winners(told)
    (counted,) = await entries(run, AskAnswered)
    assert (counted.by, counted.decision.value) == (people[winner][1],) * 2
    for place, other in enumerate(told):
        if place != winner:
            assert isinstance(other, ControlRefused)
            assert (other.reason, other.by) == ("already_answered", counted.by)
            assert other.detail == f"answered “{counted.by}”"


async def test_of_an_approval_and_a_refusal_one_counts(opened: Opener, tmp_path: Path) -> None:
    """A call is made or it is not, as the one who came first decided."""
    log = tmp_path / "book.txt"
    driving = await opened(office(*script("pay", str(log))))
    watching = await opened()
    run = await driving.start("office", "go")
    (ask,) = (await run.until("waiting")).asks
    other = await watching.get(run.id)
    told = await at_once(
        lambda: run.approve(ask=ask.id, actor="ada"),
        lambda: other.decline("no", ask=ask.id, actor="bob"),
    )
    (winner,) = winners(told)
    await run.until("completed")
    (counted,) = await entries(run, AskAnswered)
    assert counted.by == ("ada", "bob")[winner]
    assert ("paid 100 to ada" in written(log)) == (counted.by == "ada")
    lost = told[1 - winner]
    assert isinstance(lost, ControlRefused)


async def test_pause_resume_redirect_and_cancel_at_once_leave_one_story(
    opened: Opener,
) -> None:
    """Every receipt ever given agrees with the journal; from the cancel on nothing starts."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    watching = await opened()
    run = await driving.start("actor", "go")
    other = await watching.get(run.id)
    await stage.start("a").wait()
    asking: list[Callable[[], Awaitable[Receipt]]] = []
    for handle in (run, other, run, other):
        asking += [
            lambda h=handle: h.pause(actor="p"),  # type: ignore[misc]  # bound here
            lambda h=handle: h.resume(actor="r"),  # type: ignore[misc]  # as above
            lambda h=handle: h.redirect("left", actor="d"),  # type: ignore[misc]  # as above
            lambda h=handle: h.cancel(actor="c"),  # type: ignore[misc]  # as above
        ]
    told = await at_once(*asking)
    await run.until("cancelled")
    names = {
        0: "PauseRequested", 1: "PauseWithdrawn", 2: "RedirectRequested", 3: "CancelRequested",
    }  # fmt: skip
    stands = await kinds(run)
    for place in winners(told):
        receipt = told[place]
        assert isinstance(receipt, Receipt)
        at = stands[receipt.seq - 1]
        assert at in {names[place % 4], "RunResumed", "PauseRequested"}
    assert stands.count("CancelRequested") == 1
    assert "CallStarted" not in stands[stands.index("CancelRequested") :]


# ── against the end ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("control", ["pause", "cancel"])
async def test_a_control_against_the_end_of_the_run_has_one_winner(
    control: str, opened: Opener
) -> None:
    """Accepted, the run does not complete; refused, it has, and says so."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow", name="a"), "Done."))
    watching = await opened()
    runs = [await driving.start("actor", f"go {n}") for n in range(10)]
    handles = [await watching.get(run.id) for run in runs]
    await true(lambda: len(stage.called) == len(runs))
    stage.gate("a").set()  # all of them are about to end
    told = await at_once(*(getattr(handle, control) for handle in handles))
    for run, one in zip(runs, told, strict=True):
        view = await run.until("paused", "cancelled", "completed")
        ended = await entries(run, RunCompleted)
        if isinstance(one, Receipt):
            asked = PauseRequested if control == "pause" else CancelRequested
            assert (len(await entries(run, asked)), ended) == (1, [])
            assert view.phase == ("paused" if control == "pause" else "cancelled")
        else:
            assert one.reason in {"is_completed", "already_completed"}
            assert view.phase == "completed"
        if view.phase == "paused":  # what it had come to is not lost
            await run.resume()
            assert (await run.until("completed")).output == "Done."


async def test_an_answer_against_a_cancel_has_one_winner(
    opened: Opener, tmp_path: Path
) -> None:
    """Never both: an answered run that is cancelled says in which order."""
    log = str(tmp_path / "book.txt")
    driving = await opened(office(*script("ask_async", log)))
    watching = await opened()
    for _ in range(5):
        run = await driving.start("office", "go")
        (ask,) = (await run.until("waiting")).asks
        other = await watching.get(run.id)
        answered, cancelled = await at_once(
            lambda r=run, a=ask.id: r.answer("yes", ask=a, actor="ada"),  # type: ignore[misc]  # bound here
            lambda r=other: r.cancel(actor="bob"),  # type: ignore[misc]  # as above
        )
        view = await run.until("terminal")
        stands = await kinds(run)
        if isinstance(answered, ControlRefused):
            assert (answered.reason, view.phase) == ("ask_closed", "cancelled")
            assert "AskAnswered" not in stands
        if isinstance(cancelled, ControlRefused):
            assert (cancelled.reason, view.phase) == ("already_completed", "completed")


# ── the same request twice ────────────────────────────────────────────────────────────────


async def test_a_request_that_is_repeated_is_applied_once_and_told_the_same(
    opened: Opener,
) -> None:
    """The reply was lost, so the client asks again: from another process, and later."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    watching = await opened()
    run = await driving.start("actor", "go")
    await stage.start("a").wait()
    first = await run.pause(actor="ada", request_id="r1")
    stage.gate("a").set()
    await run.until("paused")
    await run.resume(actor="bob")
    await stage.start("b").wait()
    other = await watching.get(run.id)
    second = await other.pause(actor="ada", request_id="r1")
    assert (second.seq, second.by) == (first.seq, first.by)
    assert (await run.view()).phase == "running"  # it is not paused a second time
    assert len(await entries(run, PauseRequested)) == 1
    stage.gate("b").set()
    await run.until("completed")
    third = await other.pause(actor="ada", request_id="r1")
    assert third.seq == first.seq


async def test_twenty_repeats_at_once_are_one_request(opened: Opener) -> None:
    """All of them get the receipt of the one."""
    stage = ControllableTools()
    driving = await opened(stage.agent(Use("slow", name="a"), "Done."))
    watching = await opened()
    run = await driving.start("actor", "go")
    await stage.start("a").wait()
    handles = [run, await watching.get(run.id)] * 10
    told = await at_once(
        *(lambda h=h: h.redirect("left", actor="ada", request_id="r1") for h in handles)
    )
    assert len({one.seq for one in told if isinstance(one, Receipt)}) == 1
    assert (await kinds(run)).count("RedirectRequested") == 1
    stage.gate("a").set()


async def test_a_refusal_is_repeated_as_it_was_told(opened: Opener) -> None:
    """Also when the run could do it by now: the same question gets the same answer."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    reasons = []
    for _ in range(2):
        with pytest.raises(ControlRefused) as refused:
            await run.resume("hurry", actor="ada", request_id="r1")
        reasons.append((refused.value.reason, refused.value.seq, refused.value.by))
        await run.pause()
    assert reasons[0] == reasons[1]
    assert reasons[0][0] == "not_paused"
    assert len(await entries(run, RequestNoted)) == 1
    stage.gate("a").set()


@pytest.mark.parametrize("other", ["words", "actor", "control"])
async def test_an_id_that_is_reused_for_something_else_is_refused(
    other: str, opened: Opener
) -> None:
    """Other words, another person, another control: it is not a repeat."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.redirect("left", actor="ada", request_id="r1")
    again: dict[str, Callable[[], Awaitable[Receipt]]] = {
        "words": lambda: run.redirect("right", actor="ada", request_id="r1"),
        "actor": lambda: run.redirect("left", actor="bob", request_id="r1"),
        "control": lambda: run.cancel(actor="ada", request_id="r1"),
    }
    with pytest.raises(ControlRefused) as refused:
        await again[other]()
    assert refused.value.reason == "request_id_reused"
    assert (await kinds(run)).count("RedirectRequested") == 1
    assert "CancelRequested" not in await kinds(run)
    stage.gate("a").set()


async def test_a_run_is_started_once_however_often_it_is_asked_for(opened: Opener) -> None:
    """By its request id; the same id for anything else is refused."""
    stage = ControllableTools()
    one = await opened(stage.agent(Use("quick", name="a"), "Done."))
    two = await opened(stage.agent(Use("quick", name="a"), "Done."))
    runs: list[str] = []

    async def start(midrun: Midrun) -> None:
        runs.append((await midrun.start("actor", "go", request_id="r1", actor="ada")).id)

    async with anyio.create_task_group() as tasks:
        for midrun in (one, two) * 5:
            tasks.start_soon(start, midrun)
    assert len(set(runs)) == 1
    run = await one.get(runs[0])
    assert isinstance(await run.result(), Completed)
    assert stage.completed == ["a"]
    assert len((await one.runs()).items) == 1
    for otherwise in (
        two.start("actor", "something else", request_id="r1", actor="ada"),
        two.start("actor", "go", request_id="r1", actor="ada", labels=["urgent"]),
        two.start("actor", "go", request_id="r1", actor="ada", thread="t1"),
    ):
        with pytest.raises(ControlRefused) as refused:
            await otherwise
        assert refused.value.reason == "request_id_reused"
    assert len(await journal(run)) == len(await journal(await two.get(run.id)))
