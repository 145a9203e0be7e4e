"""Worker processes on one Postgres: takeover after a crash or a freeze, handover, halts."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from midrun import Agent, Midrun, Run
from midrun.core.entries import LeaseTaken, RunHalted
from midrun.core.ids import MICROS_PER_SECOND
from midrun.models import ScriptedModel
from midrun.ports.environment import read_wall_clock
from midrun.ports.store import RunQuery
from midrun.testing.postgres import Postgres
from tests.scenarios.fleet.external_service import ExternalService
from tests.scenarios.fleet.worker_processes import start_workers
from tests.scenarios.fleet.worker_program import STEPS, make_agents
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.once]
PATIENCE = 120
LEASE_S = 2.0
HALF_AN_HOUR = 1800 * MICROS_PER_SECOND


@pytest.fixture
async def controller(postgres: Postgres, tmp_path: Path) -> AsyncIterator[Midrun]:
    """Return a `Midrun` without a worker; verify every journal afterwards."""
    with anyio.fail_after(PATIENCE):
        async with Midrun(postgres.url(), agents=make_agents(tmp_path), engine=None) as midrun:
            yield midrun
            for row in (await midrun.store.list_runs(RunQuery(limit=500))).items:
                verdict = await midrun.verify(row.run)
                assert verdict, str(verdict)


@pytest.fixture
def store(controller: Midrun) -> str:
    """Return the address of the store."""
    return str(controller._store_option)


async def wait_until(fact: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a fact that another process makes true."""
    while not await fact():  # noqa: ASYNC110 - in another process
        await anyio.sleep(0.02)


async def wait_for_gate(run: Run, times: int = 1) -> None:
    """Wait until the call `wait` of the run was started `times` times."""

    async def fact() -> bool:
        starts = [r for r in await run._service.store.read(run.id) if _is_wait(r.entry)]
        return len(starts) >= times

    await wait_until(fact)


def _is_wait(entry: object) -> bool:
    return getattr(entry, "call", "") == "c4" and type(entry).__name__ == "CallStarted"


def count_payments(folder: Path) -> list[int]:
    """Return the number of times that each payment was made."""
    service = ExternalService(folder)
    payments = Counter(e.key for e in service.list_effects() if e.what == "pay")
    service.close()
    return list(payments.values())


async def list_holders(run: Run) -> list[str]:
    """Return the holders that the run has had, in order."""
    records = await run._service.store.read(run.id)
    return [r.entry.holder for r in records if isinstance(r.entry, LeaseTaken)]


