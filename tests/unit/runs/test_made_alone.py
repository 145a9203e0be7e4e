"""A call on its last try is made alone in its process, so that nobody is taken along."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun import NOT_DONE, Agent, Call, Midrun, Run, tool
from midrun.core.driver_inputs import Close, Start, TakeLease
from midrun.core.effects import CheckCall
from midrun.core.entries import CallDone, LeaseTaken, RunStarted
from midrun.core.evolve import apply
from midrun.core.ids import CallId, RunId
from midrun.core.retries import DEATHS
from midrun.core.run_head import head_of
from midrun.core.scheduler import plan
from midrun.core.state import State
from midrun.core.values import Json, Reply
from midrun.core.values import Use as Wanted
from midrun.driver import suspect_calls
from midrun.driver.journal_writer import Batch, load
from midrun.driver.notifications import Bell
from midrun.driver.run_loop import Drive
from midrun.driver.suspect_calls import Alone, Place
from midrun.errors import ModelFailed
from midrun.models import ScriptedModel
from midrun.ports.environment import Outside, wall
from midrun.ports.model import Finished, Piece, Prompt
from midrun.runs.values import Happened
from midrun.stores.memory import MemoryStore
from tests.scenarios.promises.seen import engine, true
from tests.unit.runs.conftest import LEASE, PATIENCE
from tests.unit.runs.stage import Stage, Use


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
    state = apply(State(run=run), [spec], wall())
    await store.create(run, [spec], head=head_of(state))
    for _ in range(DEATHS - 1):
        batch = Batch(state, wall())
        batch.add(TakeLease(holder="dead"))
        batch.add(Start(epoch=batch.state.epoch, call=CallId("c1"), seen=batch.state.seq))
        state = await left(store, state, batch)
    return run


async def left(store: MemoryStore, state: State, batch: Batch) -> State:
    """Let a driver take the run, and end with this under way."""
    head = head_of(batch.state)
    _, taken = await store.take(
        state.run, batch.entries, after=state.seq, holder="dead", head=head
    )
    return apply(state, batch.entries, taken.at)


async def orphaned(store: MemoryStore, agent: Agent, use: str = "read") -> RunId:
    """Leave a run behind whose call, named as its agent, has lost all drivers but one."""
    run, spec = RunId(f"run_{agent.name}"), RunStarted(task="go", **agent.spec())
    state = apply(State(run=run), [spec], wall())
    await store.create(run, [spec], head=head_of(state))
    wanted = Wanted(tool=use, args={"name": agent.name}, traits=agent.tools[use].traits)
    for number in range(DEATHS - 1):
        batch = Batch(state, wall())
        batch.add(TakeLease(holder="dead"))
        epoch, start = batch.state.epoch, partial(Start, epoch=batch.state.epoch)
        if not number:
            batch.add(start(call=CallId("c1"), seen=batch.state.seq))
            said = CallDone(call=CallId("c1"), reply=Reply(uses=(wanted,)))
            batch.add(Close(epoch=epoch, outcome=said))
        batch.add(start(call=CallId("c2"), seen=batch.state.seq))
        state = await left(store, state, batch)
    return run


@asynccontextmanager
async def two(stage: Stage) -> AsyncIterator[tuple[Run, Run]]:
    """Open a process that takes two such runs up; give the one that was first, and the other.

    Both are held; one has its call in flight.
    """
    store = MemoryStore()
    agents = [stage.agent(Use("read", name=name), "Done.", name=name) for name in "ab"]
    for agent in agents:
        await orphaned(store, agent)
    with anyio.fail_after(PATIENCE):
        async with Midrun(store, agents=agents, outside=Outside(lease=LEASE)) as midrun:
            runs = {name: await midrun.get(f"run_{name}") for name in "ab"}
            for run in runs.values():
                await held(run)
            await true(lambda: bool(stage.began))  # by whichever of them
            first, other = (runs["a"], runs["b"])[:: 1 if stage.began[0] == "a" else -1]
            yield first, other
            stage.release_all()


async def held(run: Run) -> None:
    """Wait until a driver that is alive has the run."""
    async with aclosing(run.feed()) as feed:
        async for item in feed:
            entry = item.entry if isinstance(item, Happened) else None
            if isinstance(entry, LeaseTaken) and entry.holder != "dead":
                return


async def test_calls_on_their_last_try_are_made_one_after_the_other() -> None:
    """The second begins when the first has ended, and not before."""
    stage = Stage()
    async with two(stage) as (first, other):
        one, two_ = first.id[-1], other.id[-1]
        assert stage.began == [one]
        stage.gate(one).set()
        await stage.start(two_).wait()
        stage.gate(two_).set()
        for run in (first, other):
            assert (await run.until("completed")).output == "Done."
    assert stage.began == stage.did == [one, two_]


async def test_what_takes_its_time_is_not_what_kills_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a while the others go on beside it."""
    monkeypatch.setattr(suspect_calls, "TRIAL_S", 0.02)
    stage = Stage()
    async with two(stage) as (first, other):
        await stage.start(other.id[-1]).wait()
        assert stage.did == []
        stage.release_all()
        for run in (first, other):
            await run.until("completed")


