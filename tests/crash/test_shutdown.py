"""Shutdown: a worker stands down from its runs without a pause, and another continues them."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Completed, Midrun, tool
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallStarted,
    LeaseReleased,
    LeaseTaken,
    PauseRequested,
    Record,
)
from midrun.core.ids import SEQ_ZERO, RunId
from midrun.core.values import Reply
from midrun.driver.user_code import ABANDONED_CODE
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.ports.store import Change, Store
from midrun.stores.urls import open_store
from midrun.testing.controllable_tools import ControllableTools
from tests.crash.conftest import start_child
from tests.crash.recording_tools import make_waiting_agent, read_actions
from tests.support.conditions import wait_until
from tests.support.store_choice import get_store_url


class ControlledMidrun:
    """A `Midrun` whose shutdown a test starts while other tasks go on."""

    def __init__(self, midrun: Midrun) -> None:
        self.midrun = midrun
        self.has_left = anyio.Event()
        self._may_leave = anyio.Event()
        self._has_entered = anyio.Event()

    async def run(self) -> None:
        """Enter the `Midrun`, and leave it when the test says so."""
        async with self.midrun:
            self._has_entered.set()
            await self._may_leave.wait()
        self.has_left.set()

    async def wait_until_entered(self) -> Midrun:
        """Wait until the `Midrun` drives runs."""
        await self._has_entered.wait()
        return self.midrun

    def start_leaving(self) -> None:
        """Start the shutdown."""
        self._may_leave.set()


class StallingModel(Unpriced):
    """A model that stalls in the middle of its first reply until it is closed."""

    name = "faltering"

    def __init__(self) -> None:
        self.is_halfway = anyio.Event()
        self.closed = 0
        self.prompt_texts: list[str] = []

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream a reply, or half of it."""
        self.prompt_texts = [message.text for message in prompt.transcript]
        pieces = self._pieces()
        try:
            yield pieces
        finally:
            self.closed += 1
            await pieces.aclose()

    async def _pieces(self) -> "AsyncGenerator[Piece | Finished, None]":
        if not self.is_halfway.is_set():
            yield Piece(kind="text", text="Half of ")
            yield Piece(kind="text", text="it")
            self.is_halfway.set()
            await anyio.sleep_forever()
        yield Piece(kind="text", text="All of it.")
        yield Finished(reply=Reply(text="All of it."))


def open_midrun(path: Path, *agents: Agent) -> Midrun:
    """Return a `Midrun` on the test's store, as of another process."""
    return Midrun(get_store_url(path), agents=agents)


async def read_journal(path: Path, run: str) -> list[Record]:
    """Return the records of a run without driving it."""
    async with open_midrun(path) as midrun:
        return [*await midrun.store.read((await midrun.get(run)).id)]


def list_kinds(records: list[Record], *kinds: type) -> list[str]:
    """Return the names of the entries of these kinds, in order."""
    return [type(r.entry).__name__ for r in records if isinstance(r.entry, kinds)]