async def test_a_run_is_controlled_by_a_process_that_does_not_drive_it(
    controller: Midrun, store: str, tmp_path: Path
) -> None:
    """The worker is notified by the database."""
    with start_workers(store, tmp_path, 2, lease_s=30) as processes:
        for worker in processes:
            assert await worker.read_line() == "ready"
        run = await controller.start("patient", "go")
        await wait_for_gate(run)
        await run.pause(now=True)
        await run.until("paused")
        await run.resume()
        await wait_for_gate(run, 2)
        await run.cancel()
        await run.until("cancelled")
    assert count_payments(tmp_path) == [1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_run_of_a_dead_or_frozen_worker_is_continued_by_another(
    controller: Midrun, store: str, tmp_path: Path, number: signal.Signals
) -> None:
    """No payment is repeated, also not by the frozen worker when it wakes up."""

    async def is_taken_over() -> bool:
        return len(set(await list_holders(run))) == 2

    with start_workers(store, tmp_path, 1, lease_s=LEASE_S) as first:
        assert await first[0].read_line() == "ready"
        run = await controller.start("patient", "go")
        await wait_for_gate(run)
        with start_workers(store, tmp_path, 1, lease_s=LEASE_S) as second:
            assert await second[0].read_line() == "ready"
            first[0].send(number)
            await wait_until(is_taken_over)
            if number is signal.SIGSTOP:
                first[0].send(signal.SIGCONT)
            (tmp_path / "gate").touch()
            await run.until("completed")
    assert count_payments(tmp_path) == [1, 1]


async def test_a_worker_that_shuts_down_hands_its_runs_over(
    controller: Midrun, store: str, tmp_path: Path
) -> None:
    """The run is not paused, and the next worker need not wait for the lease to expire."""
    with start_workers(store, tmp_path, 1, lease_s=PATIENCE) as first:
        assert await first[0].read_line() == "ready"
        run = await controller.start("patient", "go")
        await wait_for_gate(run)
        with start_workers(store, tmp_path, 1, lease_s=PATIENCE) as second:
            assert await second[0].read_line() == "ready"
            first[0].send(signal.SIGTERM)
            assert await first[0].read_line() == "left"
            await wait_for_gate(run, 2)
            (tmp_path / "gate").touch()
            await run.until("completed")
        kinds = [type(r.entry).__name__ for r in await controller.store.read(run.id)]
    assert "PauseRequested" not in kinds
    assert "RunPaused" not in kinds
    assert count_payments(tmp_path) == [1, 1]


async def test_a_halt_reaches_every_worker(
    controller: Midrun, store: str, tmp_path: Path
) -> None:
    """All runs continue when it is lifted."""
    with start_workers(store, tmp_path, 2, lease_s=30) as processes:
        for worker in processes:
            assert await worker.read_line() == "ready"
        runs = [await controller.start("patient", f"t{n}") for n in range(6)]
        for run in runs:
            await wait_for_gate(run)
        await controller.halt("fire drill", actor="operator:olga")
        for run in runs:
            await run.until("halted")
            entries = [r.entry for r in await controller.store.read(run.id)]
            assert any(isinstance(entry, RunHalted) for entry in entries)
        await controller.lift(actor="operator:olga")
        (tmp_path / "gate").touch()
        for run in runs:
            await run.until("completed")
    assert count_payments(tmp_path) == [1] * 12


# ── freezes, wrong clocks and kills ───────────────────────────────────────────────────────


async def test_a_worker_that_freezes_in_a_commit_does_not_make_the_call_when_it_wakes(
    controller: Midrun, store: str, tmp_path: Path
) -> None:
    """The payment is journaled as started, but the worker reads the reply too late.

    Its lease has expired by then, and another worker has asked whether the payment was made.
    """
    with start_workers(store, tmp_path, 1, lease_s=LEASE_S, fault="freezes") as first:
        assert await first[0].read_line() == "ready"
        run = await controller.start("patient", "go")
        await wait_for_gate(run)
        (tmp_path / "gate").touch()
        await first[0].wait_stopped()
        with start_workers(store, tmp_path, 1, lease_s=LEASE_S):
            view = await run.until("waiting")
        assert [ask.kind for ask in view.asks] == ["unsure"]
        first[0].send(signal.SIGCONT)
        other = await controller.start("patient", "go, too")
        await other.until("completed")  # by the worker that woke up; there is no other
        assert count_payments(tmp_path) == [1, 1, 1]
        await run.answer("no")
        await run.until("completed")
        assert await controller.verify(run.id)
    assert count_payments(tmp_path) == [1, 1, 1, 1]


async def test_a_worker_with_a_wrong_clock_takes_no_run_of_a_live_worker(
    controller: Midrun, store: str, tmp_path: Path
) -> None:
    """The clock of the server decides on leases and stamps the entries."""
    with start_workers(store, tmp_path, 1, lease_s=PATIENCE) as right:
        assert await right[0].read_line() == "ready"
        run = await controller.start("patient", "go")
        await wait_for_gate(run)
        right[0].send(signal.SIGSTOP)  # it sends no heartbeat, but its lease has not expired
        with start_workers(store, tmp_path, 1, lease_s=PATIENCE, fault="clock") as wrong:
            assert await wrong[0].read_line() == "ready"
            other = await controller.start("patient", "go, too")
            await wait_for_gate(other)
            right[0].send(signal.SIGCONT)
            (tmp_path / "gate").touch()
            await run.until("completed")
            await other.until("completed")
        assert len(await list_holders(run)) == 1
        assert set(await list_holders(run)).isdisjoint(await list_holders(other))
        for record in await controller.store.read(other.id):
            assert abs(record.at - read_wall_clock()) < HALF_AN_HOUR
    assert count_payments(tmp_path) == [1, 1, 1, 1]


async def test_a_call_that_was_held_back_by_a_lapsed_lease_is_made_again(
    tmp_path: Path,
) -> None:
    """The last check before the call says that the lease has lapsed, and a heartbeat renews it.

    The run loop must not wait for a call that was never made.
    """
    agent = Agent("actor", model=ScriptedModel(["Done."]), tools=[])
    with anyio.fail_after(PATIENCE):
        async with Midrun(f"sqlite:///{tmp_path / 'runs.db'}", agents=[agent]) as midrun:
            assert midrun._service.worker
            heartbeat = midrun._service.worker._heartbeat
            answers = [False]
            is_alive = heartbeat.is_alive
            setattr(heartbeat, "is_alive", lambda: answers.pop() if answers else is_alive())  # noqa: B010 - once
            run = await midrun.start("actor", "go")
            assert (await run.until("completed")).output == "Done."
            assert not answers
            assert await midrun.verify(run.id)


async def test_a_run_survives_a_kill_of_its_process_at_every_write(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Each payment and order is made exactly once. Each run is killed at another write."""
    url = postgres.url()
    command = [sys.executable, "-m", "tests.scenarios.fleet.kill_program", url, str(tmp_path)]
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(  # noqa: S603 - our own script
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
    )
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case["killed"] for case in cases].count(
        False
    ) == 2  # the end of each of the two series
    assert len(cases) > 2 * len(STEPS)
    service = ExternalService(tmp_path)
    effects = service.list_effects()
    service.close()
    async with Midrun(url) as midrun:
        rows = (await midrun.store.list_runs(RunQuery(limit=500))).items
        assert len(rows) == len(cases)
        for row in rows:
            assert row.head.phase == "completed", row
            verdict = await midrun.verify(row.run)
            assert verdict, str(verdict)
            made = Counter(e.what for e in effects if e.run == row.run)
            expected = Counter(STEPS)
            assert (made["pay"], made["order"]) == (expected["pay"], expected["order"]), row