async def test_a_run_that_waits_for_its_turn_hears_what_it_is_told() -> None:
    """It pauses at once; and who resumes it knows what was, so that it need not wait."""
    stage = Stage()
    async with two(stage) as (first, other):
        await other.pause()
        await other.until("paused")
        assert stage.began == [first.id[-1]]
        await other.resume()
        await stage.start(other.id[-1]).wait()
        stage.release_all()
        for run in (first, other):
            await run.until("completed")


async def test_the_turn_is_passed_on_however_the_first_one_ends() -> None:
    """A cancel ends the call, and with it its turn."""
    stage = Stage()
    async with two(stage) as (first, other):
        await first.cancel()
        await stage.start(other.id[-1]).wait()
        await first.until("cancelled")


async def test_who_has_the_turn_keeps_it_and_who_waits_is_rung() -> None:
    """Nobody waits for a turn that nobody has."""
    turns, bell = Alone(), Bell()
    a, b = RunId("run_a"), RunId("run_b")
    assert turns.wait_s(a, Bell()) == 0
    assert turns.wait_s(a, Bell()) == 0
    assert 0 < turns.wait_s(b, bell) <= suspect_calls.TRIAL_S
    turns.over(b)  # which is not its to end
    assert turns.wait_s(b, bell) > 0
    turns.over(a)
    with anyio.fail_after(PATIENCE):
        await bell.wait()
    assert turns.wait_s(b, bell) == 0


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
    looks, turn = [0], Drive._turn

    async def counted(drive: Drive) -> None:
        looks[0] += 1
        await turn(drive)

    monkeypatch.setattr(Drive, "_turn", counted)
    store, model = MemoryStore(), Busy()
    agent = Agent("a", model=model)
    run = await bereaved(store, agent)
    with anyio.fail_after(PATIENCE):
        async with Midrun(store, agents=[agent], outside=Outside(lease=LEASE)) as midrun:
            turns = engine(midrun)._means.alone
            await true(lambda: model.asked > 0 and not turns.wait_s(RunId("run_b"), Bell()))
            await true(lambda: engine(midrun)._drives[run]._place.waits(CallId("c1")))
            before = looks[0]
            for _ in range(300):
                await checkpoint()
            assert looks[0] <= before + 2
            model.has_time = True
            turns.over(RunId("run_b"))
            assert (await (await midrun.get(run)).until("completed")).output == "Done."


async def test_a_check_on_its_last_try_is_asked_alone_too() -> None:
    """It may be slow, and what kills would be counted for it."""
    stage, turns, bell = Stage(), Alone(), Bell()
    agent = Agent("a", model=ScriptedModel(["Done."]), tools=[*stage.tools(), pay])
    state = await load(store := MemoryStore(), await orphaned(store, agent, "pay"))
    batch = Batch(state, wall())
    batch.add(TakeLease(holder="alive"))
    orders, other = plan(batch.state), RunId("run_b")
    assert CheckCall(call=CallId("c2")) in orders
    place = Place(turns, state.run, bell)
    assert turns.wait_s(other, Bell()) == 0
    assert CheckCall(call=CallId("c2")) not in place.may_go(orders, batch.state)
    assert place.wait_s is not None
    turns.over(other)
    with anyio.fail_after(PATIENCE):
        await bell.wait()
    place.look_anew()
    assert place.may_go(orders, batch.state) == [*orders]
    assert turns.wait_s(other, Bell()) > 0
    place.leave()
    assert turns.wait_s(other, Bell()) == 0
