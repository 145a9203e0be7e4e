"""An operator can halt everything.

One latch, set from any process and without a deploy. While it holds nothing starts, of any run
that it covers, in any process; lifted, every run is where it was.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun, Paused, Run, tool
from midrun.core.entries import CallStarted, Entry, StoodDown, UndoStarted
from midrun.models import Use
from tests.scenarios.promises.office import office, script, written
from tests.scenarios.promises.processes import elsewhere
from tests.scenarios.promises.seen import journal, recorded
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

SCOPES = ("all", "agent:actor", "label:risky", "run")
"""Four latches that cover a run of `actor` with the label `risky`."""

OPERATOR = "operator:olga"


async def begun(run: Run) -> list[Entry]:
    """Return everything that ever left the process for this run."""
    return [e for e in await journal(run) if isinstance(e, CallStarted | UndoStarted)]


async def look_twice(midrun: Midrun, run: Run) -> None:
    """Let everybody who might start something have a chance to.

    A run of another agent, started and finished in the same process, has passed all the places
    where one that is halted would be taken up: the news, the drive and the store.
    """
    before = await begun(run)
    for _ in range(2):
        other = await midrun.start("bystander", "go")
        await other.until("completed")
    assert await begun(run) == before


# ── every scope ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_running_run_is_stopped_where_it_is_and_goes_on_when_lifted(
    scope: str, opened: Opener
) -> None:
    """What is in flight is aborted; what may have acted is not made again."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    midrun = await opened(agent)
    run = await midrun.start("actor", "go", labels=["risky"])
    await stage.start("a").wait()
    latch = f"run:{run.id}" if scope == "run" else scope
    await midrun.halt("too hot", scope=latch, actor=OPERATOR)
    await run.until("halted")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "halted"
    await recorded(run, StoodDown)
    assert (stage.stopped, stage.completed) == (["a"], [])
    assert await midrun.lift(scope=latch, actor=OPERATOR)
    await run.until("completed")
    assert stage.called == ["a", "b"]


async def test_a_latch_holds_only_what_it_covers(opened: Opener) -> None:
    """Others go on as if nothing had happened."""
    stage = ControllableTools()
    agents = [stage.agent(Use("slow", name=n), "Done.", name=n) for n in ("actor", "other")]
    midrun = await opened(*agents)
    held = await midrun.start("actor", "go", labels=["risky"])
    free = await midrun.start("other", "go", labels=["safe"])
    await stage.start("actor").wait()
    await stage.start("other").wait()
    await midrun.halt("careful", scope="label:risky", actor=OPERATOR)
    await held.until("halted")
    stage.gate("other").set()
    await free.until("completed")
    assert stage.stopped == ["actor"]
    await midrun.lift(scope="label:risky", actor=OPERATOR)
    await held.until("completed")


async def test_two_latches_hold_until_both_are_lifted(opened: Opener) -> None:
    """Lifting one says nothing about the other."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await midrun.halt("one", scope="all", actor=OPERATOR)
    await midrun.halt("two", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    await midrun.lift(scope="all", actor=OPERATOR)
    assert (await run.view()).phase == "halted"
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("completed")


# ── every phase ───────────────────────────────────────────────────────────────────────────


async def paused(midrun: Midrun, run: Run, stage: ControllableTools) -> Run:
    """Bring a run to where somebody paused it."""
    del midrun
    await stage.start("a").wait()
    await run.pause(actor="ada")
    stage.gate("a").set()
    await run.until("paused")
    return run


async def waiting(midrun: Midrun, run: Run, stage: ControllableTools) -> Run:
    """Bring a run to where it waits for a person."""
    del midrun
    await stage.start("a").wait()
    await run.pause()
    await run.force_pause()
    await run.resume()
    await run.until("waiting")
    return run


async def failed(midrun: Midrun, run: Run, stage: ControllableTools) -> Run:
    """Bring a run to where it failed: its script has ended."""
    del midrun
    stage.gate("a").set()
    await run.until("failed")
    return run


RESTING: dict[str, Callable[[Midrun, Run, ControllableTools], Awaitable[Run]]] = {
    "paused": paused,
    "waiting": waiting,
    "failed": failed,
}


@pytest.mark.parametrize("phase", RESTING)
async def test_a_run_at_rest_starts_nothing_under_a_latch_and_is_where_it_was(
    phase: str, opened: Opener
) -> None:
    """Whoever resumes or answers meanwhile finds out that nothing starts."""
    stage = ControllableTools()
    turns = ["Done."] if phase != "failed" else []
    acting = stage.agent(Use("slow", name="a"), *turns)
    midrun = await opened(acting, stage.agent("Done.", name="bystander"))
    run = await midrun.start("actor", "go")
    await RESTING[phase](midrun, run, stage)
    before = await begun(run)
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await look_twice(midrun, run)
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    assert (await run.view()).phase == phase
    await look_twice(midrun, run)
    assert await begun(run) == before


async def test_a_paused_run_that_is_resumed_under_a_latch_starts_nothing_until_it_is_lifted(
    opened: Opener,
) -> None:
    """The wish to go on is kept; the operator's latch is stronger."""
    stage = ControllableTools()
    acting = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    midrun = await opened(acting, stage.agent("Done.", name="bystander"))
    run = await midrun.start("actor", "go")
    await paused(midrun, run, stage)
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await run.resume(actor="ada")
    await run.until("halted")
    await look_twice(midrun, run)
    assert stage.called == ["a"]
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("completed")
    assert stage.completed == ["a", "b"]


