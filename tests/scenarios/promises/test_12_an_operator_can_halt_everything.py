"""Promise 12: an operator can halt everything.

A halt can be set from any process. While it is set, no call of a run in its scope starts in any
process; when it is lifted, each run is in the phase it had before.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from midrun import Agent, ControlRefused, Midrun, Paused, Run, tool
from midrun.core.entries import (
    CallStarted,
    Entry,
    LeaseReleased,
    RunHalted,
    RunLifted,
    UndoStarted,
)
from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.log_agent import get_script, log_agent, read_log
from tests.scenarios.promises.other_process import run_in_other_process
from tests.support.run_journal import read_entries, read_journal, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

SCOPES = ("all", "agent:actor", "label:risky", "run")
"""Scopes that contain a run of `actor` with the label `risky`."""

OPERATOR = "operator:olga"


async def read_starts(run: Run) -> list[Entry]:
    """Return the starts of all calls and undos."""
    return [e for e in await read_journal(run) if isinstance(e, CallStarted | UndoStarted)]


async def check_nothing_starts(midrun: Midrun, run: Run) -> None:
    """Check that the worker starts no call of the run while it drives others.

    A run of another agent that completes in the same process has passed all places at which
    the worker would continue the halted run: the store's changes, the sweep, the run loop.
    """
    before = await read_starts(run)
    for _ in range(2):
        other = await midrun.start("bystander", "go")
        await other.until("completed")
    assert await read_starts(run) == before


# ── scopes ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_halted_run_is_stopped_and_continues_when_lifted(
    scope: str, opened: OpenMidrun
) -> None:
    """The call in flight is aborted. It may have taken effect, so it is not repeated."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    midrun = await opened(agent)
    run = await midrun.start("actor", "go", labels=["risky"])
    await tools.start("a").wait()
    halt_scope = f"run:{run.id}" if scope == "run" else scope
    await midrun.halt("too hot", scope=halt_scope, actor=OPERATOR)
    await run.until("halted")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "halted"
    await wait_for_entry(run, LeaseReleased)
    assert (tools.stopped, tools.completed) == (["a"], [])
    assert await midrun.lift(scope=halt_scope, actor=OPERATOR)
    await run.until("completed")
    assert tools.called == ["a", "b"]


