"""Leaving: a process stands down from its runs, which is nobody's pause, and others go on."""

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
    LeaseTaken,
    PauseRequested,
    Record,
    StoodDown,
)
from midrun.core.ids import SEQ_ZERO, RunId
from midrun.core.values import Reply
from midrun.driver.user_code import ABANDONED_TASKS
from midrun.models import ScriptedModel
from midrun.ports.model import Finished, Piece, Prompt, Unpriced
from midrun.ports.store import Change, Store
from midrun.stores.urls import open_store
from tests.crash.conftest import child
from tests.crash.deeds import deeds, waiting
from tests.crash.facts import becomes
from tests.support.store_choice import kept_at
from tests.unit.runs.stage import ControllableTools, Use


class Leaving:
    """A `Midrun` that a test enters, and later begins to leave while other things go on."""

    def __init__(self, midrun: Midrun) -> None:
        self.midrun = midrun
        self.left = anyio.Event()
        self._go = anyio.Event()
        self._entered = anyio.Event()

    async def run(self) -> None:
        """Be inside until told to leave."""
        async with self.midrun:
            self._entered.set()
            await self._go.wait()
        self.left.set()

    async def entered(self) -> Midrun:
        """Wait until it drives."""
        await self._entered.wait()
        return self.midrun

    def leave(self) -> None:
        """Begin to leave."""
        self._go.set()


class Faltering(Unpriced):
    """A model that says half of what it has to say the first time, and waits to be closed."""

    name = "faltering"

    def __init__(self) -> None:
        self.halfway = anyio.Event()
        self.closed = 0
        self.heard: list[str] = []

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Piece | Finished]]:
        """Stream a reply, or half of it."""
        self.heard = [message.text for message in prompt.transcript]
        pieces = self._pieces()
        try:
            yield pieces
        finally:
            self.closed += 1
            await pieces.aclose()

    async def _pieces(self) -> "AsyncGenerator[Piece | Finished, None]":
        if not self.halfway.is_set():
            yield Piece(kind="text", text="Half of ")
            yield Piece(kind="text", text="it")
            self.halfway.set()
            await anyio.sleep_forever()
        yield Piece(kind="text", text="All of it.")
        yield Finished(reply=Reply(text="All of it."))


def on(path: Path, *agents: Agent) -> Midrun:
    """Return a process's worth of midrun on the test's file."""
    return Midrun(kept_at(path), agents=agents)


async def journal(path: Path, run: str) -> list[Record]:
    """Return what is journaled, without driving anything."""
    async with on(path) as midrun:
        return [*await midrun.store.read((await midrun.get(run)).id)]


def kinds(records: list[Record], *kinds: type) -> list[str]:
    """Return the names of the entries that are of one of these kinds, in order."""
    return [type(r.entry).__name__ for r in records if isinstance(r.entry, kinds)]