async def test_a_shutdown_aborts_the_model_call_without_a_pause_and_keeps_its_text(
    path: Path,
) -> None:
    """The stream is closed at once, because further tokens would be paid for and not used."""
    model = StallingModel()
    agent = Agent("actor", model=model)
    async with open_midrun(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await model.is_halfway.wait()
    assert model.closed == 1
    records = await read_journal(path, run.id)
    assert [r.entry.text for r in records if isinstance(r.entry, CallAborted)] == ["Half of it"]
    assert isinstance(records[-1].entry, LeaseReleased)
    assert not list_kinds(records, PauseRequested)
    async with open_midrun(path) as midrun:
        view = await (await midrun.get(run.id)).view()
    assert (view.phase, view.reason) == ("queued", "")


async def test_another_process_continues_from_the_partial_reply(path: Path) -> None:
    """A process that knows the agent takes unfinished runs when it starts."""
    model = StallingModel()
    agent = Agent("actor", model=model)
    async with open_midrun(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await model.is_halfway.wait()
    async with open_midrun(path, agent) as midrun:
        outcome = await (await midrun.get(run.id)).result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "All of it."
    assert "Half of it" in model.prompt_texts


async def test_a_shutdown_waits_for_calls_that_act_and_aborts_read_only_ones(
    path: Path,
) -> None:
    """A read-only call is made again by the next process, under the same key."""
    tools = ControllableTools()
    agent = tools.agent([Use("slow", name="acts"), Use("read", name="reads")], "Done.")
    async with anyio.create_task_group() as tasks:
        controlled = ControlledMidrun(open_midrun(path, agent))
        tasks.start_soon(controlled.run)
        run = await (await controlled.wait_until_entered()).start(agent, "go")
        await tools.start("acts").wait()
        await tools.start("reads").wait()
        controlled.start_leaving()
        await wait_until(lambda: tools.stopped == ["reads"])
        assert not controlled.has_left.is_set()
        tools.gate("acts").set()
        await controlled.has_left.wait()
    tools.gate("reads").set()
    records = await read_journal(path, run.id)
    assert list_kinds(records, CallDone, CallAborted, LeaseReleased)[-3:] == [
        *("CallAborted", "CallDone", "LeaseReleased")
    ]
    async with open_midrun(path, agent) as midrun:
        await (await midrun.get(run.id)).until("completed")
    assert tools.called == ["acts", "reads", "reads"]
    assert tools.keys[1] == tools.keys[2]
    assert tools.completed == ["acts", "reads"]


async def test_a_call_that_exceeds_its_grace_is_aborted_and_not_repeated(
    path: Path,
) -> None:
    """It may have acted, so the agent is told that it was stopped."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), "I see.", grace=timedelta(milliseconds=20))
    async with open_midrun(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await tools.start("a").wait()
    assert (tools.stopped, tools.completed) == (["a"], [])
    async with open_midrun(path, agent) as midrun:
        handle = await midrun.get(run.id)
        await handle.until("completed")
        report = await handle.report()
    assert tools.called == ["a"]
    assert [call.tool for call in report.stopped] == ["slow"]


async def test_a_cancelled_task_stands_down_from_its_runs(path: Path) -> None:
    """The scope is cancelled by Ctrl-C, or because another task of its group failed."""
    tools = ControllableTools()
    agent = tools.agent(Use("read", name="a"), "Done.")
    run_id = ""
    with anyio.CancelScope() as scope:
        async with open_midrun(path, agent) as midrun:
            run_id = (await midrun.start(agent, "go")).id
            await tools.start("a").wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert tools.stopped == ["a"]
    records = await read_journal(path, run_id)
    assert isinstance(records[-1].entry, LeaseReleased)
    tools.gate("a").set()
    async with open_midrun(path, agent) as midrun:
        await (await midrun.get(run_id)).until("completed")


async def test_no_call_starts_during_a_shutdown(path: Path) -> None:
    """The next call is left to the next process, also if a call ends meanwhile."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with anyio.create_task_group() as tasks:
        controlled = ControlledMidrun(open_midrun(path, agent))
        tasks.start_soon(controlled.run)
        run = await (await controlled.wait_until_entered()).start(agent, "go")
        await tools.start("a").wait()
        controlled.start_leaving()
        tools.gate("a").set()
        await controlled.has_left.wait()
    assert tools.completed == ["a"]
    records = await read_journal(path, run.id)
    last_done = max(r.seq for r in records if isinstance(r.entry, CallDone))
    assert not [r for r in records if isinstance(r.entry, CallStarted) and r.seq > last_done]
    async with open_midrun(path, agent) as midrun:
        await (await midrun.get(run.id)).until("completed")
    assert tools.completed == ["a", "b"]


async def test_the_next_process_undoes_the_calls_of_a_cancelling_run(path: Path) -> None:
    """No process drives the run when it is cancelled."""
    tools = ControllableTools()
    agent = tools.agent(Use("draft", name="a"), Use("slow", name="b"), "never")
    observer = open_midrun(path)
    async with open_midrun(path, agent) as midrun, observer:
        run = await midrun.start(agent, "go")
        await tools.start("b").wait()
        await run.pause()  # the call finishes or is aborted
        tools.gate("b").set()
        await run.until("paused")
    async with observer:
        handle = await observer.get(run.id)
        receipt = await handle.cancel(undo="all")
        assert receipt.phase == "cancelling"
    assert tools.undone == []
    async with open_midrun(path, agent) as midrun:
        await (await midrun.get(run.id)).until("cancelled")
    assert tools.undone == ["a"]


async def test_a_process_hands_over_its_run_on_sigterm(path: Path) -> None:
    """Another process repeats the call under the same key."""
    with start_child("drive", path.parent, "linger", 60) as process:
        run_id = await process.read_line()
        await wait_until(
            lambda: [action.name for action in read_actions(path.parent)] == ["linger-begun"]
        )
        process.terminate()
        assert await process.read_line() == "left"
        assert await process.wait() == 0
    records = await read_journal(path, run_id)
    assert isinstance(records[-1].entry, LeaseReleased)
    await anyio.Path(path.parent / "open").touch()
    async with open_midrun(path, make_waiting_agent("linger", path.parent)) as midrun:
        await (await midrun.get(run_id)).until("completed")
    actions = read_actions(path.parent)
    assert [action.name for action in actions] == [
        *("linger-begun", "linger-stopped", "linger-begun", "linger", "charge")
    ]
    assert len({action.key for action in actions[:4]}) == 1


async def test_a_process_hands_over_its_run_on_ctrl_c(path: Path) -> None:
    """The script has no signal handler."""
    with start_child("drive", path.parent, "linger", 60) as process:
        run_id = await process.read_line()
        await wait_until(
            lambda: [action.name for action in read_actions(path.parent)] == ["linger-begun"]
        )
        process.interrupt()
        await process.wait()
    records = await read_journal(path, run_id)
    assert isinstance(records[-1].entry, LeaseReleased)
    assert list_kinds(records, CallAborted) == ["CallAborted"]


# ── lost notifications ───────────────────────────────────────────────────────


@asynccontextmanager
async def open_without_notifications(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Store]:
    """Open a store whose watches report nothing, as if all notifications were lost."""

    async def watch_nothing() -> AsyncIterator[Change]:
        await anyio.sleep_forever()
        yield Change(run=RunId(""), seq=SEQ_ZERO)  # never

    store = await open_store(get_store_url(path))
    monkeypatch.setattr(store, "watch", lambda: nullcontext(watch_nothing()))
    yield store
    await store.close()


async def test_the_sweep_finds_a_run_whose_notifications_were_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was created by a process that drives nothing."""
    tools = ControllableTools()
    agent = tools.agent(Use("quick", name="a"), "Done.")
    async with (
        open_without_notifications(path, monkeypatch) as store,
        Midrun(store, agents=[agent]),
        Midrun(get_store_url(path), agents=[agent], engine=None) as creator,
    ):
        run = await creator.start(agent, "go")
        await run.until("completed")
    assert tools.completed == ["a"]


async def test_a_control_whose_notification_was_lost_is_obeyed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next append of the run loop conflicts, so it reads the control."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with (
        open_without_notifications(path, monkeypatch) as store,
        Midrun(store, agents=[agent]) as worker,
        open_midrun(path) as controller,
    ):
        run = await worker.start(agent, "go")
        await tools.start("a").wait()
        handle = await controller.get(run.id)
        await handle.pause(actor="ada")
        tools.gate("a").set()
        await handle.until("paused")
        assert tools.completed == ["a"]


async def test_a_pause_with_a_hold_time_ends_in_another_process(path: Path) -> None:
    """The due time is in the store; no process keeps the run in memory."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), "Done.")
    async with open_midrun(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await tools.start("a").wait()
        await run.pause(hold=timedelta(milliseconds=1))
        tools.gate("a").set()
        await run.until("paused", "completed")
    async with open_midrun(path, agent) as midrun:
        await (await midrun.get(run.id)).until("completed")


@pytest.mark.parametrize("count", [20])
async def test_a_process_with_many_runs_stands_down_from_all_of_them(
    path: Path, count: int
) -> None:
    """The next process completes each of them."""
    tools = ControllableTools()
    agent = tools.agent(Use("read", name="a"), "Done.")
    async with open_midrun(path, agent) as midrun:
        runs = [await midrun.start(agent, f"{n}") for n in range(count)]
        await wait_until(lambda: len(tools.called) == count)
    for run in runs:
        assert isinstance((await read_journal(path, run.id))[-1].entry, LeaseReleased)
    tools.gate("a").set()
    async with open_midrun(path, agent) as midrun:
        for run in runs:
            await (await midrun.get(run.id)).until("completed")
            leases = list_kinds([*await midrun.store.read(run.id)], LeaseTaken)
            assert len(leases) == 2
    assert len(tools.completed) == count


async def test_a_tool_that_does_not_stop_is_abandoned_and_logged_at_shutdown(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The time of a shutdown is limited. The log names the call that may still act."""
    has_started, gate = anyio.Event(), anyio.Event()

    @tool(read_only=True)
    async def shielded() -> None:
        """Wait for the gate behind a shield."""
        has_started.set()
        with anyio.CancelScope(shield=True):
            await gate.wait()

    model, grace = ScriptedModel([Use("shielded")]), timedelta(milliseconds=50)
    agent = Agent("actor", model=model, tools=[shielded], grace=grace)
    async with open_midrun(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await has_started.wait()
    try:
        (message,) = [line for line in caplog.messages if "Abandoned" in line]
        assert "tool shielded" in message
        assert run.id in message
        assert isinstance((await read_journal(path, run.id))[-1].entry, LeaseReleased)
    finally:
        gate.set()
    await wait_until(lambda: not ABANDONED_CODE)