async def test_a_halt_stops_only_the_runs_in_its_scope(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    agents = [tools.agent(Use("slow", name=n), "Done.", name=n) for n in ("actor", "other")]
    midrun = await opened(*agents)
    risky = await midrun.start("actor", "go", labels=["risky"])
    safe = await midrun.start("other", "go", labels=["safe"])
    await tools.start("actor").wait()
    await tools.start("other").wait()
    await midrun.halt("careful", scope="label:risky", actor=OPERATOR)
    await risky.until("halted")
    tools.gate("other").set()
    await safe.until("completed")
    assert tools.stopped == ["actor"]
    await midrun.lift(scope="label:risky", actor=OPERATOR)
    await risky.until("completed")


async def test_a_run_under_two_halts_continues_when_both_are_lifted(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await midrun.halt("one", scope="all", actor=OPERATOR)
    await midrun.halt("two", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    await midrun.lift(scope="all", actor=OPERATOR)
    assert (await run.view()).phase == "halted"
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("completed")


# ── phases ────────────────────────────────────────────────────────────────────────────────


async def reach_paused(midrun: Midrun, run: Run, tools: ControllableTools) -> Run:
    """Pause a run."""
    del midrun
    await tools.start("a").wait()
    await run.pause(actor="ada")
    tools.gate("a").set()
    await run.until("paused")
    return run


async def reach_waiting(midrun: Midrun, run: Run, tools: ControllableTools) -> Run:
    """Bring a run to the question about a call with an unknown outcome."""
    del midrun
    await tools.start("a").wait()
    await run.pause()
    await run.force_pause()
    await run.resume()
    await run.until("waiting")
    return run


async def reach_failed(midrun: Midrun, run: Run, tools: ControllableTools) -> Run:
    """Let a run fail: its script ends too early."""
    del midrun
    tools.gate("a").set()
    await run.until("failed")
    return run


REACH_PHASE: dict[str, Callable[[Midrun, Run, ControllableTools], Awaitable[Run]]] = {
    "paused": reach_paused,
    "waiting": reach_waiting,
    "failed": reach_failed,
}


@pytest.mark.parametrize("phase", REACH_PHASE)
async def test_a_run_at_rest_starts_nothing_under_a_halt_and_keeps_its_phase(
    phase: str, opened: OpenMidrun
) -> None:
    tools = ControllableTools()
    turns = ["Done."] if phase != "failed" else []
    agent = tools.agent(Use("slow", name="a"), *turns)
    midrun = await opened(agent, tools.agent("Done.", name="bystander"))
    run = await midrun.start("actor", "go")
    await REACH_PHASE[phase](midrun, run, tools)
    before = await read_starts(run)
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await check_nothing_starts(midrun, run)
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    assert (await run.view()).phase == phase
    await check_nothing_starts(midrun, run)
    assert await read_starts(run) == before


async def test_a_paused_run_that_is_resumed_under_a_halt_starts_nothing_until_it_is_lifted(
    opened: OpenMidrun,
) -> None:
    """The resume is journaled and takes effect after the lift."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    midrun = await opened(agent, tools.agent("Done.", name="bystander"))
    run = await midrun.start("actor", "go")
    await reach_paused(midrun, run, tools)
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await run.resume(actor="ada")
    await run.until("halted")
    await check_nothing_starts(midrun, run)
    assert tools.called == ["a"]
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("completed")
    assert tools.completed == ["a", "b"]


async def test_a_waiting_run_that_is_answered_under_a_halt_starts_nothing_until_it_is_lifted(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The decision is kept."""
    log = str(tmp_path / "log.txt")
    midrun = await opened(
        log_agent(*get_script("pay", log)), ControllableTools().agent("Done.", name="bystander")
    )
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    await midrun.halt("stop", scope="agent:logger", actor=OPERATOR)
    await run.approve(actor="ada")
    await run.until("halted")
    await check_nothing_starts(midrun, run)
    assert read_log(log) == ["did first"]
    await midrun.lift(scope="agent:logger", actor=OPERATOR)
    await run.until("completed")
    assert read_log(log) == ["did first", "paid 100 to ada"]


@pytest.mark.parametrize("scope", ["all", "agent:actor", "label:risky"])
async def test_a_run_started_under_a_halt_makes_no_call_until_it_is_lifted(
    scope: str, opened: OpenMidrun
) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("quick", name="a"), "Done."))
    await midrun.halt("stop", scope=scope, actor=OPERATOR)
    run = await midrun.start("actor", "go", labels=["risky"])
    await run.until("halted")
    assert await read_starts(run) == []
    await midrun.lift(scope=scope, actor=OPERATOR)
    await run.until("completed")
    assert tools.completed == ["a"]


async def test_a_halted_run_that_was_pausing_is_paused_when_lifted(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause(actor="ada")
    await midrun.halt("stop", actor=OPERATOR)
    await run.until("halted")
    await midrun.lift(actor=OPERATOR)
    await run.until("paused")
    assert tools.called == ["a"]
    await run.resume(actor="ada")
    await run.until("completed")


async def test_a_run_cancelled_under_a_halt_is_undone_when_lifted(
    opened: OpenMidrun,
) -> None:
    """The cancel is journaled at once; its undos wait for the lift."""
    tools = ControllableTools()
    agent = tools.agent(Use("draft", name="d"), Use("slow_draft", name="a"), "never")
    midrun = await opened(agent, tools.agent("Done.", name="bystander"))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    receipt = await run.cancel(undo="all", actor="ada")
    assert receipt.phase == "halted"
    assert (await run.cancel(actor="bob")).already == "already_cancelling"
    await check_nothing_starts(midrun, run)
    assert tools.undone == []
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("cancelled")
    assert tools.undone == ["a", "d"]
    assert "never" not in tools.called


async def test_a_halt_during_the_undos_stops_them_until_it_is_lifted(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    gate, reached = anyio.Event(), anyio.Event()
    undone: list[str] = []

    async def undo(call: object, args: dict[str, str], result: object) -> None:
        del call, result
        if args["name"] == "2":
            reached.set()
            await gate.wait()
        undone.append(args["name"])

    by_name = {each.name: each for each in tools.tools()}
    draft = tool(by_name["draft"].fn, name="draft", undo=undo)
    model = tools.agent(
        Use("draft", name="1"), Use("draft", name="2"), Use("draft", name="3"),
        Use("slow", name="x"), "never",
    ).model  # fmt: skip
    midrun = await opened(
        Agent("actor", model=model, tools=[draft, by_name["slow"]]),
        tools.agent("Done.", name="bystander"),
    )
    run = await midrun.start("actor", "go")
    await tools.start("x").wait()
    await run.cancel(undo="all")
    await reached.wait()
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    gate.set()
    await check_nothing_starts(midrun, run)
    assert "1" not in undone
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("cancelled")
    assert undone[-1] == "1"
    assert undone[0] == "3"
    assert not (await run.report()).not_undone


async def test_a_halt_set_without_a_worker_holds_a_queued_run(
    opened: OpenMidrun, path: Path, tmp_path: Path
) -> None:
    """The next worker finds the halt before it starts a call."""
    log = str(tmp_path / "log.txt")
    without_worker = Midrun(
        get_store_url(path), agents=[log_agent(*get_script("act", log))], engine=None
    )
    async with without_worker as midrun:
        run = await midrun.start("logger", "go")
        await midrun.halt("stop", actor=OPERATOR)
    driven = await run_in_other_process("drive", "act", log, path, "halted", "terminal")
    assert driven == {"phase": "halted"}
    assert read_log(log) == []
    driving = await opened(log_agent(*get_script("act", log)))
    await driving.lift(actor=OPERATOR)
    await (await driving.get(run.id)).until("completed")
    assert read_log(log) == ["did first", "did second"]


# ── other processes ───────────────────────────────────────────────────────────────────────


async def test_a_halt_set_in_another_process_stops_the_call(
    opened: OpenMidrun, path: Path
) -> None:
    """That process has no agents."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    assert await run_in_other_process("halt", path, "all", "smoke in the server room")
    await run.until("halted")
    (halted,) = await read_entries(run, RunHalted)
    assert (halted.by, halted.reason) == ("olga", "smoke in the server room")
    assert tools.completed == []
    await midrun.lift(actor=OPERATOR)
    await run.until("completed")


async def test_a_halt_holds_in_every_process_and_any_process_can_lift_it(
    opened: OpenMidrun,
) -> None:
    """It holds also in a process that was opened later."""
    first, second = ControllableTools(), ControllableTools()
    one = await opened(first.agent(Use("slow", name="a"), "Done.", name="one"))
    two = await opened(second.agent(Use("slow", name="b"), "Done.", name="two"))
    runs = [await one.start("one", "go"), await two.start("two", "go")]
    await first.start("a").wait()
    await second.start("b").wait()
    await one.halt("stop", actor=OPERATOR)
    for run in runs:
        await run.until("halted")
    third = await opened(ControllableTools().agent("Done.", name="three"))
    late = await third.start("three", "go")
    await late.until("halted")
    await third.lift(actor=OPERATOR)
    for run in (*runs, late):
        await run.until("completed")
    assert (first.called, second.called) == (["a"], ["b"])


# ── the journal, and the end of a halt ────────────────────────────────────────────────────


async def test_the_journal_has_actor_and_reason_of_halt_and_lift(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await midrun.halt("too hot", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    await midrun.lift(scope="agent:actor", actor="operator:omar")
    await run.until("completed")
    (halted,) = await read_entries(run, RunHalted)
    assert (halted.by, halted.role) == ("olga", "operator")
    assert (halted.reason, halted.scope) == ("too hot", "agent:actor")
    (lifted,) = await read_entries(run, RunLifted)
    assert (lifted.by, lifted.role) == ("omar", "operator")


async def test_a_halted_run_refuses_pause_and_resume_and_allows_cancel(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await midrun.halt("stop", actor=OPERATOR)
    await run.until("halted")
    for control in (run.pause, run.resume):
        with pytest.raises(ControlRefused) as refused:
            await control(actor="ada")
        assert (refused.value.reason, refused.value.by) == ("is_halted", "olga")
        assert "cancel" in refused.value.allowed
    await run.cancel(actor="ada")
    await midrun.lift(actor=OPERATOR)
    await run.until("cancelled")


async def test_a_halt_that_is_lifted_at_once_leaves_no_run_halted(opened: OpenMidrun) -> None:
    """A worker that learns of the halt late must not halt a run that no lift reaches."""
    tools = ControllableTools()
    names = [f"r{n}" for n in range(8)]
    agents = [tools.agent(Use("slow", name=name), "Done.", name=name) for name in names]
    worker = await opened(*agents)
    operator = await opened()
    runs = [await worker.start(name, "go") for name in names]
    for name in names:
        await tools.start(name).wait()
    for _ in range(3):
        await operator.halt("stop", actor=OPERATOR)
        await operator.lift(actor=OPERATOR)
    for name in names:
        tools.gate(name).set()
    for run in runs:
        await run.until("completed")


async def test_a_halt_that_is_lifted_before_the_worker_applies_it_halts_no_run(
    opened: OpenMidrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has read the halts, and applies them after the lift."""
    tools = ControllableTools()
    worker = await opened(tools.agent(Use("slow", name="a"), "Done."))
    operator = await opened()
    run = await worker.start("actor", "go")
    await tools.start("a").wait()
    halts_read, lifted = anyio.Event(), anyio.Event()
    list_halts = worker.store.list_halts

    async def list_halts_slowly() -> object:
        halts = await list_halts()
        halts_read.set()
        await lifted.wait()
        return halts

    monkeypatch.setattr(worker.store, "list_halts", list_halts_slowly)
    await operator.halt("stop", actor=OPERATOR)
    await halts_read.wait()
    await operator.lift(actor=OPERATOR)
    lifted.set()
    tools.gate("a").set()
    with anyio.fail_after(60):
        await run.until("completed")


async def test_a_lift_interrupted_by_a_crash_is_finished_by_the_worker(
    opened: OpenMidrun,
) -> None:
    """The store has no halt any more, but the run was not lifted."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await midrun.halt("stop", actor=OPERATOR)
    await run.until("halted")
    await midrun.store.remove_halt("all")  # as a process that is killed during the lift
    with anyio.fail_after(60):
        await run.until("completed")


async def test_a_lift_without_a_halt_returns_false(opened: OpenMidrun) -> None:
    midrun = await opened(ControllableTools().agent("Done."))
    assert not await midrun.lift(scope="agent:actor", actor=OPERATOR)
