"""Workers that Temporal places runs on, as processes: killed, frozen, and taken over from."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from temporalio.client import Client

from midrun import Midrun, Run
from midrun.errors import StoreError
from midrun.ports.store import RunQuery
from midrun.stores.postgres import pool
from midrun.testing.postgres import Postgres
from midrun.testing.temporal import TemporalServer
from tests.support.processes import ROOT
from tests.unit.cli.app import searcher
from tests.unit.workers.worker import BACK_S, make_agents

pytestmark = [pytest.mark.once, pytest.mark.slow]

APP = ROOT / "tests" / "unit" / "cli" / "app.py"
PATIENCE = 120
Worker = subprocess.Popen[str]


class Fleet:
    """The workers of a test, and a `Midrun` that only looks and controls."""

    def __init__(
        self,
        midrun: Midrun,
        postgres: Postgres,
        folder: Path,
        run: Callable[[str, str], Worker],
    ) -> None:
        self.midrun = midrun
        self.postgres = postgres
        self.folder = folder
        self._run = run

    def start(self, name: str, *, lease_s: float = 2) -> Worker:
        """Start a worker, and wait until it is ready."""
        return self._run(name, str(lease_s))

    def book(self) -> list[str]:
        """Return what was entered, and by whom."""
        path = self.folder / "book"
        return path.read_text().splitlines() if path.exists() else []

    async def begun(self, word: str) -> str:
        """Wait until `word` was entered, and return by whom."""
        while True:
            for line in self.book():
                if line.startswith(word):
                    return line.split()[1]
            await anyio.sleep(0.02)

    async def exists(self, name: str) -> None:
        """Wait until a worker has left a file of that name."""
        file = self.folder / name
        while not file.exists():  # noqa: ASYNC110 - another process makes it
            await anyio.sleep(0.02)


@pytest.fixture
async def fleet(
    server: TemporalServer, postgres: Postgres, tmp_path: Path
) -> AsyncIterator[Fleet]:
    """Give a fleet without workers; afterwards they are all gone, and journals are verified."""
    address = postgres.url()
    with ExitStack() as stack, anyio.fail_after(PATIENCE):

        def start(name: str, lease_s: str) -> Worker:
            script = Path(__file__).parent / "worker.py"
            place = [address, server.address, tmp_path.name, str(tmp_path)]
            worker = stack.enter_context(
                subprocess.Popen(  # noqa: S603 - our own script
                    [sys.executable, script, *place, name, lease_s],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(worker.kill)
            assert worker.stdout is not None
            assert worker.stdout.readline().startswith("ready")
            return worker

        async with Midrun(address) as midrun:
            yield Fleet(midrun, postgres, tmp_path, start)
            for row in (await midrun.store.list_runs(RunQuery())).items:
                verdict = await midrun.verify(row.run)
                assert verdict, str(verdict)


async def started(fleet: Fleet, agent: str = "clerk") -> Run:
    """Start a run where the agent is known, and nothing is driven."""
    agents = make_agents(fleet.folder, "nobody")
    async with Midrun(fleet.midrun.store, agents=agents, engine=None) as midrun:
        run = await midrun.start(agent, "Go.")
    return await fleet.midrun.get(run.id)


async def test_a_worker_that_is_killed_loses_its_run_to_another(fleet: Fleet) -> None:
    """What was done is not done again; what was under way is made again where that is safe."""
    workers = {name: fleet.start(name) for name in ("ada", "bob")}
    run = await started(fleet)
    first = await fleet.begun("b")
    workers[first].kill()
    (other,) = set(workers) - {first}
    (fleet.folder / "on").touch()
    assert (await run.until("completed")).output == "Done."
    lines = fleet.book()
    assert [line for line in lines if line[0] == "a"] == [f"a {first}"]
    assert lines[-1] == f"c {other}"


async def test_a_worker_that_was_frozen_and_wakes_can_start_nothing(fleet: Fleet) -> None:
    """It finds that the run is another's, whatever it was about to do."""
    workers = {name: fleet.start(name) for name in ("ada", "bob")}
    run = await started(fleet)
    first = await fleet.begun("b")
    workers[first].send_signal(signal.SIGSTOP)
    (other,) = set(workers) - {first}
    (fleet.folder / "on").touch()
    await run.until("completed")
    workers[first].send_signal(signal.SIGCONT)
    second = await started(fleet)
    assert (await second.until("completed")).output == "Done."
    assert next(line for line in fleet.book() if line[0] == "c") == f"c {other}"


