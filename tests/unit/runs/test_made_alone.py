"""A call on its last try is made alone in its process, so that nobody is taken along."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import NOT_DONE, Agent, Call, Midrun, Run, tool
from midrun.core.driver_inputs import CloseCall, StartCall, TakeLease
from midrun.core.effects import CheckCall
from midrun.core.entries import CallDone, LeaseTaken, RunStarted
from midrun.core.evolve import apply_entries
from midrun.core.ids import CallId, RunId
from midrun.core.retries import WORKER_DEATHS_MAX
from midrun.core.run_head import build_head
from midrun.core.scheduler import plan_effects
from midrun.core.state import State
from midrun.core.values import Json, Reply
from midrun.core.values import Use as Wanted
from midrun.driver import suspect_calls
from midrun.driver.journal_writer import Batch, load_run_state
from midrun.driver.notifications import Wakeup
from midrun.driver.run_loop import RunLoop
from midrun.driver.suspect_calls import SuspectCallGate, SuspectCalls
from midrun.errors import ModelFailed
from midrun.models import ScriptedModel
from midrun.ports.environment import Environment, read_wall_clock
from midrun.ports.model import Finished, Piece, Prompt
from midrun.runs.values import FeedEntry
from midrun.stores.memory import MemoryStore
from tests.scenarios.promises.seen import engine, true
from tests.unit.runs.conftest import LEASE, PATIENCE
from tests.unit.runs.stage import ControllableTools, Use


async def looked(call: Call, args: Json) -> Json:
    """Nothing was done."""
    del call, args
    await checkpoint()
    return NOT_DONE


@tool(check=looked)
async def pay(name: str) -> str:
    """Pay somebody."""
    await checkpoint()
    return name


async def bereaved(store: MemoryStore, agent: Agent) -> RunId:
    """Leave a run behind whose model call has lost all drivers but one."""
    run, spec = RunId(f"run_{agent.name}"), RunStarted(task="go", **agent.spec())
    state = apply_entries(State(run=run), [spec], read_wall_clock())
    await store.create(run, [spec], head=build_head(state))
    for _ in range(WORKER_DEATHS_MAX - 1):
        batch = Batch(state, read_wall_clock())
        batch.add(TakeLease(holder="dead"))
        batch.add(
            StartCall(epoch=batch.state.epoch, call=CallId("c1"), seen_seq=batch.state.seq)
        )
        state = await left(store, state, batch)
    return run


async def left(store: MemoryStore, state: State, batch: Batch) -> State:
    """Let a driver take the run, and end with this under way."""
    head = build_head(batch.state)
    _, taken = await store.take_lease(
        state.run, batch.entries, after=state.seq, holder="dead", head=head
    )
    return apply_entries(state, batch.entries, taken.at)


async def orphaned(store: MemoryStore, agent: Agent, use: str = "read") -> RunId:
    """Leave a run behind whose call, named as its agent, has lost all drivers but one."""
    run, spec = RunId(f"run_{agent.name}"), RunStarted(task="go", **agent.spec())
    state = apply_entries(State(run=run), [spec], read_wall_clock())
    await store.create(run, [spec], head=build_head(state))
    wanted = Wanted(tool=use, args={"name": agent.name}, traits=agent.tools[use].traits)
    for number in range(WORKER_DEATHS_MAX - 1):
        batch = Batch(state, read_wall_clock())
        batch.add(TakeLease(holder="dead"))
        epoch, start = batch.state.epoch, partial(StartCall, epoch=batch.state.epoch)
        if not number:
            batch.add(start(call=CallId("c1"), seen_seq=batch.state.seq))
            said = CallDone(call=CallId("c1"), reply=Reply(uses=(wanted,)))
            batch.add(CloseCall(epoch=epoch, outcome=said))
        batch.add(start(call=CallId("c2"), seen_seq=batch.state.seq))
        state = await left(store, state, batch)
    return run


@asynccontextmanager
async def two(stage: ControllableTools) -> AsyncIterator[tuple[Run, Run]]:
    """Open a process that takes two such runs up; give the one that was first, and the other.

    Both are held; one has its call in flight.
    """
    store = MemoryStore()
    agents = [stage.agent(Use("read", name=name), "Done.", name=name) for name in "ab"]
    for agent in agents:
        await orphaned(store, agent)
    with anyio.fail_after(PATIENCE):
        async with Midrun(store, agents=agents, outside=Environment(lease=LEASE)) as midrun:
            runs = {name: await midrun.get(f"run_{name}") for name in "ab"}
            for run in runs.values():
                await held(run)
            await true(lambda: bool(stage.called))  # by whichever of them
            first, other = (runs["a"], runs["b"])[:: 1 if stage.called[0] == "a" else -1]
            yield first, other
            stage.open_all_gates()


async def held(run: Run) -> None:
    """Wait until a driver that is alive has the run."""
    async with aclosing(run.feed()) as feed:
        async for item in feed:
            entry = item.entry if isinstance(item, FeedEntry) else None
            if isinstance(entry, LeaseTaken) and entry.holder != "dead":
                return


async def test_calls_on_their_last_try_are_made_one_after_the_other() -> None:
    """The second begins when the first has ended, and not before."""
    stage = ControllableTools()
    async with two(stage) as (first, other):
        one, two_ = first.id[-1], other.id[-1]
        assert stage.called == [one]
        stage.gate(one).set()
        await stage.start(two_).wait()
        stage.gate(two_).set()
        for run in (first, other):
            assert (await run.until("completed")).output == "Done."
    assert stage.called == stage.completed == [one, two_]


async def test_what_takes_its_time_is_not_what_kills_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while the others go on beside it."""
    monkeypatch.setattr(suspect_calls, "SUSPECT_TRIAL_S", 0.02)
    stage = ControllableTools()
    async with two(stage) as (first, other):
        await stage.start(other.id[-1]).wait()
        assert stage.completed == []
        stage.open_all_gates()
        for run in (first, other):
            await run.until("completed")


