"""Promise 14: a race has one winner.

The first control in the journal counts. The reply to each other one names the actor and the seq
of the first.
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
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.log_agent import get_script, log_agent, read_log
from tests.support.run_journal import read_entries, read_journal, read_kinds, yield_until
from tests.unit.runs.conftest import OpenMidrun

ACTOR_COUNT = 20


async def send_together(
    *controls: Callable[[], Awaitable[Receipt]],
) -> list[Receipt | ControlRefused]:
    """Send all controls concurrently; return their replies in the same order."""
    replies: list[Receipt | ControlRefused | None] = [None] * len(controls)
    gate = anyio.Event()

    async def send(index: int) -> None:
        await gate.wait()
        try:
            replies[index] = await controls[index]()
        except ControlRefused as refused:
            replies[index] = refused

    async with anyio.create_task_group() as tasks:
        for index in range(len(controls)):
            tasks.start_soon(send, index)
        gate.set()
    return [reply for reply in replies if reply is not None]


def find_winners(replies: Sequence[Receipt | ControlRefused]) -> list[int]:
    """Return the indexes of the replies that say that the control counted."""
    return [
        index
        for index, reply in enumerate(replies)
        if isinstance(reply, Receipt) and reply.already is None
    ]


def assign_actors(one: Run, two: Run) -> list[tuple[Run, str]]:
    """Return twenty actors, each with one of two handles of the run."""
    return [((one, two)[n % 2], f"person{n}") for n in range(ACTOR_COUNT)]


async def start_paused_run(opened: OpenMidrun, tools: ControllableTools) -> tuple[Run, Run]:
    """Return two handles of a paused run, each of its own `Midrun`."""
    midrun = await opened(tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done."))
    other_midrun = await opened()
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause()
    tools.gate("a").set()
    await run.until("paused")
    return run, await other_midrun.get(run.id)


# ── twenty controls at the same time ──────────────────────────────────────────────────────


async def test_of_twenty_cancels_one_counts_and_the_others_name_its_actor(
    opened: OpenMidrun,
) -> None:
    """The others are no-ops, not refusals."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow_draft", name="a"), "Done."))
    other_midrun = await opened()
    run = await midrun.start("actor", "go")
    other = await other_midrun.get(run.id)
    await tools.start("a").wait()
    actors = assign_actors(run, other)
    replies = await send_together(
        *(lambda h=handle, a=actor: h.cancel(actor=a) for handle, actor in actors)
    )
    (winner,) = find_winners(replies)
    (counted,) = await read_entries(run, CancelRequested)
    assert counted.by == actors[winner][1]
    for index, reply in enumerate(replies):
        assert isinstance(reply, Receipt)
        if index != winner:
            assert reply.already in {"already_cancelling", "already_cancelled"}
            assert reply.by == counted.by
    await run.until("cancelled")
    assert tools.undone == ["a"]


async def test_of_twenty_resumes_one_counts(opened: OpenMidrun) -> None:
    """The others are no-ops, or refused if the run has completed by then."""
    tools = ControllableTools()
    run, other = await start_paused_run(opened, tools)
    actors = assign_actors(run, other)
    replies = await send_together(
        *(lambda h=handle, a=actor: h.resume(actor=a) for handle, actor in actors)
    )
    (winner,) = find_winners(replies)
    (counted,) = await read_entries(run, RunResumed)
    assert counted.by == actors[winner][1]
    for index, reply in enumerate(replies):
        if index == winner:
            continue
        if isinstance(reply, Receipt):
            assert reply.already in {"already_queued", "already_running"}
        else:
            assert reply.reason == "is_completed"  # the run was faster
    await run.until("completed")
    assert tools.completed == ["a", "b"]


