"""Temporal as the placement of runs, with its real server and with worker processes."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from temporalio.client import Client

from midrun import Agent, Midrun, Run
from midrun.core.ids import RunId
from midrun.errors import StoreError
from midrun.models import Use
from midrun.ports.environment import Environment
from midrun.ports.store import RunQuery
from midrun.stores.postgres import pool
from midrun.testing.postgres import Postgres
from midrun.testing.temporal import TemporalServer
from midrun.testing.worker_suite import EngineSuite, GatedTool, OpenMidrun
from midrun.workers.temporal import Temporal
from midrun.workers.temporal.worker import _TemporalSession
from tests.support.conditions import wait_until
from tests.support.paths import ROOT
from tests.unit.cli.app import searcher
from tests.unit.workers.worker import RECONNECT_S, make_agents, read_book

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.fixture
async def opened(
    server: TemporalServer, postgres: Postgres, tmp_path: Path
) -> AsyncIterator[OpenMidrun]:
    """Return a function that opens a `Midrun` on one Postgres; Temporal places its runs."""
    url = postgres.url()

    @asynccontextmanager
    async def open_midrun(*agents: Agent) -> AsyncIterator[Midrun]:
        environment = Environment(lease=timedelta(seconds=30))
        worker = Temporal(server.address, queue=tmp_path.name)
        async with Midrun(url, agents=agents, outside=environment, engine=worker) as midrun:
            yield midrun

    with anyio.fail_after(120):
        yield open_midrun


class TestTemporal(EngineSuite):
    """Temporal passes the conformance suite; the fixture `opened` is that of the module."""


async def test_a_waiting_run_has_no_open_workflow(
    opened: OpenMidrun, server: TemporalServer
) -> None:
    """A run that waits for a year is stored in Postgres only."""
    agent = GatedTool().make_agent(Use("ask_human", question="Which?"), "So be it.")
    async with opened(agent) as midrun:
        run = await midrun.start("waiter", "Go.")
        await run.until("waiting")
        client = await Client.connect(server.address)
        await client.get_workflow_handle(f"midrun:{run.id}").result()
        await run.answer("this")
        assert (await run.until("completed")).output == "So be it."


async def test_many_runs_that_cannot_be_placed_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While Temporal is away, a line for each queued run and attempt would fill the log."""
    caplog.set_level("DEBUG", "midrun.workers.temporal")
    placement = Temporal("127.0.0.1:1")  # where no server is
    async with Midrun("memory://", agents=[searcher], engine=None) as midrun:
        runs = [await midrun.start(searcher, "Go.") for _ in range(3)]
        session = _TemporalSession(placement, None, midrun.store)  # type: ignore[arg-type]  # no run is driven
        for run in runs:
            await session.announce_run(RunId(run.id))
    levels = [each.levelname for each in caplog.records if "Cannot place" in each.message]
    assert levels == ["WARNING", "DEBUG", "DEBUG"]


async def test_an_outage_of_temporal_does_not_affect_running_runs(
    opened: OpenMidrun, server: TemporalServer
) -> None:
    """Leases and controls are in the store. New runs wait and are placed later."""
    gate = GatedTool()
    async with opened(gate.make_agent(Use("wait", name="x"), "Done.")) as midrun:
        run, busy = await midrun.start("waiter", "Go."), await midrun.start("waiter", "Go on.")
        await wait_until(lambda: len(gate.called) == 2)
        server.kill()
        try:
            await run.pause(now=True)
            await run.until("paused")
            late = await midrun.start("waiter", "Go, too.")
            gate.may_continue.set()
            assert (await busy.until("completed")).output == "Done."
            assert (await late.view()).phase == "queued"
            await run.resume()
        finally:
            server.start()
        assert (await run.until("completed")).output == "Done."
        assert (await late.until("completed")).output == "Done."
        assert await midrun.verify(run.id)


# ── worker processes ─────────────────────────────────────────────────────────


