"""Promise 11: every failure can be resumed, from the last boundary between two steps.

Transient failures of a model are retried. The exception of a tool is told to the agent.
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
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises import stop_conditions
from tests.scenarios.promises.models import (
    BAD_REQUEST,
    OVERLOADED,
    FailingModel,
    FailingReserveModel,
    rate_limited,
)
from tests.scenarios.promises.tools import fails_async, fails_blocking, fails_thread
from tests.support.clocks import YEAR_LEASE, ManualClock
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, read_kinds, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


def build_agent(
    tools: ControllableTools, model: FailingModel, name: str = "actor", **options: object
) -> Agent:
    """Return an agent with this model."""
    return Agent(name, model=model, tools=tools.tools(), **options)  # type: ignore[arg-type]  # checked there


async def wait_for_failure(run: Run) -> Failed:
    """Wait until the run has failed; return its outcome."""
    outcome = await run.result()
    assert isinstance(outcome, Failed), outcome
    assert outcome.phase == "failed"
    return outcome


async def read_records(run: Run) -> Sequence[Record]:
    """Return the journal with the time of each entry."""
    return await run._service.store.read(run.id)


# ── the model ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BAD_REQUEST, "bad_request"),
        (ValueError("odd"), "model_error"),
        (rate_limited(9999), "rate_limited"),
    ],
)
async def test_a_resume_after_a_model_failure_repeats_only_the_failed_step(
    error: Exception, code: str, opened: OpenMidrun
) -> None:
    tools = ControllableTools()
    model = FailingModel(Use("quick", name="a"), error, Use("quick", name="b"), "Done.")
    midrun = await opened(build_agent(tools, model))
    run = await midrun.start("actor", "go")
    outcome = await wait_for_failure(run)
    assert outcome.code == code
    assert outcome.error
    assert "tried again" not in outcome.error
    assert (await run.view()).error == outcome.error
    await run.resume(actor="ada")
    assert (await run.until("completed")).output == "Done."
    assert tools.completed == ["a", "b"]
    assert model.calls == 4


async def test_a_run_can_be_resumed_after_each_of_several_failures(opened: OpenMidrun) -> None:
    """A resume may have an instruction."""
    tools = ControllableTools()
    prompt: list[str] = []

    def record_prompt(messages: Transcript) -> str:
        prompt.extend(turn.text for turn in messages if turn.role == "user")
        return "Done."

    model = FailingModel(
        BAD_REQUEST, Use("quick", name="a"), BAD_REQUEST, BAD_REQUEST, record_prompt
    )
    midrun = await opened(build_agent(tools, model))
    run = await midrun.start("actor", "go")
    for instruction in (None, None, "Use the other one"):
        await wait_for_failure(run)
        await run.resume(instruction)
    await run.until("completed")
    assert tools.completed == ["a"]
    assert prompt == ["go", "Use the other one"]


async def test_another_process_can_resume_a_failed_run(opened: OpenMidrun, path: Path) -> None:
    tools = ControllableTools()
    first = build_agent(tools, FailingModel(Use("quick", name="a"), BAD_REQUEST))
    async with Midrun(get_store_url(path), agents=[first]) as midrun:
        run = await midrun.start("actor", "go")
        await wait_for_failure(run)
    again = await opened(build_agent(tools, FailingModel("Done.")))
    run = await again.get(run.id)
    await run.resume()
    await run.until("completed")
    assert tools.completed == ["a"]


async def test_the_checkpoint_of_a_failed_run_can_be_resumed_without_a_store() -> None:
    tools = ControllableTools()
    outcome = await build_agent(tools, FailingModel(Use("quick", name="a"), BAD_REQUEST)).run(
        "go"
    )
    assert isinstance(outcome, Failed)
    checkpoint = Checkpoint.from_json(outcome.checkpoint.to_json())
    again = await build_agent(tools, FailingModel(repeat_results)).resume(checkpoint)
    assert isinstance(again, Completed)
    assert again.output == "quick: a done"
    assert tools.completed == ["a"]


async def test_a_failed_run_can_be_cancelled_and_cleans_up(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    model = FailingModel([Use("draft", name="d"), Use("lock", name="table")], BAD_REQUEST)
    midrun = await opened(build_agent(tools, model))
    run = await midrun.start("actor", "go")
    await wait_for_failure(run)
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (tools.undone, tools.released) == (["d"], ["table"])


async def test_a_model_whose_reserve_raises_fails_only_its_own_run(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    model = FailingReserveModel("Done.")
    failing = build_agent(tools, model, stop=MaxTokens(1000))
    sound = tools.agent(Use("slow", name="x"), "Done.", name="sound")
    midrun = await opened(failing, sound)
    other = await midrun.start("sound", "go")
    await tools.start("x").wait()
    run = await midrun.start("actor", "go")
    outcome = await wait_for_failure(run)
    assert "price list not found" in outcome.error
    tools.gate("x").set()
    await other.until("completed")
    model.broken = False
    await run.resume()
    await run.until("completed")


async def test_a_stop_condition_that_raises_fails_the_run_resumably(opened: OpenMidrun) -> None:
    """After the repair it is called again."""
    tools = ControllableTools()
    stop = Custom(stop_conditions.broken)
    midrun = await opened(tools.agent(Use("quick", name="a"), "Done.", stop=stop))
    stop_conditions.BROKEN["raises"] = True
    run = await midrun.start("actor", "go")
    outcome = await wait_for_failure(run)
    assert outcome.code == "stop_failed"
    assert "condition out of order" in outcome.error
    stop_conditions.BROKEN["raises"] = False
    await run.resume()
    await run.until("completed")
    assert tools.completed == ["a"]


# ── tools ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("tool", "how", "output"),
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
async def test_the_agent_is_told_the_exception_of_a_tool(
    tool: object, how: str, output: str, opened: OpenMidrun
) -> None:
    """The run neither fails nor hangs, and the worker survives."""
    name = tool.name  # type: ignore[attr-defined]  # it is a tool
    model = FailingModel([Use(name, how=how), Use("quick", name="a")], repeat_results)
    tools = ControllableTools()
    agent = Agent("actor", model=model, tools=[tool, *tools.tools()])  # type: ignore[list-item]  # as above
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    view = await run.until("completed", "failed", "waiting")
    if view.phase == "waiting":  # its outcome is unknown
        assert view.asks[0].kind == "unsure"
        await run.answer("unknown")
        view = await run.until("completed")
    assert view.phase == "completed"
    assert output in view.output
    assert tools.completed == ["a"]


# ── retries ───────────────────────────────────────────────────────────────────────────────


async def test_a_transient_model_failure_is_retried(opened: OpenMidrun) -> None:
    """The waits grow. The text of failed attempts is not in the transcript."""
    tools = ControllableTools()
    model = FailingModel(OVERLOADED, OVERLOADED, "Done.")
    midrun = await opened(build_agent(tools, model))
    run = await midrun.start("actor", "go")
    view = await run.until("completed", "failed")
    assert (view.output, view.step) == ("Done.", 1)
    starts = await read_entries(run, CallStarted)
    assert [(start.call, start.attempt) for start in starts] == [
        ("c1", 1),
        ("c1", 2),
        ("c1", 3),
    ]
    first, second = _compute_retry_waits(await read_records(run))
    assert (first >= 0.25, second >= 0.5) == (True, True)
    turns = list(Transcript(await run._load_state()))
    assert [turn.text for turn in turns if turn.role == "assistant"] == ["Done."]


def _compute_retry_waits(journal: Sequence[Record]) -> list[float]:
    """Return the seconds from the start of each failed attempt to its `retry_at`.

    Check also that no attempt starts before the `retry_at` of the failure before it.
    """
    waits: list[float] = []
    started_at, retry_at = 0, 0
    for record in journal:
        entry = record.entry
        if isinstance(entry, CallFailed) and entry.retry_at is not None:
            retry_at = entry.retry_at
            waits.append((retry_at - started_at) / 1e6)
        elif isinstance(entry, CallStarted):
            started_at = record.at
            assert started_at >= retry_at, "the retry started before its time"
    return waits


async def test_a_retry_waits_for_the_retry_after_of_the_provider(opened: OpenMidrun) -> None:
    midrun = await opened(
        build_agent(ControllableTools(), FailingModel(rate_limited(0.8), "Done."))
    )
    run = await midrun.start("actor", "go")
    await run.until("completed")
    (wait,) = _compute_retry_waits(await read_records(run))
    assert wait >= 0.8


async def test_the_run_fails_after_its_last_attempt(path: Path) -> None:
    """A resume grants all attempts again."""
    clock = ManualClock()
    model = FailingModel(*[OVERLOADED] * 6, BAD_REQUEST, "Done.")
    outside = Environment(clock=clock, lease=YEAR_LEASE)
    agent = build_agent(ControllableTools(), model)
    async with Midrun(get_store_url(path), agents=[agent], outside=outside) as midrun:
        run = await midrun.start("actor", "go")
        for n in range(1, 6):
            failure = await wait_for_entry(run, CallFailed, n)
            assert failure.retry_at is not None
            clock.advance(timedelta(minutes=2))
            with pytest.raises(ControlRefused):  # the entry wakes the run loop
                await run.approve(ask="a1", request_id=f"look {n}")
        outcome = await wait_for_failure(run)
        assert (outcome.code, model.calls) == ("overloaded", 6)
        await run.resume()
        assert (await wait_for_failure(run)).code == "bad_request"
        assert await midrun.verify(run.id)


async def test_a_pause_does_not_wait_for_the_next_attempt(opened: OpenMidrun) -> None:
    """No call is in flight while the run waits for a retry."""
    model = FailingModel(rate_limited(600))
    midrun = await opened(build_agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await wait_for_entry(run, CallFailed)
    with anyio.fail_after(60):
        await run.pause()
        await run.until("paused")
    assert model.calls == 1


async def test_a_cancel_does_not_wait_for_the_next_attempt(opened: OpenMidrun) -> None:
    model = FailingModel(rate_limited(600))
    midrun = await opened(build_agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await wait_for_entry(run, CallFailed)
    with anyio.fail_after(60):
        await run.cancel()
        await run.until("cancelled")
    assert model.calls == 1
    assert (
        "CallStarted"
        not in (await read_kinds(run))[(await read_kinds(run)).index("CancelRequested") :]
    )


async def test_a_redirect_does_not_wait_for_the_next_attempt(opened: OpenMidrun) -> None:
    """The failed call belonged to the old instruction."""
    model = FailingModel(rate_limited(600), "Done.")
    midrun = await opened(build_agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await wait_for_entry(run, CallFailed)
    with anyio.fail_after(60):
        await run.redirect("Use the other one")
        await run.until("completed")


async def test_a_resume_does_not_shorten_the_retry_after_of_the_provider(
    opened: OpenMidrun,
) -> None:
    model = FailingModel(rate_limited(0.8), "Done.")
    midrun = await opened(build_agent(ControllableTools(), model))
    run = await midrun.start("actor", "go")
    await wait_for_entry(run, CallFailed)
    await run.pause()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    (wait,) = _compute_retry_waits(await read_records(run))
    assert wait >= 0.8
