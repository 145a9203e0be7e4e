"""Cancel of parents and their child runs: order of undos, reports, and retries of an undo."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from midrun import Agent, Cancelled, Completed, Midrun, Run, tool
from midrun.core.entries import (
    CallStarted,
    CancelRequested,
    RunCancelled,
    RunCompleted,
    UndoFailed,
    UndoGaveUp,
    UndoRetried,
    UndoStarted,
)
from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.driver import child_runs
from midrun.driver.journal_writer import load_run_state
from midrun.errors import JournalTooNew
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.store import Store
from tests.scenarios.conversation.toolkit import (
    OPERATOR,
    ApprovalToolkit,
    make_child,
    make_parent,
)
from tests.support.gated_model import repeat_results
from tests.support.run_journal import read_entries, read_kinds, wait_for_child, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.support.undoable_drafts import UNDO_ATTEMPTS, UndoableDrafts, make_fast_environment
from tests.unit.runs.conftest import OpenMidrun, verify_journals

SHORT_GRACE = timedelta(milliseconds=50)
TIME_LIMIT_SECONDS = 120


async def test_a_cancel_undoes_running_generations_in_reverse_order(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    inner = make_child(
        toolkit, Use("draft", name="i1"), Use("slow_draft", name="i2"), name="inner"
    )
    middle = Agent(
        "middle",
        model=ScriptedModel([Use("draft", name="m1"), Use("inner", task="deeper")]),
        tools=[inner.as_tool(), *toolkit.tools()],
    )
    turns = [Use("draft", name="p1"), Use("middle", task="deep")]
    midrun = await opened(make_parent(middle, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("i2").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert toolkit.undone == ["i2", "i1", "m1", "p1"]
    page = await midrun.runs()
    assert {row.phase for row in page.items} == {"cancelled"}


async def test_a_dropped_frame_cancels_the_child_of_its_topic(opened: OpenMidrun) -> None:
    """The ask of the child is closed, so an answer cannot start it again."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(
        toolkit, Use("ask_human", question="Which?"), Use("quick", name="late"), "Done."
    )
    turns = [Use("aide", task="Do"), Use("ask_human", question="Who?"), repeat_results]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    await run.say("Wait, for whom?", urgency="now")
    await run.until("waiting")
    assert len(await midrun.asks()) == 3  # two on the parent, and that of the child
    await run.drop_frame("f1")
    await run.until("waiting")
    assert (await (await wait_for_child(midrun, run)).view()).phase == "cancelled"
    (ask,) = await midrun.asks()
    assert ask.question == "Who?"
    await run.answer("ada")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output.endswith("ask_human: ada")
    assert toolkit.completed == []


