"""Suspect calls: calls that may crash the process are made one at a time."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import NOT_DONE, Agent, Call, Midrun, Run, tool
from midrun.core.driver_inputs import CloseCall, TakeLease
from midrun.core.entries import CallDone, LeaseTaken, RunStarted
from midrun.core.evolve import apply_entries
from midrun.core.ids import CallId, Micros, RunId
from midrun.core.retries import WORKER_DEATHS_MAX
from midrun.core.run_head import build_head
from midrun.core.scheduler import CheckCall, list_effects, reserve_nothing, start_all
from midrun.core.session import Batch, Result, Session, Step
from midrun.core.state import State
from midrun.core.values import Json, Reply
from midrun.core.values import RequestedCall as Wanted
from midrun.driver import suspect_calls
from midrun.driver.journal_writer import load_run_state
from midrun.driver.notifications import Wakeup
from midrun.driver.suspect_calls import SuspectCallGate, SuspectCalls
from midrun.errors import ModelFailed
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment, read_wall_clock
from midrun.ports.model import Finished, Piece, Prompt
from midrun.runs.values import FeedEntry
from midrun.stores.memory import MemoryStore
from midrun.testing.controllable_tools import ControllableTools
from tests.support.run_journal import get_worker, yield_until
from tests.unit.runs.conftest import LONG_LEASE, TIMEOUT_S


async def check_payment(call: Call, args: Json) -> Json:
    """Find that the payment was not made."""
    del call, args
    await checkpoint()
    return NOT_DONE


@tool(check=check_payment)
async def pay(name: str) -> str:
    """Pay."""
    await checkpoint()
    return name


async def create_run_with_suspect_model_call(store: MemoryStore, agent: Agent) -> RunId:
    """Create a run whose model call has lost all workers but one."""
    run, spec = RunId(f"run_{agent.name}"), RunStarted(task="go", **agent.spec())
    state = apply_entries(State(run=run), [spec], read_wall_clock())
    await store.create(run, [spec], head=build_head(state))
    for _ in range(WORKER_DEATHS_MAX - 1):
        batch = Batch(state, read_wall_clock())
        batch.add(TakeLease(holder="dead"))
        batch.advance(reserve_nothing, start_all)
        state = await take_and_die(store, state, batch)
    return run


async def take_and_die(store: MemoryStore, state: State, batch: Batch) -> State:
    """Let a worker take the run with the entries of `batch`, and die."""
    head = build_head(batch.state)
    _, taken = await store.take_lease(
        state.run, batch.entries, after=state.seq, holder="dead", head=head
    )
    return apply_entries(state, batch.entries, taken.at)


async def create_run_with_suspect_tool_call(
    store: MemoryStore, agent: Agent, use: str = "read"
) -> RunId:
    """Create a run whose tool call has lost all workers but one; it has the agent's name."""
    run, spec = RunId(f"run_{agent.name}"), RunStarted(task="go", **agent.spec())
    state = apply_entries(State(run=run), [spec], read_wall_clock())
    await store.create(run, [spec], head=build_head(state))
    wanted = Wanted(tool=use, args={"name": agent.name}, traits=agent.tools[use].traits)
    for number in range(WORKER_DEATHS_MAX - 1):
        batch = Batch(state, read_wall_clock())
        batch.add(TakeLease(holder="dead"))
        batch.advance(reserve_nothing, start_all)
        if not number:
            epoch = batch.state.epoch
            replied = CallDone(call=CallId("c1"), reply=Reply(uses=(wanted,)))
            batch.add(CloseCall(epoch=epoch, outcome=replied))
            batch.advance(reserve_nothing, start_all)
        state = await take_and_die(store, state, batch)
    return run


@asynccontextmanager
async def drive_two_suspects(tools: ControllableTools) -> AsyncIterator[tuple[Run, Run]]:
    """Drive two runs with a suspect call each; return first the one whose call is in flight.

    The worker holds the leases of both.
    """
    store = MemoryStore()
    agents = [tools.agent(Use("read", name=name), "Done.", name=name) for name in "ab"]
    for agent in agents:
        await create_run_with_suspect_tool_call(store, agent)
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun(
            store, agents=agents, outside=Environment(lease=LONG_LEASE)
        ) as midrun:
            runs = {name: await midrun.get(f"run_{name}") for name in "ab"}
            for run in runs.values():
                await wait_for_live_lease(run)
            await yield_until(lambda: bool(tools.called))
            first, other = (runs["a"], runs["b"])[:: 1 if tools.called[0] == "a" else -1]
            yield first, other
            tools.open_all_gates()


async def wait_for_live_lease(run: Run) -> None:
    """Wait until a live worker has the lease of the run."""
    async with aclosing(run.feed()) as feed:
        async for item in feed:
            entry = item.entry if isinstance(item, FeedEntry) else None
            if isinstance(entry, LeaseTaken) and entry.holder != "dead":
                return


async def test_suspect_calls_are_made_one_after_the_other() -> None:
    tools = ControllableTools()
    async with drive_two_suspects(tools) as (first, other):
        first_name, other_name = first.id[-1], other.id[-1]
        assert tools.called == [first_name]
        tools.gate(first_name).set()
        await tools.start(other_name).wait()
        tools.gate(other_name).set()
        for run in (first, other):
            assert (await run.until("completed")).output == "Done."
    assert tools.called == tools.completed == [first_name, other_name]


