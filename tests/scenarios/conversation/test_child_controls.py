"""Pause, redirect and halt of parents and their child runs; store errors while a child runs."""

from datetime import timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from midrun import Agent, Completed, Midrun
from midrun.core.entries import CallFailed, CallStarted, LeaseReleased, RunHalted, RunLifted
from midrun.core.ids import RunId
from midrun.core.values import Phase
from midrun.driver.user_code import InFlightCall
from midrun.errors import StoreBusy, StoreError, StoreFull, StoreUnreachable
from midrun.models import ScriptedModel, Use
from midrun.ports.store import ALL_RUNS, RunRow, Snapshot, Visibility
from midrun.stores.sqlite.store import SqliteStore
from tests.scenarios.conversation.toolkit import (
    OPERATOR,
    ApprovalToolkit,
    make_child,
    make_parent,
)
from tests.support.gated_model import repeat_results
from tests.support.run_journal import (
    get_worker,
    read_entries,
    wait_for_child,
    wait_for_entry,
    yield_until,
)
from tests.unit.runs.conftest import OpenMidrun

TIME_LIMIT_SECONDS = 60


async def test_a_parent_waits_until_its_paused_child_is_resumed(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await child.pause(actor="ada")
    toolkit.gate("x").set()
    await child.until("paused")
    await run.until("waiting")
    assert toolkit.completed == ["x"]
    await child.resume(actor="ada")
    await run.until("completed")
    assert toolkit.completed == ["x", "y"]


async def test_a_parent_can_be_paused_after_its_child(opened: OpenMidrun) -> None:
    """No call of the parent is in flight, so its pause takes effect."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await child.pause(actor="ada")
    toolkit.gate("x").set()
    await child.until("paused")
    await run.pause()
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        await run.until("paused")


async def test_a_resume_of_the_parent_does_not_resume_a_child_that_a_person_paused(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await child.pause(actor="ada")
    await run.pause()
    toolkit.gate("x").set()
    await run.until("paused")
    await run.resume()
    await wait_for_entry(run, CallStarted, count=3)  # the model, the child, and the child again
    assert (await child.view()).phase == "paused"
    assert toolkit.completed == ["x"]
    await child.resume(actor="ada")
    await run.until("completed")


async def test_a_withdrawn_pause_lets_the_child_continue(opened: OpenMidrun) -> None:
    """No call is made again."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await run.pause()
    await child.until("pausing")
    await run.resume()
    toolkit.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Found."
    assert toolkit.called == toolkit.completed == ["x", "y"]


async def test_a_pause_now_aborts_the_calls_of_the_child(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("read", name="x"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await run.pause(now=True)
    await run.until("paused")
    assert toolkit.stopped == ["x"]
    toolkit.gate("x").set()
    await run.resume()
    assert isinstance(await run.result(), Completed)
    assert toolkit.called == ["x", "x"]  # `read` is read-only, so it may be repeated


async def test_a_pause_now_after_a_pause_aborts_the_calls_of_the_child(
    opened: OpenMidrun,
) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("read", name="x"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await run.pause()
    await child.until("pausing")
    await run.pause(now=True)
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        await run.until("paused")
    assert toolkit.stopped == ["x"]


async def test_all_descendants_are_paused_and_resumed_with_the_parent(
    opened: OpenMidrun,
) -> None:
    """Three children side by side, one of them with a child of its own."""
    toolkit = ApprovalToolkit()
    inner = make_child(toolkit, Use("slow", name="i"), "inner!", name="inner")
    model = ScriptedModel([Use("inner", task="deeper"), repeat_results])
    middle = Agent("middle", model=model, tools=[inner.as_tool()])
    a, b = (make_child(toolkit, Use("slow", name=n), f"{n}!", name=n) for n in ("a", "b"))
    turns = [[Use("a", task=""), Use("b", task=""), Use("middle", task="")], repeat_results]
    midrun = await opened(make_parent(a, b, middle, turns=turns))
    run = await midrun.start("parent", "go")
    for name in ("a", "b", "i"):
        await toolkit.start(name).wait()
    await run.pause()
    runs = [await midrun.get(row.run_id) for row in (await midrun.runs()).items]
    assert len(runs) == 5
    for member in runs:
        await member.until("pausing")
    for name in ("a", "b", "i"):
        assert (await run.view()).phase == "pausing"
        toolkit.gate(name).set()
    await run.until("paused")
    page = await midrun.runs()
    assert {row.phase for row in page.items} == {"paused"}
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "a: a!; b: b!; middle: inner: inner!"
    assert sorted(toolkit.completed) == ["a", "b", "i"]


# ── redirect ──────────────────────────────────────────────────────────────────────────────


async def test_a_redirect_now_cancels_the_child(opened: OpenMidrun) -> None:
    """The call of the child in flight is undone, and the parent continues."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow_draft", name="x"), "Found.")
    midrun = await opened(make_parent(child_agent, turns=[Use("aide", task="Find"), "New."]))
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await run.redirect("New", when="now")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "New."
    assert toolkit.undone == ["x"]
    assert (await (await wait_for_child(midrun, run)).view()).phase == "cancelled"


async def test_a_redirect_at_the_next_step_lets_the_child_finish(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow", name="x"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await run.redirect("New")
    toolkit.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Found."


async def test_a_redirect_of_the_child_does_not_redirect_the_parent(opened: OpenMidrun) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("slow", name="x"), lambda messages: messages[-1].text)
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await (await wait_for_child(midrun, run)).redirect("Look elsewhere")
    toolkit.gate("x").set()
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Look elsewhere"


# ── halt ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", ["all", "run", "label:night"])
async def test_a_halt_of_the_parent_stops_the_child_and_a_lift_continues_both(
    opened: OpenMidrun, scope: str
) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("read", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go", labels=["night"])
    await toolkit.start("x").wait()
    halt_scope = f"run:{run.id}" if scope == "run" else scope
    await midrun.halt("stop", scope=halt_scope, actor=OPERATOR)
    await run.until("halted")
    child = await wait_for_child(midrun, run)
    await child.until("halted", "paused")
    assert toolkit.stopped == ["x"]
    toolkit.gate("x").set()
    await midrun.lift(scope=halt_scope, actor=OPERATOR)
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "aide: Found."
    assert toolkit.completed == ["x", "y"]


async def test_the_sweep_does_not_lift_a_child_that_is_halted_with_its_parent(
    opened: OpenMidrun,
) -> None:
    """No halt names the child, so the sweep could take it for a run whose halt is gone.

    The halt of the decoy is removed from the store without a lift. The decoy is older than the
    child: when the worker has lifted the decoy, it has looked at the child as well.
    """
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("read", name="x"), Use("quick", name="y"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    await midrun.halt("stop", scope="label:decoy", actor=OPERATOR)
    decoy = await midrun.start("aide", "decoy", labels=["decoy"])
    await decoy.until("halted")
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await midrun.halt("stop", scope=f"run:{run.id}", actor=OPERATOR)
    await run.until("halted")
    child = await wait_for_child(midrun, run)
    await wait_for_entry(child, RunHalted)
    # As by a process that died before it lifted the run.
    await midrun.store.remove_halt("label:decoy")
    await wait_for_entry(decoy, RunLifted)
    assert (await child.view()).phase == "halted"
    assert not await read_entries(child, RunLifted)
    await midrun.lift(scope=f"run:{run.id}", actor=OPERATOR)
    toolkit.gate("x").set()
    assert isinstance(await run.result(), Completed)


async def test_a_halt_of_the_agent_of_the_child_makes_the_parent_wait(
    opened: OpenMidrun,
) -> None:
    """The halt does not cover the parent."""
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("read", name="x"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await midrun.halt("stop", scope="agent:aide", actor=OPERATOR)
    child = await wait_for_child(midrun, run)
    await child.until("halted")
    await run.until("waiting")
    toolkit.gate("x").set()
    await midrun.lift(scope="agent:aide", actor=OPERATOR)
    await run.until("completed")


@pytest.mark.parametrize("control", ["pause", "cancel", "halt"])
async def test_a_parent_can_be_stopped_while_its_child_is_halted(
    opened: OpenMidrun, control: str
) -> None:
    toolkit = ApprovalToolkit()
    child_agent = make_child(toolkit, Use("read", name="x"), "Found.")
    midrun = await opened(
        make_parent(child_agent, turns=[Use("aide", task="Find"), repeat_results])
    )
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    await midrun.halt("stop", scope="agent:aide", actor=OPERATOR)
    child = await wait_for_child(midrun, run)
    await child.until("halted")
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        if control == "pause":
            await run.pause()
            await run.until("paused")
        elif control == "halt":
            await midrun.halt("stop", scope="agent:parent", actor=OPERATOR)
            await run.until("halted", "waiting")  # it may wait for its child already
            while (await run.view()).in_flight:
                await anyio.lowlevel.checkpoint()
        else:
            # A halted child undoes nothing, so the parent waits for the lift.
            await run.cancel()
            await wait_for_entry(child, RunHalted)
            await midrun.lift(scope="agent:aide", actor=OPERATOR)
            await run.until("cancelled")
    toolkit.gate("x").set()


# ── store errors, closing processes, and a second pause ───────────────────────────────────


class FailsOnceStore(SqliteStore):
    """A store that raises an error once, when the row of a child is read."""

    def __init__(self, path: Path, error: StoreError) -> None:
        super().__init__(path)
        self.errors = [error]

    async def get_row(self, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
        row = await super().get_row(run, seen_by)
        if row.head.parent and self.errors:
            raise self.errors.pop()
        return row


@pytest.mark.parametrize(
    "error",
    [StoreBusy("runs.db", 1.0), StoreFull("runs.db"), StoreUnreachable("runs.db", "gone")],
    ids=lambda error: error.code,
)
async def test_a_store_error_during_the_read_of_a_child_does_not_fail_its_call(
    tmp_path: Path, error: StoreError
) -> None:
    """An agent that was told of a failure would have the same work done twice."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(Use("quick", name="x"), "Done.", name="aide")
    agent = make_parent(child_agent, turns=[Use("aide", task="Do"), "All done."])
    store = FailsOnceStore(tmp_path / "runs.db", error)
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        async with Midrun(store, agents=[agent]) as midrun:
            run = await midrun.start("parent", "go")
            outcome = await run.result()
            assert isinstance(outcome, Completed), str(outcome)
            assert not await read_entries(run, CallFailed)
            assert toolkit.completed == ["x"]
            assert not store.errors
    await store.close()


async def test_a_process_can_close_while_a_pausing_parent_waits_for_its_child(
    tmp_path: Path,
) -> None:
    """The worker gives its lease back, and the next process brings both runs to their pause."""
    toolkit, grace = ApprovalToolkit(), timedelta(milliseconds=50)
    child_agent = toolkit.agent(Use("slow", name="x"), "Done.", name="aide", grace=grace)
    agent = make_parent(child_agent, turns=[Use("aide", task="Do"), "All done."])
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[agent]) as midrun:
            run = await midrun.start("parent", "go")
            await toolkit.start("x").wait()
            await run.pause()
            await (await wait_for_child(midrun, run)).until("pausing")
        async with Midrun(f"sqlite:///{tmp_path}/runs.db") as midrun:
            run = await midrun.get(run.id)
            assert len(await read_entries(run, LeaseReleased)) == 1, (
                "the lease was not given back"
            )
        toolkit.open_all_gates()
        async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[agent]) as midrun:
            await (await midrun.get(run.id)).until("paused")


async def test_a_second_pause_reaches_a_child_that_was_resumed(opened: OpenMidrun) -> None:
    """The first pause was withdrawn, on both runs."""
    toolkit = ApprovalToolkit()
    child_agent = toolkit.agent(
        Use("slow", name="x"), Use("slow", name="y"), "Done.", name="aide"
    )
    midrun = await opened(make_parent(child_agent, turns=[Use("aide", task="Do"), "All done."]))
    run = await midrun.start("parent", "go")
    await toolkit.start("x").wait()
    child = await wait_for_child(midrun, run)
    await run.pause(actor="ada")
    await child.until("pausing")
    await run.resume(actor="ada")
    await child.resume(actor="bob")
    assert (await child.view()).phase == "running"
    await run.pause(actor="ada")
    await child.until("pausing")
    toolkit.gate("x").set()
    await run.until("paused")
    assert (await child.view()).phase == "paused"
    assert toolkit.called == ["x"]
    toolkit.open_all_gates()
    await run.resume()
    await toolkit.start("y").wait()
    toolkit.gate("y").set()
    await run.until("completed")
    assert toolkit.completed == ["x", "y"]


class DelayedStore(SqliteStore):
    """A store that shows a paused child as pausing, and delays the read of its snapshot.

    After `shows_paused` is set, the row is shown as it is, and the snapshot is returned when
    the test sets `may_continue`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.shows_paused = False
        self.may_continue = anyio.Event()
        self.snapshot_requested = anyio.Event()
        self._paused = RunId("")

    async def get_row(self, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
        hides_pause = not self.shows_paused
        row = await super().get_row(run, seen_by)
        if row.head.parent and row.head.phase is Phase.PAUSED:
            if hides_pause:
                head = replace(row.head, phase=Phase.PAUSING)
                return replace(row, head=head, holder="other")
            self._paused = run
        return row

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        if run == self._paused and not self.snapshot_requested.is_set():
            self.snapshot_requested.set()
            await self.may_continue.wait()
        return await super().load_snapshot(run)


async def test_a_pause_withdrawn_while_the_worker_reads_the_paused_child_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker had read the child as paused with its parent, and could wait for ever."""
    toolkit, pause_forgotten = ApprovalToolkit(), anyio.Event()
    forget_pause = InFlightCall.forget_pause

    def record_forgotten_pause(call: InFlightCall) -> bool:
        if withdrawn := forget_pause(call):
            pause_forgotten.set()
        return withdrawn

    monkeypatch.setattr(InFlightCall, "forget_pause", record_forgotten_pause)
    child_agent = toolkit.agent(Use("slow", name="x"), "Done.", name="aide")
    agent = make_parent(child_agent, turns=[Use("aide", task="Do"), "All done."])
    store = DelayedStore(tmp_path / "runs.db")
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        async with Midrun(store, agents=[agent]) as midrun:
            run = await midrun.start("parent", "go")
            await toolkit.start("x").wait()
            await run.pause()
            child = await wait_for_child(midrun, run)
            await child.until("pausing")
            toolkit.gate("x").set()
            await child.until("paused")
            # The run loop of the child has ended: it sends no more notifications.
            await yield_until(lambda: child.id not in get_worker(midrun)._active_runs)
            store.shows_paused = True
            midrun._service.change_notifier.notify(RunId(child.id))  # read the child again
            await store.snapshot_requested.wait()
            await run.resume()
            await pause_forgotten.wait()
            store.may_continue.set()
            await run.until("completed")
            assert toolkit.called == ["x"]
    await store.close()