async def test_leaving_is_not_a_pause_and_the_model_keeps_what_it_said(path: Path) -> None:
    """The stream is closed at once: nobody would hear the rest, and somebody pay for it."""
    model = Faltering()
    agent = Agent("actor", model=model)
    async with on(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await model.halfway.wait()
    assert model.closed == 1
    records = await journal(path, run.id)
    assert [r.entry.text for r in records if isinstance(r.entry, CallAborted)] == ["Half of it"]
    assert isinstance(records[-1].entry, StoodDown)
    assert not kinds(records, PauseRequested)
    async with on(path) as midrun:
        view = await (await midrun.get(run.id)).view()
    assert (view.phase, view.reason) == ("queued", "")


async def test_another_process_goes_on_from_what_the_model_had_said(path: Path) -> None:
    """Unfinished runs are taken up when a process that knows their agent comes up."""
    model = Faltering()
    agent = Agent("actor", model=model)
    async with on(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await model.halfway.wait()
    async with on(path, agent) as midrun:
        outcome = await (await midrun.get(run.id)).result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "All of it."
    assert "Half of it" in model.heard


async def test_a_call_that_acts_has_its_grace_and_a_harmless_one_is_made_again(
    path: Path,
) -> None:
    """What cannot be made again is worth waiting for; what can is not."""
    stage = ControllableTools()
    agent = stage.agent([Use("slow", name="acts"), Use("read", name="reads")], "Done.")
    async with anyio.create_task_group() as tasks:
        leaving = Leaving(on(path, agent))
        tasks.start_soon(leaving.run)
        run = await (await leaving.entered()).start(agent, "go")
        await stage.start("acts").wait()
        await stage.start("reads").wait()
        leaving.leave()
        await becomes(lambda: stage.stopped == ["reads"])
        assert not leaving.left.is_set()
        stage.gate("acts").set()
        await leaving.left.wait()
    stage.gate("reads").set()
    records = await journal(path, run.id)
    assert kinds(records, CallDone, CallAborted, StoodDown)[-3:] == [
        *("CallAborted", "CallDone", "StoodDown")
    ]
    async with on(path, agent) as midrun:
        await (await midrun.get(run.id)).until("completed")
    assert stage.called == ["acts", "reads", "reads"]
    assert stage.keys[1] == stage.keys[2]
    assert stage.completed == ["acts", "reads"]


async def test_a_call_that_outlasts_its_grace_is_stopped_and_not_made_again(
    path: Path,
) -> None:
    """It may have acted: the agent is told that it was stopped midway."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), "I see.", grace=timedelta(milliseconds=20))
    async with on(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await stage.start("a").wait()
    assert (stage.stopped, stage.completed) == (["a"], [])
    async with on(path, agent) as midrun:
        handle = await midrun.get(run.id)
        await handle.until("completed")
        report = await handle.report()
    assert stage.called == ["a"]
    assert [deed.tool for deed in report.stopped] == ["slow"]


async def test_a_process_whose_task_is_cancelled_stands_down_as_well(path: Path) -> None:
    """Ctrl-C, a failing neighbour in a task group: the runs are let go all the same."""
    stage = ControllableTools()
    agent = stage.agent(Use("read", name="a"), "Done.")
    run_id = ""
    with anyio.CancelScope() as scope:
        async with on(path, agent) as midrun:
            run_id = (await midrun.start(agent, "go")).id
            await stage.start("a").wait()
            scope.cancel()
            await anyio.sleep_forever()
    assert stage.stopped == ["a"]
    records = await journal(path, run_id)
    assert isinstance(records[-1].entry, StoodDown)
    stage.gate("a").set()
    async with on(path, agent) as midrun:
        await (await midrun.get(run_id)).until("completed")


async def test_nothing_is_started_once_a_process_is_leaving(path: Path) -> None:
    """The next call belongs to the next process, also where a call ends in between."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with anyio.create_task_group() as tasks:
        leaving = Leaving(on(path, agent))
        tasks.start_soon(leaving.run)
        run = await (await leaving.entered()).start(agent, "go")
        await stage.start("a").wait()
        leaving.leave()
        stage.gate("a").set()
        await leaving.left.wait()
    assert stage.completed == ["a"]
    records = await journal(path, run.id)
    done = max(r.seq for r in records if isinstance(r.entry, CallDone))
    assert not [r for r in records if isinstance(r.entry, CallStarted) and r.seq > done]
    async with on(path, agent) as midrun:
        await (await midrun.get(run.id)).until("completed")
    assert stage.completed == ["a", "b"]


async def test_a_run_that_is_cancelling_is_cleaned_up_by_the_next_process(path: Path) -> None:
    """Standing down keeps *cancelling*: what must be undone is undone, wherever."""
    stage = ControllableTools()
    agent = stage.agent(Use("draft", name="a"), Use("slow", name="b"), "never")
    looking = on(path)
    async with on(path, agent) as midrun, looking:
        run = await midrun.start(agent, "go")
        await stage.start("b").wait()
        await run.pause()  # the call finishes, or is stopped by the process being left
        stage.gate("b").set()
        await run.until("paused")
    async with looking:
        handle = await looking.get(run.id)
        receipt = await handle.cancel(undo="all")
        assert receipt.phase == "cancelling"
    assert stage.undone == []
    async with on(path, agent) as midrun:
        await (await midrun.get(run.id)).until("cancelled")
    assert stage.undone == ["a"]


async def test_a_process_that_is_told_to_end_hands_its_run_over(path: Path) -> None:
    """SIGTERM, as an orchestrator sends it: the run goes on elsewhere, under the same key."""
    with child("drive", path.parent, "linger", 60) as process:
        run_id = await process.hear()
        await becomes(lambda: [d.what for d in deeds(path.parent)] == ["linger-begun"])
        process.terminate()
        assert await process.hear() == "left"
        assert await process.end() == 0
    records = await journal(path, run_id)
    assert isinstance(records[-1].entry, StoodDown)
    await anyio.Path(path.parent / "open").touch()
    async with on(path, waiting("linger", path.parent)) as midrun:
        await (await midrun.get(run_id)).until("completed")
    done = deeds(path.parent)
    assert [d.what for d in done] == [
        *("linger-begun", "linger-stopped", "linger-begun", "linger", "charge")
    ]
    assert len({d.key for d in done[:4]}) == 1


async def test_an_interrupt_from_the_keyboard_hands_the_run_over(path: Path) -> None:
    """Ctrl-C in a script that knows nothing of signals."""
    with child("drive", path.parent, "linger", 60) as process:
        run_id = await process.hear()
        await becomes(lambda: [d.what for d in deeds(path.parent)] == ["linger-begun"])
        process.interrupt()
        await process.end()
    records = await journal(path, run_id)
    assert isinstance(records[-1].entry, StoodDown)
    assert kinds(records, CallAborted) == ["CallAborted"]


# ── what nobody was told of ──────────────────────────────────────────────────


@asynccontextmanager
async def deaf(path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """Open a store whose watchers are told nothing, as if every notification were lost."""

    async def nothing() -> AsyncIterator[Change]:
        await anyio.sleep_forever()
        yield Change(run=RunId(""), seq=SEQ_ZERO)  # never

    store = await open_store(kept_at(path))
    monkeypatch.setattr(store, "watch", lambda: nullcontext(nothing()))
    yield store
    await store.close()


async def test_a_run_that_nobody_was_told_of_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Created where nothing is driven, with every notification lost: the sweep finds it."""
    stage = ControllableTools()
    agent = stage.agent(Use("quick", name="a"), "Done.")
    async with (
        deaf(path, monkeypatch) as store,
        Midrun(store, agents=[agent]),
        Midrun(kept_at(path), agents=[agent], engine=None) as creating,
    ):
        run = await creating.start(agent, "go")
        await run.until("completed")
    assert stage.completed == ["a"]


async def test_a_control_that_the_driver_was_not_told_of_still_wins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal decides: the driver's next append conflicts, and it reads on."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with (
        deaf(path, monkeypatch) as store,
        Midrun(store, agents=[agent]) as driving,
        on(path) as controlling,
    ):
        run = await driving.start(agent, "go")
        await stage.start("a").wait()
        handle = await controlling.get(run.id)
        await handle.pause(actor="ada")
        stage.gate("a").set()
        await handle.until("paused")
        assert stage.completed == ["a"]


async def test_a_held_pause_lets_go_by_itself_on_another_process(path: Path) -> None:
    """Nobody keeps the run in memory meanwhile: the store knows when it is due."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), "Done.")
    async with on(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await stage.start("a").wait()
        await run.pause(hold=timedelta(milliseconds=1))
        stage.gate("a").set()
        await run.until("paused", "completed")
    async with on(path, agent) as midrun:
        await (await midrun.get(run.id)).until("completed")


@pytest.mark.parametrize("count", [20])
async def test_a_process_with_many_runs_stands_down_from_all_of_them(
    path: Path, count: int
) -> None:
    """Each is let go, and each is finished by the next."""
    stage = ControllableTools()
    agent = stage.agent(Use("read", name="a"), "Done.")
    async with on(path, agent) as midrun:
        runs = [await midrun.start(agent, f"{n}") for n in range(count)]
        await becomes(lambda: len(stage.called) == count)
    for run in runs:
        assert isinstance((await journal(path, run.id))[-1].entry, StoodDown)
    stage.gate("a").set()
    async with on(path, agent) as midrun:
        for run in runs:
            await (await midrun.get(run.id)).until("completed")
            taken = kinds([*await midrun.store.read(run.id)], LeaseTaken)
            assert len(taken) == 2
    assert len(stage.completed) == count


async def test_a_tool_that_does_not_stop_is_abandoned_by_name_when_midrun_is_left(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Leaving is bounded; the log says which call may still act, and the run goes on."""
    began, gate = anyio.Event(), anyio.Event()

    @tool(read_only=True)
    async def deaf() -> None:
        """Wait for the gate behind a shield."""
        began.set()
        with anyio.CancelScope(shield=True):
            await gate.wait()

    model, grace = ScriptedModel([Use("deaf")]), timedelta(milliseconds=50)
    agent = Agent("actor", model=model, tools=[deaf], grace=grace)
    async with on(path, agent) as midrun:
        run = await midrun.start(agent, "go")
        await began.wait()
    try:
        (told,) = [said for said in caplog.messages if "Abandoned" in said]
        assert "tool deaf" in told
        assert run.id in told
        assert isinstance((await journal(path, run.id))[-1].entry, StoodDown)
    finally:
        gate.set()
    await becomes(lambda: not ABANDONED_TASKS)