async def test_a_suspect_call_that_outlives_its_trial_does_not_delay_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next suspect call starts beside it."""
    monkeypatch.setattr(suspect_calls, "SUSPECT_TRIAL_S", 0.02)
    tools = ControllableTools()
    async with drive_two_suspects(tools) as (first, other):
        await tools.start(other.id[-1]).wait()
        assert tools.completed == []
        tools.open_all_gates()
        for run in (first, other):
            await run.until("completed")


async def test_a_run_that_waits_for_the_gate_can_be_paused_and_resumed() -> None:
    """A resume resets the count of worker deaths, so its call need not wait any longer."""
    tools = ControllableTools()
    async with drive_two_suspects(tools) as (first, other):
        await other.pause()
        await other.until("paused")
        assert tools.called == [first.id[-1]]
        await other.resume()
        await tools.start(other.id[-1]).wait()
        tools.open_all_gates()
        for run in (first, other):
            await run.until("completed")


async def test_a_cancel_of_the_first_run_releases_the_gate() -> None:
    tools = ControllableTools()
    async with drive_two_suspects(tools) as (first, other):
        await first.cancel()
        await tools.start(other.id[-1]).wait()
        await first.until("cancelled")


async def test_the_gate_admits_one_run_and_wakes_the_next_when_it_is_released() -> None:
    """A release by a run that does not hold the gate has no effect."""
    gate, wakeup = SuspectCallGate(), Wakeup()
    a, b = RunId("run_a"), RunId("run_b")
    assert gate.try_acquire(a, Wakeup()) == 0
    assert gate.try_acquire(a, Wakeup()) == 0
    assert 0 < gate.try_acquire(b, wakeup) <= suspect_calls.SUSPECT_TRIAL_S
    gate.release(b)
    assert gate.try_acquire(b, wakeup) > 0
    gate.release(a)
    with anyio.fail_after(TIMEOUT_S):
        await wakeup.wait()
    assert gate.try_acquire(b, wakeup) == 0


class RateLimitedModel(ScriptedModel):
    """A model that is rate limited until `is_available` is set."""

    def __init__(self) -> None:
        super().__init__(["Done."])
        self.is_available = False
        self.calls = 0

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        """Stream the reply, or raise that the rate is limited."""
        self.calls += 1
        if not self.is_available:
            raise ModelFailed(
                "scripted", "rate_limited", "429", transient=True, retry_after=0.01
            )
        return super().stream(prompt)


@pytest.mark.slow
async def test_the_loop_does_not_spin_while_a_due_suspect_call_waits_for_the_gate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The retry time of the call has passed, but the loop must wait for the gate."""
    iterations, receive = [0], Session.receive

    def count(session: Session, result: Result, now: Micros) -> Step:
        iterations[0] += 1
        return receive(session, result, now)

    monkeypatch.setattr(Session, "receive", count)
    store, model = MemoryStore(), RateLimitedModel()
    agent = Agent("a", model=model)
    run = await create_run_with_suspect_model_call(store, agent)
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun(
            store, agents=[agent], outside=Environment(lease=LONG_LEASE)
        ) as midrun:
            gate = get_worker(midrun)._context.suspect_gate
            await yield_until(
                lambda: model.calls > 0 and not gate.try_acquire(RunId("run_b"), Wakeup())
            )
            await yield_until(
                lambda: get_worker(midrun)._run_loops[run]._suspects.wait_s is not None
            )
            before = iterations[0]
            for _ in range(300):
                await checkpoint()
            assert iterations[0] <= before + 2
            model.is_available = True
            gate.release(RunId("run_b"))
            assert (await (await midrun.get(run)).until("completed")).output == "Done."


async def test_the_check_of_a_suspect_call_waits_for_the_gate() -> None:
    """The check may be slow, and a crash during it would be charged to its call."""
    tools, gate, wakeup = ControllableTools(), SuspectCallGate(), Wakeup()
    agent = Agent("a", model=ScriptedModel(["Done."]), tools=[*tools.tools(), pay])
    state = await load_run_state(
        store := MemoryStore(), await create_run_with_suspect_tool_call(store, agent, "pay")
    )
    batch = Batch(state, read_wall_clock())
    batch.add(TakeLease(holder="alive"))
    effects, other = list_effects(batch.state), RunId("run_b")
    assert CheckCall(call=CallId("c2")) in effects
    suspects = SuspectCalls(gate, state.run, wakeup)
    assert gate.try_acquire(other, Wakeup()) == 0
    assert CheckCall(call=CallId("c2")) not in suspects.drop_waiting_checks(
        effects, batch.state
    )
    assert suspects.wait_s is not None
    gate.release(other)
    with anyio.fail_after(TIMEOUT_S):
        await wakeup.wait()
    suspects.wait_s = None
    assert suspects.drop_waiting_checks(effects, batch.state) == [*effects]
    assert gate.try_acquire(other, Wakeup()) > 0
    suspects.release_gate()
    assert gate.try_acquire(other, Wakeup()) == 0
