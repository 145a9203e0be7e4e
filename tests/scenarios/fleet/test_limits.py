"""Concurrency limits that all processes on a store share."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from midrun import Midrun, Run
from midrun.errors import NoRoom
from midrun.testing.controllable_tools import ControllableTools
from midrun.workers import local
from midrun.workers.concurrency_limits import PROBES_PER_SWEEP, Fleet
from tests.scenarios.fleet.slow_agent import make_slow_agent
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import verify_journals

PATIENCE = 60

pytestmark = pytest.mark.parametrize(
    "store_path", ["sqlite", pytest.param("postgres", marks=pytest.mark.once)], indirect=True
)


@pytest.fixture
async def path(store_path: Path) -> AsyncIterator[Path]:
    """Return the path of the store; verify every journal afterwards."""
    with anyio.fail_after(PATIENCE):
        yield store_path
        await verify_journals(store_path)


async def open_processes(
    stack: AsyncExitStack, path: Path, tools: ControllableTools, fleet: Fleet, count: int = 3
) -> list[Midrun]:
    """Open `count` `Midrun`s on one store; each stands for a process."""
    return [
        await stack.enter_async_context(
            Midrun(get_store_url(path), agents=[make_slow_agent(tools)], fleet=fleet)
        )
        for _ in range(count)
    ]


async def sweep_all(processes: list[Midrun]) -> None:
    """Let each worker sweep once more, so that every run that can start has started."""
    for midrun in processes:
        assert midrun._worker
        midrun._worker._limiter.begin_sweep(full=True)
        await midrun._worker._start_unheld_runs()
        await anyio.wait_all_tasks_blocked()


async def wait_for_length(names: list[str], size: int) -> None:
    """Wait until `names` has `size` items."""
    while len(names) < size:  # noqa: ASYNC110 - tools append to it
        await anyio.sleep(0.001)


async def test_all_processes_together_drive_no_more_than_the_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a run rests in one process, each process may take the next run at once.

    The periodic sweep is switched off: notifications must suffice.
    """
    monkeypatch.setattr(local, "SWEEP_S", 3600.0)
    tools, fleet = ControllableTools(), Fleet(limits={"agent:actor": 2})
    async with AsyncExitStack() as stack:
        processes = await open_processes(stack, path, tools, fleet)
        runs: list[Run] = [await processes[n % 3].start("actor", f"t{n}") for n in range(9)]
        for done in range(1, 8):
            await wait_for_length(tools.called, done + 1)
            await sweep_all(processes)
            assert len(tools.called) == done + 1
            tools.gate(next(n for n in tools.called if n not in tools.completed)).set()
            await wait_for_length(tools.completed, done)
        for n in range(9):
            tools.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")
    assert sorted(tools.called) == [f"t{n}" for n in range(9)]


async def test_a_limit_of_one_process_does_not_limit_the_others(path: Path) -> None:
    """`here` limits the runs of one process."""
    tools, fleet = ControllableTools(), Fleet(here={"all": 1})
    async with AsyncExitStack() as stack:
        processes = await open_processes(stack, path, tools, fleet, 2)
        runs = [await processes[0].start("actor", f"t{n}") for n in range(3)]
        await wait_for_length(tools.called, 2)
        await sweep_all(processes)
        assert len(tools.called) == 2
        for n in range(3):
            tools.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")


async def test_a_queued_run_is_cancelled_although_the_limit_is_reached(path: Path) -> None:
    """A limit holds only runs back that would start calls."""
    tools, fleet = ControllableTools(), Fleet(limits={"all": 1})
    async with AsyncExitStack() as stack:
        one, two = await open_processes(stack, path, tools, fleet, 2)
        first = await one.start("actor", "a")
        await tools.start("a").wait()
        second = await two.start("actor", "b")
        await sweep_all([one, two])
        assert (await second.view()).phase == "queued"
        await second.cancel()
        await second.until("cancelled")
        tools.gate("a").set()
        await first.until("completed")
    assert tools.called == ["a"]


async def test_a_process_that_was_fenced_takes_its_own_runs_again_at_the_limit(
    path: Path,
) -> None:
    """In the store they still have its lease and count for the limit, so no other can."""
    many = 2 * PROBES_PER_SWEEP
    tools, fleet = ControllableTools(), Fleet(limits={"agent:actor": many})
    async with AsyncExitStack() as stack:
        (one,) = await open_processes(stack, path, tools, fleet, 1)
        runs = [await one.start("actor", f"t{n}") for n in range(many)]
        await wait_for_length(tools.called, many)
        last = await one.start("actor", "last")
        await sweep_all([one])
        assert one._worker
        one._worker._limiter.limit_reached(
            NoRoom(last.id, "agent:actor", many)
        )  # the store has refused a lease
        one._worker._fence_drives()
        for run in runs:
            assert [ask.kind for ask in (await run.until("waiting")).asks] == ["unsure"]
            await run.answer("yes")
            await run.until("completed")
        tools.gate("last").set()
        await last.until("completed")