APP = ROOT / "tests" / "unit" / "cli" / "app.py"
TIMEOUT_S = 120
Worker = subprocess.Popen[str]


class Fleet:
    """The worker processes of a test, and a `Midrun` without a worker that sends controls."""

    def __init__(
        self,
        midrun: Midrun,
        postgres: Postgres,
        folder: Path,
        start_process: Callable[[str, str], Worker],
    ) -> None:
        self.midrun = midrun
        self.postgres = postgres
        self.folder = folder
        self._start_process = start_process

    def start(self, name: str, *, lease_s: float = 2) -> Worker:
        """Start a worker and wait until it is ready."""
        return self._start_process(name, str(lease_s))

    def read_book(self) -> list[str]:
        """Return the lines of the book: a word and the name of its worker."""
        return read_book(self.folder)

    async def wait_for_word(self, word: str) -> str:
        """Wait until `word` is in the book; return the name of the worker that wrote it."""
        while True:
            for line in self.read_book():
                if line.startswith(word):
                    return line.split()[1]
            await anyio.sleep(0.02)

    async def wait_for_file(self, name: str) -> None:
        """Wait until a worker has created a file of this name."""
        file = self.folder / name
        while not file.exists():  # noqa: ASYNC110 - another process creates it
            await anyio.sleep(0.02)