async def test_a_worker_that_is_told_to_leave_hands_its_run_over(fleet: Fleet) -> None:
    """Nobody is told that it was paused: it was not."""
    workers = {name: fleet.start(name) for name in ("ada", "bob")}
    run = await started(fleet)
    first = await fleet.begun("b")
    workers[first].send_signal(signal.SIGINT)
    (fleet.folder / "on").touch()
    assert (await run.until("completed")).output == "Done."
    kinds = [item.kind async for item in run.feed()]
    assert "PauseRequested" not in kinds


@asynccontextmanager
async def outage(postgres: Postgres) -> AsyncIterator[None]:
    """Have no database for a while."""
    await anyio.to_thread.run_sync(postgres.stop, "immediate")
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(postgres.start)


async def test_an_outage_of_postgres_loses_nothing_and_repeats_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that ends meanwhile has ended: its result is kept until it can be written.

    Nothing starts while nobody can journal it. Temporal need not know of any of it.
    """
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", BACK_S)
    fleet.start("ada", lease_s=PATIENCE)  # so that the outage ends before the lease does
    run = await started(fleet)
    await fleet.begun("b")
    async with outage(fleet.postgres):
        (fleet.folder / "on").touch()
        await fleet.exists("b is over")
        with pytest.raises(StoreError):
            await run.pause()
        assert [line[0] for line in fleet.book()] == ["a", "b"]
    assert (await run.until("completed")).output == "Done."
    assert [line[0] for line in fleet.book()] == ["a", "b", "c"]
    second = await started(fleet)
    assert (await second.until("completed")).output == "Done."


async def test_an_outage_that_outlasts_the_lease_repeats_only_what_may_be(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker cannot know whether others have its runs, so it stops what it was doing.

    What may be made again is, once somebody can journal it. What has ended, has ended: that it
    did is kept until it can be said, however long that takes, and nobody has to answer.
    """
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", 5.0)  # longer than one who gives up would try
    fleet.start("ada", lease_s=5)  # of which the payment needs a moment, without a database
    clerk, payer = await started(fleet), await started(fleet, "payer")
    await fleet.begun("b")
    await fleet.begun("pay")
    async with outage(fleet.postgres):
        (fleet.folder / "paid").touch()
        await fleet.exists("pay is over")
        await fleet.exists("b is over")  # nobody let it go on: it was stopped
        with pytest.raises(StoreError):
            await clerk.pause()
    (fleet.folder / "on").touch()
    assert (await clerk.until("completed")).output == "Done."
    await payer.until("completed")  # it may have asked for a moment; nobody answered
    words = Counter(line.split()[0] for line in fleet.book())
    assert words == {"a": 1, "b": 2, "c": 1, "pay": 1}


@contextmanager
def typed(*words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the command until the test has ended."""
    with subprocess.Popen([sys.executable, "-m", "midrun", *words]) as process:  # noqa: S603 - our own command
        try:
            yield process
        finally:
            process.kill()


async def test_the_command_works_for_temporal(
    postgres: Postgres, server: TemporalServer
) -> None:
    """`midrun worker APP --engine temporal --temporal-address …`, until SIGTERM."""
    url = postgres.url()
    words = [f"{APP}:searcher", "--store", url, "--temporal-address", server.address]
    with anyio.fail_after(PATIENCE), typed("worker", "--engine", "temporal", *words) as worker:
        async with Midrun(url, agents=[searcher], engine=None) as midrun:
            run = await midrun.start(searcher, "cats")
            assert (await run.until("completed")).output == "Found cats."
        client = await Client.connect(server.address)
        await client.get_workflow_handle(f"midrun:{run.id}").result()  # Temporal knew of it
        worker.terminate()
        assert await anyio.to_thread.run_sync(worker.wait, abandon_on_cancel=True) == 0