async def test_a_parent_is_cancelled_only_after_all_its_children(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    child_agents = [
        make_child(toolkit, Use("slow_draft", name=n), name=n) for n in ("a", "b", "c")
    ]
    turns = [[Use(n, task="go") for n in ("a", "b", "c")]]
    midrun = await opened(make_parent(*child_agents, turns=turns))
    run = await midrun.start("parent", "go")
    for name in ("a", "b", "c"):
        await toolkit.start(name).wait()
    await run.cancel()
    await run.until("cancelled")
    assert sorted(toolkit.undone) == ["a", "b", "c"]
    for call in ("c2", "c3", "c4"):
        assert (await (await wait_for_child(midrun, run, call)).view()).phase == "cancelled"


async def test_a_child_that_is_created_after_its_parent_ended_it_never_works(
    opened: OpenMidrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was frozen before it created the child does so when it thaws."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("quick", name="late"), "Done.")
    parent_agent = make_parent(child_agent, turns=[Use("aide", task="Do"), "Briefly."])
    midrun = await opened(parent_agent, child_agent)
    late_creations: list[Callable[[], Awaitable[None]]] = []
    create_child = child_runs._create_child

    async def freeze(*arguments: Any) -> None:  # type: ignore[explicit-any]  # noqa: ANN401
        late_creations.append(lambda: create_child(*arguments))
        await anyio.sleep_forever()

    monkeypatch.setattr(child_runs, "_create_child", freeze)
    run = await midrun.start("parent", "go")
    await wait_for_entry(run, CallStarted, 2)
    await run.pause()
    await run.force_pause(actor=OPERATOR)
    await run.resume("Be brief.")
    assert isinstance(await run.result(), Completed)
    await late_creations[0]()
    child = await wait_for_child(midrun, run)
    assert isinstance(await child.result(), Cancelled)
    assert toolkit.completed == []
    assert await read_entries(child, CallStarted) == []


async def test_residue_of_a_child_is_residue_in_the_report_of_its_parent(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    dared = tool(toolkit._slow, name="dared", undo=toolkit._undo, undo_unknown=False)
    child_agent = Agent("aide", model=ScriptedModel([Use("dared", name="x")]), tools=[dared])
    midrun = await opened(make_parent(child_agent, turns=[Use("aide", task="Do")]))
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await run.cancel()
    await run.until("cancelled")
    child = await wait_for_child(midrun, run)
    assert [call.tool for call in (await child.report()).not_undone] == ["dared"]
    assert toolkit.undone == []
    report = await run.report()
    assert not report.clean, str(report)


async def test_a_child_that_does_not_respond_does_not_block_the_cancel(
    opened: OpenMidrun,
) -> None:
    """Its tool blocks a thread; after the grace the call is unsure, and both are cancelled."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("grind", name="x"), "Never.", grace=SHORT_GRACE)
    midrun = await opened(make_parent(child_agent, turns=[Use("aide", task="Grind")]))
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await run.cancel()
    await run.until("cancelled")
    child = await wait_for_child(midrun, run)
    assert [call.tool for call in (await child.report()).unsure] == ["grind"]
    toolkit.grind_gate.set()


async def test_a_cancelled_child_is_a_failed_call_of_its_parent(opened: OpenMidrun) -> None:
    """The agent of the parent is told, and continues."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow_draft", name="x"), "Never.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await child.cancel()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "was cancelled" in outcome.output
    assert toolkit.undone == ["x"]


async def test_a_failed_child_is_a_failed_call_of_its_parent(opened: OpenMidrun) -> None:
    """The agent of the parent gets the error; the child is cancelled when its parent ends."""
    toolkit = ApprovalToolkit()
    # The script has no second turn, so the model fails.
    child_agent = make_child(toolkit, Use("draft", name="x"))
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Do"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert "all turns of the script have been played" in outcome.output
    child = await wait_for_child(midrun, run)
    assert (await child.view()).phase == "cancelled"


async def test_a_cancel_of_the_parent_cancels_and_undoes_a_failed_child(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("draft", name="x"))
    turns = [Use("aide", task="Do"), Use("slow", name="y"), "Done."]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("y").wait()
    child = await wait_for_child(midrun, run)
    await child.until("failed")
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert (await child.view()).phase == "cancelled"
    assert toolkit.undone == ["x"]


async def test_a_cancel_reports_a_child_whose_journal_is_unreadable(
    opened: OpenMidrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer version drives the child. The worker of the parent and its other runs go on."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow", name="x"), "Found.", grace=SHORT_GRACE)
    midrun = await opened(make_parent(child_agent, turns=[Use("aide", task="Find")]))
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    child_id = child.id

    async def raise_for_child(store: Store, run: RunId) -> State:
        if run == child_id:
            raise JournalTooNew(run, 1, "RunMoved")
        return await load_run_state(store, run)

    monkeypatch.setattr(child_runs, "load_run_state", raise_for_child)
    await run.cancel()
    await run.until("cancelled")
    assert [call.tool for call in (await run.report()).still_held] == ["aide"]
    assert (await child.view()).phase == "running"
    toolkit.gate("x").set()


# ── several processes ─────────────────────────────────────────────────────────────────────


async def test_a_process_that_closes_with_running_children_loses_no_work(
    opened: OpenMidrun, path: Path
) -> None:
    """The runs stand down, and the next process continues the same children."""
    toolkit = ApprovalToolkit()
    a = make_child(toolkit, Use("quick", name="a1"), Use("read", name="a2"), "a!", name="a")
    b = make_child(toolkit, Use("read", name="b1"), Use("quick", name="b2"), "b!", name="b")
    parent = make_parent(a, b, turns=[[Use("a", task=""), Use("b", task="")], repeat_results])
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        async with Midrun(get_store_url(path), agents=[parent]) as first:
            run = await first.start("parent", "go")
            await toolkit.start("a2").wait()
            await toolkit.start("b1").wait()
    assert sorted(toolkit.stopped) == ["a2", "b1"]
    toolkit.gate("a2").set()
    toolkit.gate("b1").set()
    second = await opened(parent)
    same_run = await second.get(run.id)
    outcome = await same_run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "a: a!; b: b!"
    assert sorted(toolkit.completed) == ["a1", "a2", "b1", "b2"]
    assert len((await second.runs()).items) == 3
    assert "PauseRequested" not in await read_kinds(same_run)


async def test_a_child_can_be_driven_by_another_process_than_its_parent(
    opened: OpenMidrun,
) -> None:
    """Pause and cancel of the parent reach the child through the store."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(
        toolkit, Use("slow", name="x"), Use("slow_draft", name="y"), "Found."
    )
    parent = make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    other_midrun = await opened(child_agent)
    other_run = await other_midrun.start("aide", "own")
    await toolkit.start("x").wait()  # the other process is running
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    child = await wait_for_child(midrun, run)
    await wait_for_entry(child, CallStarted, count=2)  # one of the two processes drives it
    await run.pause()
    await child.until("pausing")
    toolkit.gate("x").set()
    await run.until("paused")
    await run.resume()
    await toolkit.start("y").wait()
    await run.cancel()
    await run.until("cancelled")
    assert len(await read_entries(child, RunCancelled)) == 1
    await other_run.cancel()
    await other_run.until("cancelled")


# ── children that had ended before the cancel ─────────────────────────────────────────────


async def test_a_cancel_of_the_parent_undoes_a_completed_child(opened: OpenMidrun) -> None:
    """The undos of both are in reverse order; the journal of the child names its parent."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("draft", name="i1"), Use("draft", name="i2"), "Done.")
    turns = [Use("draft", name="p1"), Use("aide", task="Do"), Use("slow_draft", name="p2")]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("p2").wait()
    child = await wait_for_child(midrun, run, "c4")
    assert (await child.view()).phase == "completed"
    await run.cancel(undo="all")
    outcome = await run.result()
    assert isinstance(outcome, Cancelled)
    assert toolkit.undone == ["p2", "i2", "i1", "p1"]
    assert [call.tool for call in outcome.report.undone] == ["slow_draft", "aide", "draft"]
    assert outcome.report.clean
    assert (await child.view()).phase == "cancelled"
    assert (await child.view()).output == "Done."
    (request,) = await read_entries(child, CancelRequested)
    assert (request.by, request.undo) == (f"run:{run.id}", "all")


async def test_a_cancel_of_calls_in_flight_keeps_the_work_of_a_completed_child(
    opened: OpenMidrun,
) -> None:
    """The report lists the child as done, with its run id."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("draft", name="inner"), "Done.")
    turns = [Use("aide", task="Do"), Use("slow", name="y")]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("y").wait()
    await run.cancel()
    await run.until("cancelled")
    child = await wait_for_child(midrun, run)
    assert toolkit.undone == []
    assert (await child.view()).phase == "completed"
    (done_call,) = (await run.report()).done
    assert (done_call.tool, done_call.run) == ("aide", child.id)


async def test_a_cancel_undoes_completed_generations_in_reverse_order(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    inner = make_child(toolkit, Use("draft", name="i1"), "Inner.", name="inner")
    script = [Use("draft", name="m1"), Use("inner", task="deeper"), Use("draft", name="m2")]
    middle = Agent(
        "middle",
        model=ScriptedModel([*script, "Middle."]),
        tools=[inner.as_tool(), *toolkit.tools()],
    )
    turns = [Use("middle", task="deep"), Use("slow", name="wait")]
    midrun = await opened(make_parent(middle, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("wait").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert toolkit.undone == ["m2", "i1", "m1"]
    assert {row.phase for row in (await midrun.runs()).items} == {"cancelled"}


async def test_a_child_without_anything_to_undo_stays_completed(opened: OpenMidrun) -> None:
    """No entry is appended to its journal."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("quick", name="x"), "Done.")
    turns = [Use("aide", task="Do"), Use("slow", name="y")]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("y").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")
    child = await wait_for_child(midrun, run)
    assert (await read_kinds(child))[-1] == "RunCompleted"


@pytest.mark.parametrize("child_end", ["cancelled", "redirected"])
async def test_undo_all_undoes_the_finished_calls_of_an_ended_child(
    opened: OpenMidrun, child_end: str
) -> None:
    """The end of the child had undone only its call in flight."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(
        toolkit, Use("draft", name="kept"), Use("slow_draft", name="cut"), "Never."
    )
    turns = [Use("aide", task="Do"), Use("slow", name="y"), Use("slow", name="z")]
    midrun = await opened(make_parent(child_agent, turns=turns, toolkit=toolkit))
    run = await midrun.start("parent", "go")
    await toolkit.start("cut").wait()
    child = await wait_for_child(midrun, run)
    if child_end == "cancelled":
        await child.cancel()
    else:
        await run.redirect("Leave that", when="now")
    await child.until("cancelled")
    await toolkit.start("y").wait()
    assert toolkit.undone == ["cut"]
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert toolkit.undone == ["cut", "kept"]
    assert len(await read_entries(child, UndoStarted)) == 2


async def test_a_cancel_of_a_waiting_parent_undoes_its_completed_child(
    opened: OpenMidrun,
) -> None:
    """No worker drives the parent while it waits; the cancel makes one take it."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("draft", name="inner"), "Done.")
    turns = [Use("aide", task="Do"), Use("ask_human", question="Go on?"), repeat_results]
    parent = make_parent(child_agent, turns=turns, toolkit=toolkit)
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    await run.until("waiting")
    child = await wait_for_child(midrun, run)
    assert len(await read_entries(child, RunCompleted)) == 1
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert toolkit.undone == ["inner"]


# ── retries of an undo ────────────────────────────────────────────────────────────────────


def make_parent_with_drafts(
    drafts: UndoableDrafts, *children: Agent, before: tuple[Use, ...] = ()
) -> Agent:
    """Return an agent that calls each child once, and then a tool that waits."""
    turns = [
        *before,
        *(Use(child.name, task="Do") for child in children),
        Use("slow", name="x"),
    ]
    tools = [
        *drafts.tools(),
        *drafts.controllable_tools.tools(),
        *(c.as_tool() for c in children),
    ]
    return Agent("parent", model=ScriptedModel(turns), tools=tools)


@asynccontextmanager
async def start_parent(path: Path, agent: Agent) -> AsyncIterator[tuple[Midrun, Run]]:
    """Start a run of `agent` with a clock that ends every wait; verify it at the end."""
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        async with Midrun(
            get_store_url(path), agents=[agent], outside=make_fast_environment()
        ) as midrun:
            yield midrun, await midrun.start("parent", "go")
        await verify_journals(path)


def make_child_with_failing_undo(drafts: UndoableDrafts, times: int = UNDO_ATTEMPTS) -> Agent:
    """Return a child whose first `times` attempts of an undo fail."""
    drafts.failures_left["inner"] = times
    return drafts.agent(Use("write", name="inner"), "Done.", name="aide")


async def cancel_run(run: Run, drafts: UndoableDrafts) -> None:
    """Cancel the run during its waiting call."""
    await drafts.controllable_tools.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")


async def retry_undo(run: Run) -> None:
    """Retry the undos that were given up, and wait for their end."""
    await run.retry_undo(actor=OPERATOR)
    await run.until("cancelled")


async def test_a_retry_on_the_parent_retries_the_failed_undo_of_its_child(path: Path) -> None:
    """The cause is gone by then: both reports are clean, and the undo has kept its key."""
    drafts = UndoableDrafts()
    child_agent = make_child_with_failing_undo(drafts)
    agent = make_parent_with_drafts(drafts, child_agent, before=(Use("write", name="outer"),))
    async with start_parent(path, agent) as (midrun, run):
        await cancel_run(run, drafts)
        child = await wait_for_child(midrun, run, "c4")
        (left,) = (await run.report()).not_undone
        assert (left.tool, left.run) == ("aide", child.id)
        assert drafts.controllable_tools.undone == ["outer"]
        await retry_undo(run)
        assert drafts.controllable_tools.undone == ["outer", "inner"]
        assert (await run.report()).clean
        assert (await child.report()).clean
        (retry,) = await read_entries(child, UndoRetried)
        assert retry.by == f"run:{run.id}"
        assert len({key for name, key, _ in drafts.undo_calls if name == "inner"}) == 1


async def test_a_retry_on_the_parent_retries_a_child_that_was_in_flight(path: Path) -> None:
    """On the parent the release of the child had failed, not an undo."""
    drafts = UndoableDrafts()
    drafts.failures_left["cut"] = UNDO_ATTEMPTS
    child_agent = drafts.agent(Use("dictate", name="cut"), name="aide")
    async with start_parent(path, make_parent_with_drafts(drafts, child_agent)) as (_, run):
        await drafts.controllable_tools.start("cut").wait()
        await run.cancel()
        await run.until("cancelled")
        assert [call.tool for call in (await run.report()).still_held] == ["aide"]
        await retry_undo(run)
        assert drafts.controllable_tools.undone == ["cut"]
        assert (await run.report()).clean


async def test_a_retry_on_the_top_run_retries_a_grandchild(path: Path) -> None:
    """Each run passes the retry on to its own children."""
    drafts = UndoableDrafts()
    drafts.failures_left["deep"] = UNDO_ATTEMPTS
    inner = drafts.agent(Use("write", name="deep"), "Done.", name="inner")
    turns: list[Line] = [Use("inner", task="deeper"), "Done."]
    middle = Agent("middle", model=ScriptedModel(turns), tools=[inner.as_tool()])
    async with start_parent(path, make_parent_with_drafts(drafts, middle)) as (midrun, run):
        await cancel_run(run, drafts)
        assert drafts.controllable_tools.undone == []
        await retry_undo(run)
        assert drafts.controllable_tools.undone == ["deep"]
        for view in (await midrun.runs()).items:
            assert (await (await midrun.get(view.run_id)).report()).clean


async def test_each_retry_on_the_parent_retries_the_child_once(path: Path) -> None:
    """The child is not retried again for each attempt of its parent."""
    drafts = UndoableDrafts()
    child_agent = make_child_with_failing_undo(drafts, 3 * UNDO_ATTEMPTS)
    async with start_parent(path, make_parent_with_drafts(drafts, child_agent)) as (
        midrun,
        run,
    ):
        await cancel_run(run, drafts)
        child = await wait_for_child(midrun, run)
        for times in (1, 2):
            await retry_undo(run)
            assert len(await read_entries(child, UndoRetried)) == times
            assert len(await read_entries(child, UndoGaveUp)) == times + 1
            assert len(await read_entries(child, UndoStarted)) == (times + 1) * UNDO_ATTEMPTS
        *_, ended = await read_entries(run, RunCancelled)
        assert len(ended.residue) == 1
        await retry_undo(run)
        assert (await run.report()).clean


async def test_a_retry_on_the_child_leaves_nothing_to_retry_for_its_parent(path: Path) -> None:
    """The report of the parent is clean after its own retry."""
    drafts = UndoableDrafts()
    child_agent = make_child_with_failing_undo(drafts)
    async with start_parent(path, make_parent_with_drafts(drafts, child_agent)) as (
        midrun,
        run,
    ):
        await cancel_run(run, drafts)
        child = await wait_for_child(midrun, run)
        await child.retry_undo(actor=OPERATOR)
        await child.until("cancelled")
        await retry_undo(run)
        assert (await run.report()).clean
        assert len(await read_entries(child, UndoRetried)) == 1


async def test_a_parent_does_not_wait_between_attempts_after_its_child_gave_up(
    path: Path,
) -> None:
    """Nothing changes between these attempts."""
    drafts = UndoableDrafts()
    async with start_parent(
        path, make_parent_with_drafts(drafts, make_child_with_failing_undo(drafts))
    ) as (_, run):
        await cancel_run(run, drafts)
        failed = await read_entries(run, UndoFailed)
        assert [one.retry_at for one in failed] == [None] * UNDO_ATTEMPTS
