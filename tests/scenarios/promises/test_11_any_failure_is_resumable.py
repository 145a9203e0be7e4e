"""Any failure is resumable.

An error that nobody caught leaves the run at its last boundary, and resuming goes on from
there. What is worth another attempt gets one by itself; what a tool raises, the agent hears.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Checkpoint, Completed, Failed, Midrun, Run
from midrun.core.entries import CallFailed, CallStarted, Record
from midrun.core.transcript import Transcript
from midrun.errors import ControlRefused
from midrun.models import Use
from midrun.ports.environment import Environment
from midrun.stops import Custom, MaxTokens
from tests.scenarios.promises import conditions
from tests.scenarios.promises.clocks import FAR, Hand
from tests.scenarios.promises.faulty import (
    OVERLOADED,
    REFUSED,
    Careless,
    Faulty,
    fails_async,
    fails_blocking,
    fails_thread,
    limited,
)
from tests.scenarios.promises.office import told
from tests.scenarios.promises.seen import entries, kinds, recorded
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools


def agent(
    stage: ControllableTools, model: Faulty, name: str = "actor", **options: object
) -> Agent:
    """Return an agent with this model."""
    return Agent(name, model=model, tools=stage.tools(), **options)  # type: ignore[arg-type]  # checked there


async def failed(run: Run) -> Failed:
    """Wait until the run has failed, and return how."""
    outcome = await run.result()
    assert isinstance(outcome, Failed), outcome
    assert outcome.phase == "failed"
    return outcome


async def book(run: Run) -> Sequence[Record]:
    """Return the journal with its times."""
    return await run._service.store.read(run.id)


# ── the model ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (REFUSED, "bad_request"),
        (ValueError("odd"), "model_error"),
        (limited(9999), "rate_limited"),
    ],
)
async def test_a_model_that_fails_leaves_the_run_where_it_was(
    error: Exception, code: str, opened: Opener
) -> None:
    """What was done stays done and is not done again; only the step that failed is made."""
    stage = ControllableTools()
    model = Faulty(Use("quick", name="a"), error, Use("quick", name="b"), "Done.")
    midrun = await opened(agent(stage, model))
    run = await midrun.start("actor", "go")
    outcome = await failed(run)
    assert outcome.code == code
    assert outcome.error
    assert "tried again" not in outcome.error
    assert (await run.view()).error == outcome.error
    await run.resume(actor="ada")
    assert (await run.until("completed")).output == "Done."
    assert stage.completed == ["a", "b"]
    assert model.asked == 4


async def test_a_run_may_fail_as_often_as_it_likes(opened: Opener) -> None:
    """Each time it can be resumed, with an instruction too."""
    stage = ControllableTools()
    heard: list[str] = []

    def listen(messages: Transcript) -> str:
        heard.extend(turn.text for turn in messages if turn.role == "user")
        return "Done."

    model = Faulty(REFUSED, Use("quick", name="a"), REFUSED, REFUSED, listen)
    midrun = await opened(agent(stage, model))
    run = await midrun.start("actor", "go")
    for instruction in (None, None, "Use the other one"):
        await failed(run)
        await run.resume(instruction)
    await run.until("completed")
    assert stage.completed == ["a"]
    assert heard == ["go", "Use the other one"]


async def test_another_process_goes_on_from_a_failure(opened: Opener, path: Path) -> None:
    """The one that failed may be gone."""
    stage = ControllableTools()
    first = agent(stage, Faulty(Use("quick", name="a"), REFUSED))
    async with Midrun(kept_at(path), agents=[first]) as midrun:
        run = await midrun.start("actor", "go")
        await failed(run)
    again = await opened(agent(stage, Faulty("Done.")))
    run = await again.get(run.id)
    await run.resume()
    await run.until("completed")
    assert stage.completed == ["a"]


async def test_a_failure_carries_a_checkpoint_that_goes_on_without_a_store() -> None:
    """As a pause does."""
    stage = ControllableTools()
    outcome = await agent(stage, Faulty(Use("quick", name="a"), REFUSED)).run("go")
    assert isinstance(outcome, Failed)
    checkpoint = Checkpoint.from_json(outcome.checkpoint.to_json())
    again = await agent(stage, Faulty(told)).resume(checkpoint)
    assert isinstance(again, Completed)
    assert again.output == "quick: a done"
    assert stage.completed == ["a"]


async def test_a_failed_run_can_be_cancelled_and_cleans_up(opened: Opener) -> None:
    """What it holds is not held for ever because its model broke."""
    stage = ControllableTools()
    model = Faulty([Use("draft", name="d"), Use("lock", name="table")], REFUSED)
    midrun = await opened(agent(stage, model))
    run = await midrun.start("actor", "go")
    await failed(run)
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (stage.undone, stage.released) == (["d"], ["table"])


async def test_a_model_that_cannot_say_what_it_costs_fails_its_run_and_no_other(
    opened: Opener,
) -> None:
    """Whatever of somebody's code raises, it is this run's failure."""
    stage = ControllableTools()
    model = Careless("Done.")
    careless = agent(stage, model, stop=MaxTokens(1000))
    sound = stage.agent(Use("slow", name="x"), "Done.", name="sound")
    midrun = await opened(careless, sound)
    other = await midrun.start("sound", "go")
    await stage.start("x").wait()
    run = await midrun.start("actor", "go")
    outcome = await failed(run)
    assert "price list not found" in outcome.error
    stage.gate("x").set()
    await other.until("completed")
    model.broken = False
    await run.resume()
    await run.until("completed")


async def test_a_condition_that_raises_fails_the_run_and_not_for_good(opened: Opener) -> None:
    """Mended, it is asked again."""
    stage = ControllableTools()
    stop = Custom(conditions.broken)
    midrun = await opened(stage.agent(Use("quick", name="a"), "Done.", stop=stop))
    conditions.BROKEN["raises"] = True
    run = await midrun.start("actor", "go")
    outcome = await failed(run)
    assert outcome.code == "stop_failed"
    assert "condition out of order" in outcome.error
    conditions.BROKEN["raises"] = False
    await run.resume()
    await run.until("completed")
    assert stage.completed == ["a"]


# ── tools ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tool", "how", "heard"),
    [
        (fails_async, "error", "RuntimeError: out of paper"),
        (fails_async, "group", "out of paper"),
        (fails_async, "cancelled", "fails_async"),
        (fails_async, "exit", "bye"),
        (fails_blocking, "error", "RuntimeError: out of paper"),
        (fails_blocking, "exit", "fails_blocking"),
        (fails_thread, "error", "RuntimeError: out of paper"),
        (fails_thread, "exit", "bye"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
async def test_what_a_tool_raises_is_told_to_the_agent(
    tool: object, how: str, heard: str, opened: Opener
) -> None:
    """The run does not fail of it, nor hang, nor take the process down."""
    name = tool.name  # type: ignore[attr-defined]  # it is a tool
    model = Faulty([Use(name, how=how), Use("quick", name="a")], told)
    stage = ControllableTools()
    both = Agent("actor", model=model, tools=[tool, *stage.tools()])  # type: ignore[list-item]  # as above
    midrun = await opened(both)
    run = await midrun.start("actor", "go")
    view = await run.until("completed", "failed", "waiting")
    if view.phase == "waiting":  # it ended in a way that tells nobody what it had done by then
        assert view.asks[0].kind == "unsure"
        await run.answer("unknown")
        view = await run.until("completed")
    assert view.phase == "completed"
    assert heard in view.output
    assert stage.completed == ["a"]


# ── attempts ──────────────────────────────────────────────────────────────────────────────


async def test_what_passes_is_tried_again_by_itself(opened: Opener) -> None:
    """Later each time, as attempts of the same call; what it had said before does not count."""
    stage = ControllableTools()
    model = Faulty(OVERLOADED, OVERLOADED, "Done.")
    midrun = await opened(agent(stage, model))
    run = await midrun.start("actor", "go")
    view = await run.until("completed", "failed")
    assert (view.output, view.step) == ("Done.", 1)
    starts = await entries(run, CallStarted)
    assert [(start.call, start.attempt) for start in starts] == [
        ("c1", 1),
        ("c1", 2),
        ("c1", 3),
    ]
    first, second = _waits(await book(run))
    assert (first >= 0.25, second >= 0.5) == (True, True)
    turns = list(Transcript(await run._load_state()))
    assert [turn.text for turn in turns if turn.role == "assistant"] == ["Done."]


def _waits(journal: Sequence[Record]) -> list[float]:
    """Return how many seconds passed at least between each failure and the next attempt.

    From when the failure says it may be tried again, which the attempt must not be before; an
    attempt cannot have failed before it began.
    """
    waits: list[float] = []
    began, again = 0, 0
    for record in journal:
        entry = record.entry
        if isinstance(entry, CallFailed) and entry.retry_at is not None:
            again = entry.retry_at
            waits.append((again - began) / 1e6)
        elif isinstance(entry, CallStarted):
            began = record.at
            assert began >= again, "it was tried too early"
    return waits


async def test_a_provider_that_says_when_to_come_back_is_obeyed(opened: Opener) -> None:
    """Never earlier than that."""
    midrun = await opened(agent(ControllableTools(), Faulty(limited(0.8), "Done.")))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    (wait,) = _waits(await book(run))
    assert wait >= 0.8


async def test_attempts_are_bounded_and_afterwards_the_run_fails(path: Path) -> None:
    """Nothing is tried for ever; resumed, it is given a full set of attempts again."""
    clock = Hand()
    model = Faulty(*[OVERLOADED] * 6, REFUSED, "Done.")
    outside = Environment(clock=clock, lease=FAR)
    acting = agent(ControllableTools(), model)
    async with Midrun(kept_at(path), agents=[acting], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        for n in range(1, 6):
            failure = await recorded(run, CallFailed, n)
            assert failure.retry_at is not None
            clock.move(timedelta(minutes=2))
            with pytest.raises(ControlRefused):  # and noted in the journal: it looks again
                await run.approve(ask="a1", request_id=f"look {n}")
        outcome = await failed(run)
        assert (outcome.code, model.asked) == ("overloaded", 6)
        await run.resume()
        assert (await failed(run)).code == "bad_request"
        assert await midrun.verify(run.id)


async def test_a_pause_does_not_wait_for_the_next_attempt(opened: Opener) -> None:
    """Nothing is in flight while the run waits to try again."""
    model = Faulty(limited(600))
    midrun = await opened(agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await recorded(run, CallFailed)
    with anyio.fail_after(60):
        await run.pause()
        await run.until("paused")
    assert model.asked == 1


async def test_a_cancel_does_not_wait_for_the_next_attempt(opened: Opener) -> None:
    """And nothing is tried after it."""
    model = Faulty(limited(600))
    midrun = await opened(agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await recorded(run, CallFailed)
    with anyio.fail_after(60):
        await run.cancel()
        await run.until("cancelled")
    assert model.asked == 1
    assert (
        "CallStarted" not in (await kinds(run))[(await kinds(run)).index("CancelRequested") :]
    )


async def test_a_redirect_does_not_wait_for_the_next_attempt(opened: Opener) -> None:
    """What failed was decided for the old course; the new one is thought about at once."""
    model = Faulty(limited(600), "On the new course.")
    midrun = await opened(agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await recorded(run, CallFailed)
    with anyio.fail_after(60):
        await run.redirect("Use the other one")
        await run.until("completed")


async def test_resuming_after_a_pause_does_not_forget_when_to_come_back(opened: Opener) -> None:
    """A person's impatience is not the provider's permission."""
    model = Faulty(limited(0.8), "Done.")
    midrun = await opened(agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await recorded(run, CallFailed)
    await run.pause()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    (wait,) = _waits(await book(run))
    assert wait >= 0.8