@pytest.fixture
async def fleet(
    server: TemporalServer, postgres: Postgres, tmp_path: Path
) -> AsyncIterator[Fleet]:
    """Start a fleet without workers. Afterwards stop its workers and verify all journals."""
    url = postgres.url()
    with ExitStack() as stack, anyio.fail_after(TIMEOUT_S):

        def start_worker(name: str, lease_s: str) -> Worker:
            script = Path(__file__).parent / "worker.py"
            arguments = [url, server.address, tmp_path.name, str(tmp_path)]
            worker = stack.enter_context(
                subprocess.Popen(  # noqa: S603 - our own script
                    [sys.executable, script, *arguments, name, lease_s],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(worker.kill)
            assert worker.stdout is not None
            assert worker.stdout.readline().startswith("ready")
            return worker

        async with Midrun(url) as midrun:
            yield Fleet(midrun, postgres, tmp_path, start_worker)
            for row in (await midrun.store.list_runs(RunQuery())).items:
                verdict = await midrun.verify(row.run)
                assert verdict, str(verdict)


async def start_run(fleet: Fleet, agent: str = "clerk") -> Run:
    """Start a run from a process that knows the agent and drives nothing."""
    agents = make_agents(fleet.folder, "no worker")
    async with Midrun(fleet.midrun.store, agents=agents, engine=None) as midrun:
        run = await midrun.start(agent, "Go.")
    return await fleet.midrun.get(run.id)


async def test_another_worker_continues_the_run_of_a_killed_worker(fleet: Fleet) -> None:
    """A finished call is not repeated. An idempotent call that was in flight is made again."""
    workers = {name: fleet.start(name) for name in ("ada", "bob")}
    run = await start_run(fleet)
    first = await fleet.wait_for_word("b")
    workers[first].kill()
    (other,) = set(workers) - {first}
    (fleet.folder / "on").touch()
    assert (await run.until("completed")).output == "Done."
    lines = fleet.read_book()
    assert [line for line in lines if line[0] == "a"] == [f"a {first}"]
    assert lines[-1] == f"c {other}"


async def test_a_worker_that_wakes_after_a_freeze_starts_no_call_of_its_former_run(
    fleet: Fleet,
) -> None:
    """Another worker has taken the lease meanwhile."""
    workers = {name: fleet.start(name) for name in ("ada", "bob")}
    run = await start_run(fleet)
    first = await fleet.wait_for_word("b")
    workers[first].send_signal(signal.SIGSTOP)
    (other,) = set(workers) - {first}
    (fleet.folder / "on").touch()
    await run.until("completed")
    workers[first].send_signal(signal.SIGCONT)
    second = await start_run(fleet)
    assert (await second.until("completed")).output == "Done."
    assert next(line for line in fleet.read_book() if line[0] == "c") == f"c {other}"


async def test_a_worker_that_is_interrupted_hands_over_its_run_without_a_pause(
    fleet: Fleet,
) -> None:
    """The journal must not show a pause that no actor requested."""
    workers = {name: fleet.start(name) for name in ("ada", "bob")}
    run = await start_run(fleet)
    first = await fleet.wait_for_word("b")
    workers[first].send_signal(signal.SIGINT)
    (fleet.folder / "on").touch()
    assert (await run.until("completed")).output == "Done."
    kinds = [item.kind async for item in run.feed()]
    assert "PauseRequested" not in kinds


@asynccontextmanager
async def stop_postgres(postgres: Postgres) -> AsyncIterator[None]:
    """Stop the database during the block."""
    await anyio.to_thread.run_sync(postgres.stop, "immediate")
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(postgres.start)


async def test_an_outage_of_postgres_within_the_lease_loses_and_repeats_no_call(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that comes during the outage is kept until it can be appended.

    No call starts meanwhile. Temporal is not involved.
    """
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", RECONNECT_S)
    fleet.start("ada", lease_s=TIMEOUT_S)  # longer than the outage
    run = await start_run(fleet)
    await fleet.wait_for_word("b")
    async with stop_postgres(fleet.postgres):
        (fleet.folder / "on").touch()
        await fleet.wait_for_file("b is over")
        with pytest.raises(StoreError):
            await run.pause()
        assert [line[0] for line in fleet.read_book()] == ["a", "b"]
    assert (await run.until("completed")).output == "Done."
    assert [line[0] for line in fleet.read_book()] == ["a", "b", "c"]
    second = await start_run(fleet)
    assert (await second.until("completed")).output == "Done."


async def test_an_outage_of_postgres_beyond_the_lease_repeats_only_idempotent_calls(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker must assume that other workers have its runs, so it stops its calls.

    The idempotent call is made again. The result of the payment, which has ended, is kept until
    it can be appended, and no person has to settle it.
    """
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", 5.0)  # the outage lasts at least this long
    fleet.start("ada", lease_s=5)  # the payment ends within it
    clerk, payer = await start_run(fleet), await start_run(fleet, "payer")
    await fleet.wait_for_word("b")
    await fleet.wait_for_word("pay")
    async with stop_postgres(fleet.postgres):
        (fleet.folder / "paid").touch()
        await fleet.wait_for_file("pay is over")
        await fleet.wait_for_file("b is over")  # the worker stopped it
        with pytest.raises(StoreError):
            await clerk.pause()
    (fleet.folder / "on").touch()
    assert (await clerk.until("completed")).output == "Done."
    await payer.until("completed")  # without an answer to an ask
    words = Counter(line.split()[0] for line in fleet.read_book())
    assert words == {"a": 1, "b": 2, "c": 1, "pay": 1}


@contextmanager
def run_command(*words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `midrun` during the block."""
    with subprocess.Popen([sys.executable, "-m", "midrun", *words]) as process:  # noqa: S603 - our own command
        try:
            yield process
        finally:
            process.kill()


async def test_the_worker_command_drives_runs_with_temporal(
    postgres: Postgres, server: TemporalServer
) -> None:
    """It runs until SIGTERM."""
    url = postgres.url()
    words = [f"{APP}:searcher", "--store", url, "--temporal-address", server.address]
    with (
        anyio.fail_after(TIMEOUT_S),
        run_command("worker", "--engine", "temporal", *words) as worker,
    ):
        async with Midrun(url, agents=[searcher], engine=None) as midrun:
            run = await midrun.start(searcher, "cats")
            assert (await run.until("completed")).output == "Found cats."
        client = await Client.connect(server.address)
        await client.get_workflow_handle(
            f"midrun:{run.id}"
        ).result()  # Temporal has the workflow
        worker.terminate()
        assert await anyio.to_thread.run_sync(worker.wait, abandon_on_cancel=True) == 0