async def test_a_second_resume_names_the_actor_of_the_first(opened: OpenMidrun) -> None:
    """A plain one is a no-op. One with an instruction is refused: its text would be lost."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    other_midrun = await opened()
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause()
    tools.gate("a").set()
    await run.until("paused")
    first = await run.resume(actor="ada")
    await tools.start("b").wait()
    other = await other_midrun.get(run.id)
    second = await other.resume(actor="bob")
    assert (second.already, second.by) == ("already_running", "ada")
    with pytest.raises(ControlRefused) as refused:
        await other.resume("and hurry", actor="bob")
    assert (refused.value.reason, refused.value.by) == ("not_paused", "ada")
    assert refused.value.seq >= first.seq
    tools.gate("b").set()
    await run.until("completed")


async def test_of_twenty_answers_one_is_the_result(opened: OpenMidrun, tmp_path: Path) -> None:
    """The others are refused, and name the first actor and the answer."""
    log = str(tmp_path / "log.txt")
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    midrun = await opened(log_agent(asks, "Done."))  # the second question keeps the run waiting
    other_midrun = await opened()
    run = await midrun.start("logger", "go")
    one, _ = (await run.until("waiting")).asks
    actors = assign_actors(run, await other_midrun.get(run.id))
    replies = await send_together(
        *(
            lambda h=handle, a=actor: h.answer(a, ask=one.id, actor=a)
            for handle, actor in actors
        )
    )
    (winner,) = find_winners(replies)
    (counted,) = await read_entries(run, AskAnswered)
    assert (counted.by, counted.decision.value) == (actors[winner][1],) * 2
    for index, reply in enumerate(replies):
        if index != winner:
            assert isinstance(reply, ControlRefused)
            assert (reply.reason, reply.by) == ("already_answered", counted.by)
            assert reply.detail == f"answered “{counted.by}”"


async def test_of_an_approval_and_a_decline_one_counts(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    midrun = await opened(log_agent(*get_script("pay", str(log))))
    other_midrun = await opened()
    run = await midrun.start("logger", "go")
    (ask,) = (await run.until("waiting")).asks
    other = await other_midrun.get(run.id)
    replies = await send_together(
        lambda: run.approve(ask=ask.id, actor="ada"),
        lambda: other.decline("no", ask=ask.id, actor="bob"),
    )
    (winner,) = find_winners(replies)
    await run.until("completed")
    (counted,) = await read_entries(run, AskAnswered)
    assert counted.by == ("ada", "bob")[winner]
    assert ("paid 100 to ada" in read_log(log)) == (counted.by == "ada")
    loser = replies[1 - winner]
    assert isinstance(loser, ControlRefused)


async def test_the_receipts_of_concurrent_controls_agree_with_the_journal(
    opened: OpenMidrun,
) -> None:
    """No call starts after the cancel."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    other_midrun = await opened()
    run = await midrun.start("actor", "go")
    other = await other_midrun.get(run.id)
    await tools.start("a").wait()
    controls: list[Callable[[], Awaitable[Receipt]]] = []
    for handle in (run, other, run, other):
        controls += [
            lambda h=handle: h.pause(actor="p"),  # type: ignore[misc]  # bound here
            lambda h=handle: h.resume(actor="r"),  # type: ignore[misc]  # as above
            lambda h=handle: h.redirect("left", actor="d"),  # type: ignore[misc]  # as above
            lambda h=handle: h.cancel(actor="c"),  # type: ignore[misc]  # as above
        ]
    replies = await send_together(*controls)
    await run.until("cancelled")
    kinds_by_control = {
        0: "PauseRequested", 1: "PauseWithdrawn", 2: "RedirectRequested", 3: "CancelRequested",
    }  # fmt: skip
    journaled = await read_kinds(run)
    for index in find_winners(replies):
        receipt = replies[index]
        assert isinstance(receipt, Receipt)
        at = journaled[receipt.seq - 1]
        assert at in {kinds_by_control[index % 4], "RunResumed", "PauseRequested"}
    assert journaled.count("CancelRequested") == 1
    assert "CallStarted" not in journaled[journaled.index("CancelRequested") :]


# ── at the end ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("control", ["pause", "cancel"])
async def test_a_control_at_the_moment_of_completion_has_one_winner(
    control: str, opened: OpenMidrun
) -> None:
    """If it is accepted, the run does not complete; if it is refused, the run has completed."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    other_midrun = await opened()
    runs = [await midrun.start("actor", f"go {n}") for n in range(10)]
    handles = [await other_midrun.get(run.id) for run in runs]
    await yield_until(lambda: len(tools.called) == len(runs))
    tools.gate("a").set()  # all runs are about to complete
    replies = await send_together(*(getattr(handle, control) for handle in handles))
    for run, reply in zip(runs, replies, strict=True):
        view = await run.until("paused", "cancelled", "completed")
        ended = await read_entries(run, RunCompleted)
        if isinstance(reply, Receipt):
            request_kind = PauseRequested if control == "pause" else CancelRequested
            assert (len(await read_entries(run, request_kind)), ended) == (1, [])
            assert view.phase == ("paused" if control == "pause" else "cancelled")
        else:
            assert reply.reason in {"is_completed", "already_completed"}
            assert view.phase == "completed"
        if view.phase == "paused":  # the reply of the model is kept
            await run.resume()
            assert (await run.until("completed")).output == "Done."


async def test_an_answer_against_a_cancel_has_one_winner(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    log = str(tmp_path / "log.txt")
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    other_midrun = await opened()
    for _ in range(5):
        run = await midrun.start("logger", "go")
        (ask,) = (await run.until("waiting")).asks
        other = await other_midrun.get(run.id)
        answered, cancelled = await send_together(
            lambda r=run, a=ask.id: r.answer("yes", ask=a, actor="ada"),  # type: ignore[misc]  # bound here
            lambda r=other: r.cancel(actor="bob"),  # type: ignore[misc]  # as above
        )
        view = await run.until("terminal")
        journaled = await read_kinds(run)
        if isinstance(answered, ControlRefused):
            assert (answered.reason, view.phase) == ("ask_closed", "cancelled")
            assert "AskAnswered" not in journaled
        if isinstance(cancelled, ControlRefused):
            assert (cancelled.reason, view.phase) == ("already_completed", "completed")


# ── the same request twice ────────────────────────────────────────────────────────────────


async def test_a_repeated_request_is_applied_once_and_gets_the_same_receipt(
    opened: OpenMidrun,
) -> None:
    """A client repeats it after a lost reply: from another process, and later."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    other_midrun = await opened()
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    first = await run.pause(actor="ada", request_id="r1")
    tools.gate("a").set()
    await run.until("paused")
    await run.resume(actor="bob")
    await tools.start("b").wait()
    other = await other_midrun.get(run.id)
    second = await other.pause(actor="ada", request_id="r1")
    assert (second.seq, second.by) == (first.seq, first.by)
    assert (await run.view()).phase == "running"
    assert len(await read_entries(run, PauseRequested)) == 1
    tools.gate("b").set()
    await run.until("completed")
    third = await other.pause(actor="ada", request_id="r1")
    assert third.seq == first.seq


