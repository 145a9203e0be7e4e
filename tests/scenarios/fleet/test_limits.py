"""Limits of the whole fleet: what all processes on a store drive at once, together."""

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
from tests.scenarios.fleet.acting import slow
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import verify_all

PATIENCE = 60

pytestmark = pytest.mark.parametrize(
    "kept", ["sqlite", pytest.param("postgres", marks=pytest.mark.once)], indirect=True
)


@pytest.fixture
async def path(kept: Path) -> AsyncIterator[Path]:
    """Give the store's path; afterwards every journal is verified."""
    with anyio.fail_after(PATIENCE):
        yield kept
        await verify_all(kept)


async def processes(
    stack: AsyncExitStack, path: Path, stage: ControllableTools, fleet: Fleet, count: int = 3
) -> list[Midrun]:
    """Open the store so many times, as processes would."""
    return [
        await stack.enter_async_context(
            Midrun(kept_at(path), agents=[slow(stage)], fleet=fleet)
        )
        for _ in range(count)
    ]


async def looked(those: list[Midrun]) -> None:
    """Have each engine look once more, so that whatever could start has started."""
    for midrun in those:
        assert midrun._worker
        midrun._worker._limiter.begin_sweep(full=True)
        await midrun._worker._start_unheld_runs()
        await anyio.wait_all_tasks_blocked()


async def grown(these: list[str], size: int) -> None:
    """Wait until a list has so many."""
    while len(these) < size:  # noqa: ASYNC110 - several processes' tools write it
        await anyio.sleep(0.001)


async def test_all_processes_together_drive_no_more_than_the_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has room takes the next as soon as one rests, wherever that was driven.

    Nobody looks by the clock here: they are told.
    """
    monkeypatch.setattr(local, "SWEEP_S", 3600.0)
    stage, fleet = ControllableTools(), Fleet(limits={"agent:actor": 2})
    async with AsyncExitStack() as stack:
        those = await processes(stack, path, stage, fleet)
        runs: list[Run] = [await those[n % 3].start("actor", f"t{n}") for n in range(9)]
        for done in range(1, 8):
            await grown(stage.called, done + 1)
            await looked(those)
            assert len(stage.called) == done + 1
            stage.gate(next(n for n in stage.called if n not in stage.completed)).set()
            await grown(stage.completed, done)
        for n in range(9):
            stage.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")
    assert sorted(stage.called) == [f"t{n}" for n in range(9)]


async def test_a_limit_of_this_process_is_not_the_others_business(path: Path) -> None:
    """`here` is what one machine can carry; more machines carry more."""
    stage, fleet = ControllableTools(), Fleet(here={"all": 1})
    async with AsyncExitStack() as stack:
        those = await processes(stack, path, stage, fleet, 2)
        runs = [await those[0].start("actor", f"t{n}") for n in range(3)]
        await grown(stage.called, 2)
        await looked(those)
        assert len(stage.called) == 2
        for n in range(3):
            stage.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")


async def test_what_is_cancelled_or_paused_does_not_wait_for_the_fleet(path: Path) -> None:
    """A limit is for what begins."""
    stage, fleet = ControllableTools(), Fleet(limits={"all": 1})
    async with AsyncExitStack() as stack:
        one, two = await processes(stack, path, stage, fleet, 2)
        first = await one.start("actor", "a")
        await stage.start("a").wait()
        second = await two.start("actor", "b")
        await looked([one, two])
        assert (await second.view()).phase == "queued"
        await second.cancel()
        await second.until("cancelled")
        stage.gate("a").set()
        await first.until("completed")
    assert stage.called == ["a"]


async def test_a_process_that_was_cut_off_goes_on_with_its_own_whatever_the_limit(
    path: Path,
) -> None:
    """Nobody else can: in the store they are its own, and count, for as long as it is alive."""
    many = 2 * PROBES_PER_SWEEP
    stage, fleet = ControllableTools(), Fleet(limits={"agent:actor": many})
    async with AsyncExitStack() as stack:
        (one,) = await processes(stack, path, stage, fleet, 1)
        runs = [await one.start("actor", f"t{n}") for n in range(many)]
        await grown(stage.called, many)
        last = await one.start("actor", "last")
        await looked([one])
        assert one._worker
        one._worker._limiter.limit_reached(
            NoRoom(last.id, "agent:actor", many)
        )  # as the store has said
        one._worker._fence_drives()
        for run in runs:
            assert [ask.kind for ask in (await run.until("waiting")).asks] == ["unsure"]
            await run.answer("yes")
            await run.until("completed")
        stage.gate("last").set()
        await last.until("completed")
