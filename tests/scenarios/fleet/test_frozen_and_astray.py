"""One that freezes in the middle of a commit, and one whose clock is an hour ahead."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun
from midrun.core.ids import MICROS_PER_SECOND
from midrun.models import ScriptedModel
from midrun.ports.environment import read_wall_clock
from midrun.testing.postgres import Postgres
from tests.scenarios.fleet.crew import agents
from tests.scenarios.fleet.test_processes import PATIENCE, epochs, paid, waits
from tests.scenarios.fleet.workers import workers

pytestmark = [pytest.mark.slow, pytest.mark.once]

LEASE_S = 2.0
HALF_AN_HOUR = 1800 * MICROS_PER_SECOND


@pytest.fixture
async def desk(postgres: Postgres, tmp_path: Path) -> AsyncIterator[Midrun]:
    """Give a process that asks and drives nothing."""
    with anyio.fail_after(PATIENCE):
        async with Midrun(postgres.url(), agents=agents(tmp_path), engine=None) as midrun:
            yield midrun


async def test_one_that_freezes_in_a_commit_does_not_act_on_it_when_it_wakes(
    desk: Midrun, tmp_path: Path
) -> None:
    """The payment is journaled as started, and its process learns of it too late.

    The lease is over by then, and somebody has asked a person whether it was made.
    """
    store = str(desk._store_option)
    with workers(store, tmp_path, 1, lease_s=LEASE_S, flaw="freezes") as first:
        assert await first[0].hear() == "ready"
        run = await desk.start("patient", "go")
        await waits(run)
        (tmp_path / "gate").touch()
        await first[0].stopped()
        with workers(store, tmp_path, 1, lease_s=LEASE_S):
            view = await run.until("waiting")
        assert [ask.kind for ask in view.asks] == ["unsure"]
        first[0].send(signal.SIGCONT)
        other = await desk.start("patient", "go, too")
        await other.until("completed")  # by the one that woke up: there is no other
        assert paid(tmp_path) == [1, 1, 1]
        await run.answer("no")
        await run.until("completed")
        assert await desk.verify(run.id)
    assert paid(tmp_path) == [1, 1, 1, 1]


async def test_one_whose_clock_is_wrong_takes_nothing_from_those_who_are_alive(
    desk: Midrun, tmp_path: Path
) -> None:
    """Who is alive is judged by the server, and entries are dated by it."""
    store = str(desk._store_option)
    with workers(store, tmp_path, 1, lease_s=PATIENCE) as right:
        assert await right[0].hear() == "ready"
        run = await desk.start("patient", "go")
        await waits(run)
        right[0].send(signal.SIGSTOP)  # it is silent, but its time is not over
        with workers(store, tmp_path, 1, lease_s=PATIENCE, flaw="clock") as wrong:
            assert await wrong[0].hear() == "ready"
            other = await desk.start("patient", "go, too")
            await waits(other)
            right[0].send(signal.SIGCONT)
            (tmp_path / "gate").touch()
            await run.until("completed")
            await other.until("completed")
        assert len(await epochs(run)) == 1
        assert set(await epochs(run)).isdisjoint(await epochs(other))
        for record in await desk.store.read(other.id):
            assert abs(record.at - read_wall_clock()) < HALF_AN_HOUR
    assert paid(tmp_path) == [1, 1, 1, 1]


async def test_a_call_that_did_not_leave_in_time_is_made_anew(tmp_path: Path) -> None:
    """At its last look the lease is over, and then a beat that was on its way is answered.

    It must not be waited for as if it had left.
    """
    agent = Agent("actor", model=ScriptedModel(["Done."]), tools=[])
    with anyio.fail_after(PATIENCE):
        async with Midrun(f"sqlite:///{tmp_path / 'runs.db'}", agents=[agent]) as midrun:
            assert midrun._worker
            holder = midrun._worker._heartbeat
            looks = [False]
            alive = holder.is_alive
            setattr(holder, "is_alive", lambda: looks.pop() if looks else alive())  # noqa: B010 - once
            run = await midrun.start("actor", "go")
            assert (await run.until("completed")).output == "Done."
            assert not looks
            assert await midrun.verify(run.id)