async def test_twenty_concurrent_repeats_are_one_request(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    other_midrun = await opened()
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    handles = [run, await other_midrun.get(run.id)] * 10
    replies = await send_together(
        *(lambda h=h: h.redirect("left", actor="ada", request_id="r1") for h in handles)
    )
    assert len({reply.seq for reply in replies if isinstance(reply, Receipt)}) == 1
    assert (await read_kinds(run)).count("RedirectRequested") == 1
    tools.gate("a").set()


async def test_a_refusal_is_repeated_as_it_was_told(opened: OpenMidrun) -> None:
    """The run would accept the control by now; the reply stays the same."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    reasons = []
    for _ in range(2):
        with pytest.raises(ControlRefused) as refused:
            await run.resume("hurry", actor="ada", request_id="r1")
        reasons.append((refused.value.reason, refused.value.seq, refused.value.by))
        await run.pause()
    assert reasons[0] == reasons[1]
    assert reasons[0][0] == "not_paused"
    assert len(await read_entries(run, RequestNoted)) == 1
    tools.gate("a").set()


@pytest.mark.parametrize("other", ["words", "actor", "control"])
async def test_an_id_that_is_reused_for_something_else_is_refused(
    other: str, opened: OpenMidrun
) -> None:
    """It is not a repeat if the text, the actor or the control differs."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.redirect("left", actor="ada", request_id="r1")
    again: dict[str, Callable[[], Awaitable[Receipt]]] = {
        "words": lambda: run.redirect("right", actor="ada", request_id="r1"),
        "actor": lambda: run.redirect("left", actor="bob", request_id="r1"),
        "control": lambda: run.cancel(actor="ada", request_id="r1"),
    }
    with pytest.raises(ControlRefused) as refused:
        await again[other]()
    assert refused.value.reason == "request_id_reused"
    assert (await read_kinds(run)).count("RedirectRequested") == 1
    assert "CancelRequested" not in await read_kinds(run)
    tools.gate("a").set()


async def test_a_run_is_started_once_however_often_it_is_asked_for(opened: OpenMidrun) -> None:
    """The request id identifies the start; with other arguments it is refused."""
    tools = ControllableTools()
    one = await opened(tools.agent(Use("quick", name="a"), "Done."))
    two = await opened(tools.agent(Use("quick", name="a"), "Done."))
    runs: list[str] = []

    async def start(midrun: Midrun) -> None:
        runs.append((await midrun.start("actor", "go", request_id="r1", actor="ada")).id)

    async with anyio.create_task_group() as tasks:
        for midrun in (one, two) * 5:
            tasks.start_soon(start, midrun)
    assert len(set(runs)) == 1
    run = await one.get(runs[0])
    assert isinstance(await run.result(), Completed)
    assert tools.completed == ["a"]
    assert len((await one.runs()).items) == 1
    for start_again in (
        two.start("actor", "something else", request_id="r1", actor="ada"),
        two.start("actor", "go", request_id="r1", actor="ada", labels=["urgent"]),
        two.start("actor", "go", request_id="r1", actor="ada", thread="t1"),
    ):
        with pytest.raises(ControlRefused) as refused:
            await start_again
        assert refused.value.reason == "request_id_reused"
    assert len(await read_journal(run)) == len(await read_journal(await two.get(run.id)))