async def test_a_waiting_run_that_is_answered_under_a_latch_starts_nothing_until_it_is_lifted(
    opened: Opener, tmp_path: Path
) -> None:
    """The answer is kept."""
    log = str(tmp_path / "book.txt")
    midrun = await opened(
        office(*script("pay", log)), ControllableTools().agent("Done.", name="bystander")
    )
    run = await midrun.start("office", "go")
    await run.until("waiting")
    await midrun.halt("stop", scope="agent:office", actor=OPERATOR)
    await run.approve(actor="ada")
    await run.until("halted")
    await look_twice(midrun, run)
    assert written(log) == ["did first"]
    await midrun.lift(scope="agent:office", actor=OPERATOR)
    await run.until("completed")
    assert written(log) == ["did first", "paid 100 to ada"]


@pytest.mark.parametrize("scope", ["all", "agent:actor", "label:risky"])
async def test_a_run_that_is_started_under_a_latch_exists_and_starts_nothing(
    scope: str, opened: Opener
) -> None:
    """Nobody's task is lost; it begins when the latch is lifted."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("quick", name="a"), "Done."))
    await midrun.halt("stop", scope=scope, actor=OPERATOR)
    run = await midrun.start("actor", "go", labels=["risky"])
    await run.until("halted")
    assert await begun(run) == []
    await midrun.lift(scope=scope, actor=OPERATOR)
    await run.until("completed")
    assert stage.completed == ["a"]


async def test_a_run_that_is_pausing_is_paused_when_lifted(opened: Opener) -> None:
    """The pause that somebody asked for is not forgotten over the halt."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause(actor="ada")
    await midrun.halt("stop", actor=OPERATOR)
    await run.until("halted")
    await midrun.lift(actor=OPERATOR)
    await run.until("paused")
    assert stage.called == ["a"]
    await run.resume(actor="ada")
    await run.until("completed")


async def test_a_cancelled_run_undoes_nothing_under_a_latch_and_goes_on_when_lifted(
    opened: Opener,
) -> None:
    """An undo changes the world too. The cancel itself counts at once."""
    stage = ControllableTools()
    acting = stage.agent(Use("draft", name="d"), Use("slow_draft", name="a"), "never")
    midrun = await opened(acting, stage.agent("Done.", name="bystander"))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    receipt = await run.cancel(undo="all", actor="ada")
    assert receipt.phase == "halted"
    assert (await run.cancel(actor="bob")).already == "already_cancelling"
    await look_twice(midrun, run)
    assert stage.undone == []
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("cancelled")
    assert stage.undone == ["a", "d"]
    assert "never" not in stage.called


async def test_a_latch_in_the_middle_of_undoing_stops_it_there(opened: Opener) -> None:
    """What is undone stays undone; the rest is undone when it is lifted, each once."""
    stage = ControllableTools()
    gate, reached = anyio.Event(), anyio.Event()
    undone: list[str] = []

    async def undo(call: object, args: dict[str, str], result: object) -> None:
        del call, result
        if args["name"] == "2":
            reached.set()
            await gate.wait()
        undone.append(args["name"])

    tools = stage.tools()
    draft = next(tool for tool in tools if tool.name == "draft")
    undoable = tool(draft.fn, name="draft", undo=undo)
    slow = next(t for t in tools if t.name == "slow")
    model = stage.agent(
        Use("draft", name="1"), Use("draft", name="2"), Use("draft", name="3"),
        Use("slow", name="x"), "never",
    ).model  # fmt: skip
    midrun = await opened(
        Agent("actor", model=model, tools=[undoable, slow]),
        stage.agent("Done.", name="bystander"),
    )
    run = await midrun.start("actor", "go")
    await stage.start("x").wait()
    await run.cancel(undo="all")
    await reached.wait()
    await midrun.halt("stop", scope="agent:actor", actor=OPERATOR)
    await run.until("halted")
    gate.set()
    await look_twice(midrun, run)
    assert "1" not in undone
    await midrun.lift(scope="agent:actor", actor=OPERATOR)
    await run.until("cancelled")
    assert undone[-1] == "1"
    assert undone[0] == "3"
    assert not (await run.report()).not_undone


async def test_a_queued_run_that_nobody_drives_is_held_when_somebody_would(
    opened: Opener, path: Path, tmp_path: Path
) -> None:
    """Set while no process was there: the next one finds it before it starts anything."""
    log = str(tmp_path / "book.txt")
    desk = Midrun(kept_at(path), agents=[office(*script("act", log))], engine=None)
    async with desk as midrun:
        run = await midrun.start("office", "go")
        await midrun.halt("stop", actor=OPERATOR)
    said = await elsewhere("drive", "act", log, path, "halted", "terminal")
    assert said == {"phase": "halted"}
    assert written(log) == []
    driving = await opened(office(*script("act", log)))
    await driving.lift(actor=OPERATOR)
    await (await driving.get(run.id)).until("completed")
    assert written(log) == ["did first", "did second"]
