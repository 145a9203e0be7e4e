"""Many processes on one Postgres: one drives at a time, any may ask, the dead are replaced."""

import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from midrun import Midrun, Run
from midrun.core.entries import LeaseTaken, RunHalted
from midrun.ports.store import RunQuery
from midrun.testing.postgres import Postgres
from tests.scenarios.fleet.crew import agents
from tests.scenarios.fleet.workers import workers
from tests.scenarios.fleet.world import World

pytestmark = [pytest.mark.slow, pytest.mark.once]

PATIENCE = 120
LEASE_S = 2.0


@pytest.fixture
async def desk(postgres: Postgres, tmp_path: Path) -> AsyncIterator[Midrun]:
    """Give a process that asks and drives nothing; afterwards every journal is verified."""
    with anyio.fail_after(PATIENCE):
        async with Midrun(postgres.url(), agents=agents(tmp_path), engine=None) as midrun:
            yield midrun
            for row in (await midrun.store.list_runs(RunQuery(limit=500))).items:
                verdict = await midrun.verify(row.run)
                assert verdict, str(verdict)


@pytest.fixture
def store(desk: Midrun) -> str:
    """Give the address that the desk has."""
    return str(desk._store_option)


async def until(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something outside of us is so."""
    while not await fact():  # noqa: ASYNC110 - it happens in other processes
        await anyio.sleep(0.02)


async def waits(run: Run, times: int = 1) -> None:
    """Wait until a worker waits in the middle of the run, for the so-many-th time."""

    async def fact() -> bool:
        starts = [r for r in await run._service.store.read(run.id) if _is_wait(r.entry)]
        return len(starts) >= times

    await until(fact)


def _is_wait(entry: object) -> bool:
    return getattr(entry, "call", "") == "c4" and type(entry).__name__ == "CallStarted"


def paid(folder: Path) -> list[int]:
    """Return how often each payment was made."""
    world = World(folder)
    deeds = Counter(deed.key for deed in world.deeds() if deed.what == "pay")
    world.close()
    return list(deeds.values())


async def epochs(run: Run) -> list[str]:
    """Return who has had the run, in order."""
    records = await run._service.store.read(run.id)
    return [r.entry.holder for r in records if isinstance(r.entry, LeaseTaken)]


async def test_a_run_is_asked_from_a_process_that_does_not_drive_it(
    desk: Midrun, store: str, tmp_path: Path
) -> None:
    """Pause, resume, cancel: whoever drives it hears of it from the database."""
    with workers(store, tmp_path, 2, lease_s=30) as crew:
        for worker in crew:
            assert await worker.hear() == "ready"
        run = await desk.start("patient", "go")
        await waits(run)
        await run.pause(now=True)
        await run.until("paused")
        await run.resume()
        await waits(run, 2)
        await run.cancel()
        await run.until("cancelled")
    assert paid(tmp_path) == [1]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_runs_of_one_that_is_dead_or_frozen_go_on_elsewhere(
    desk: Midrun, store: str, tmp_path: Path, how: signal.Signals
) -> None:
    """What was done is not done again; a frozen one that wakes up has nothing to say."""

    async def overtaken() -> bool:
        return len(set(await epochs(run))) == 2

    with workers(store, tmp_path, 1, lease_s=LEASE_S) as first:
        assert await first[0].hear() == "ready"
        run = await desk.start("patient", "go")
        await waits(run)
        with workers(store, tmp_path, 1, lease_s=LEASE_S) as second:
            assert await second[0].hear() == "ready"
            first[0].send(how)
            await until(overtaken)
            if how is signal.SIGSTOP:
                first[0].send(signal.SIGCONT)
            (tmp_path / "gate").touch()
            await run.until("completed")
    assert paid(tmp_path) == [1, 1]


async def test_one_that_is_asked_to_leave_gives_its_runs_to_the_others(
    desk: Midrun, store: str, tmp_path: Path
) -> None:
    """A rolling restart is nobody's pause, and does not wait for a lease to run out."""
    with workers(store, tmp_path, 1, lease_s=PATIENCE) as first:
        assert await first[0].hear() == "ready"
        run = await desk.start("patient", "go")
        await waits(run)
        with workers(store, tmp_path, 1, lease_s=PATIENCE) as second:
            assert await second[0].hear() == "ready"
            first[0].send(signal.SIGTERM)
            assert await first[0].hear() == "left"
            await waits(run, 2)
            (tmp_path / "gate").touch()
            await run.until("completed")
        kinds = [type(r.entry).__name__ for r in await desk.store.read(run.id)]
    assert "PauseRequested" not in kinds
    assert "RunPaused" not in kinds
    assert paid(tmp_path) == [1, 1]


async def test_a_halt_reaches_every_worker(desk: Midrun, store: str, tmp_path: Path) -> None:
    """And all of them go on where they were when it is lifted."""
    with workers(store, tmp_path, 2, lease_s=30) as crew:
        for worker in crew:
            assert await worker.hear() == "ready"
        runs = [await desk.start("patient", f"t{n}") for n in range(6)]
        for run in runs:
            await waits(run)
        await desk.halt("fire drill", actor="operator:olga")
        for run in runs:
            await run.until("halted")
            entries = [r.entry for r in await desk.store.read(run.id)]
            assert any(isinstance(entry, RunHalted) for entry in entries)
        await desk.lift(actor="operator:olga")
        (tmp_path / "gate").touch()
        for run in runs:
            await run.until("completed")
    assert paid(tmp_path) == [1] * 12
