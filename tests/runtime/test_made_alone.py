"""A call on its last try is made alone in its process, so that nobody is taken along."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import anyio
import pytest

from midrun import Agent, Midrun, Run
from midrun.core.attempts import DEATHS
from midrun.core.entries import CallDone, LeaseTaken, RunStarted
from midrun.core.evidence import Close, Start, TakeLease
from midrun.core.head import head_of
from midrun.core.ids import CallId, RunId
from midrun.core.machine import apply
from midrun.core.state import State
from midrun.core.values import Reply
from midrun.core.values import Use as Wanted
from midrun.driver import alone
from midrun.driver.alone import Alone
from midrun.driver.batch import Batch
from midrun.driver.bell import Bell
from midrun.handles.item import Happened
from midrun.ports.clock import wall
from midrun.ports.outside import Outside
from midrun.stores.memory import MemoryStore
from tests.runtime.conftest import LEASE, PATIENCE
from tests.runtime.stage import Stage, Use


async def orphaned(store: MemoryStore, agent: Agent) -> RunId:
    """Leave a run behind whose call, named as its agent, has lost all drivers but one."""
    run, spec = RunId(f"run_{agent.name}"), RunStarted(task="go", **agent.spec())
    state = apply(State(run=run), [spec], wall())
    await store.create(run, [spec], head=head_of(state))
    wanted = Wanted(tool="read", args={"name": agent.name}, traits=agent.tools["read"].traits)
    for number in range(DEATHS - 1):
        batch = Batch(state, wall())
        batch.add(TakeLease(holder="dead"))
        epoch, start = batch.state.epoch, partial(Start, epoch=batch.state.epoch)
        if not number:
            batch.add(start(call=CallId("c1"), seen=batch.state.seq))
            said = CallDone(call=CallId("c1"), reply=Reply(uses=(wanted,)))
            batch.add(Close(epoch=epoch, outcome=said))
        batch.add(start(call=CallId("c2"), seen=batch.state.seq))
        head = head_of(batch.state)
        _, taken = await store.take(
            run, batch.entries, after=state.seq, holder="dead", head=head
        )
        state = apply(state, batch.entries, taken.at)
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
            while not stage.began:  # noqa: ASYNC110 - by whichever of them
                await anyio.sleep(0.002)
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
    monkeypatch.setattr(alone, "TRIAL_S", 0.02)
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
    assert 0 < turns.wait_s(b, bell) <= alone.TRIAL_S
    turns.over(b)  # which is not its to end
    assert turns.wait_s(b, bell) > 0
    turns.over(a)
    with anyio.fail_after(PATIENCE):
        await bell.wait()
    assert turns.wait_s(b, bell) == 0