async def test_a_run_that_waits_for_its_turn_hears_what_it_is_told() -> None:
    """It pauses at once; and who resumes it knows what was, so that it need not wait."""
    stage = ControllableTools()
    async with two(stage) as (first, other):
        await other.pause()
        await other.until("paused")
        assert stage.called == [first.id[-1]]
        await other.resume()
        await stage.start(other.id[-1]).wait()
        stage.open_all_gates()
        for run in (first, other):
            await run.until("completed")


async def test_the_turn_is_passed_on_however_the_first_one_ends() -> None:
    """A cancel ends the call, and with it its turn."""
    stage = ControllableTools()
    async with two(stage) as (first, other):
        await first.cancel()
        await stage.start(other.id[-1]).wait()
        await first.until("cancelled")


async def test_who_has_the_turn_keeps_it_and_who_waits_is_rung() -> None:
    """Nobody waits for a turn that nobody has."""
    turns, bell = SuspectCallGate(), Wakeup()
    a, b = RunId("run_a"), RunId("run_b")
    assert turns.try_acquire(a, Wakeup()) == 0
    assert turns.try_acquire(a, Wakeup()) == 0
    assert 0 < turns.try_acquire(b, bell) <= suspect_calls.SUSPECT_TRIAL_S
    turns.release(b)  # which is not its to end
    assert turns.try_acquire(b, bell) > 0
    turns.release(a)
    with anyio.fail_after(PATIENCE):
        await bell.wait()
    assert turns.try_acquire(b, bell) == 0


class Busy(ScriptedModel):
    """A model whose far end has no time, until it has."""

    def __init__(self) -> None:
        super().__init__(["Done."])
        self.has_time = False
        self.asked = 0

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Answer, or say when to ask again."""
        self.asked += 1
        if not self.has_time:
            raise ModelFailed("busy", "rate_limited", "429", transient=True, retry_after=0.01)
        return super().stream(prompt)


async def test_a_call_that_is_due_and_in_line_is_looked_at_when_its_turn_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own time has passed: it must not be asked again and again whether that is so."""
    looks, turn = [0], RunLoop._run_once

    async def counted(drive: RunLoop) -> None:
        looks[0] += 1
        await turn(drive)

    monkeypatch.setattr(RunLoop, "_run_once", counted)
    store, model = MemoryStore(), Busy()
    agent = Agent("a", model=model)
    run = await bereaved(store, agent)
    with anyio.fail_after(PATIENCE):
        async with Midrun(store, agents=[agent], outside=Environment(lease=LEASE)) as midrun:
            turns = engine(midrun)._context.suspect_gate
            await true(
                lambda: model.asked > 0 and not turns.try_acquire(RunId("run_b"), Wakeup())
            )
            await true(
                lambda: engine(midrun)._run_loops[run]._suspects.is_waiting(CallId("c1"))
            )
            before = looks[0]
            for _ in range(300):
                await checkpoint()
            assert looks[0] <= before + 2
            model.has_time = True
            turns.release(RunId("run_b"))
            assert (await (await midrun.get(run)).until("completed")).output == "Done."


async def test_a_check_on_its_last_try_is_asked_alone_too() -> None:
    """It may be slow, and what kills would be counted for it."""
    stage, turns, bell = ControllableTools(), SuspectCallGate(), Wakeup()
    agent = Agent("a", model=ScriptedModel(["Done."]), tools=[*stage.tools(), pay])
    state = await load_run_state(store := MemoryStore(), await orphaned(store, agent, "pay"))
    batch = Batch(state, read_wall_clock())
    batch.add(TakeLease(holder="alive"))
    orders, other = plan_effects(batch.state), RunId("run_b")
    assert CheckCall(call=CallId("c2")) in orders
    place = SuspectCalls(turns, state.run, bell)
    assert turns.try_acquire(other, Wakeup()) == 0
    assert CheckCall(call=CallId("c2")) not in place.runnable(orders, batch.state)
    assert place.wait_s is not None
    turns.release(other)
    with anyio.fail_after(PATIENCE):
        await bell.wait()
    place.reset()
    assert place.runnable(orders, batch.state) == [*orders]
    assert turns.try_acquire(other, Wakeup()) > 0
    place.release_gate()
    assert turns.try_acquire(other, Wakeup()) == 0
