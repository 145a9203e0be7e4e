"""The worker of followers: its queues, the start of a new follower, and its wake-ups."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import anyio
import apsw
import pytest
from anyio.abc import TaskGroup
from starlette.requests import Request
from starlette.responses import Response

from midrun import Midrun
from midrun.core.ids import RunId, Seq
from midrun.followers import following
from midrun.followers import worker as module
from midrun.followers.webhooks import Webhook
from midrun.followers.worker import FollowerWorker, PendingRun, RetryLater
from midrun.models import Use
from midrun.ports.environment import Environment
from midrun.ports.follower_cursors import FollowerCursor
from midrun.ports.store import Change
from midrun.stores.cursors import MemoryFollowerCursors
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.cursors import COMPLETED_HEAD, LEASE_TTL, append_in_phase
from midrun.testing.store_suite.fixtures import OTHER_RUN, RUN, create_run
from tests.support.paths import ROOT
from tests.support.secret_tools import SecretTools
from tests.unit.followers.child import make_command
from tests.unit.followers.receiver import SECRET, Receiver

# ── one queue for first attempts, one for retries ────────────────────────────


QUEUE_MAX = 4
BAD_RUNS = 3 * QUEUE_MAX


def refuse_bad_runs(receiver: Receiver) -> Callable[[int], Response]:
    """Return answers that refuse the deliveries of runs whose task is bad."""

    def answer(number: int) -> Response:
        bad = "bad" in str(receiver.deliveries[number - 1].data["task"])
        return Response(status_code=400 if bad else 204)

    return answer


@pytest.fixture
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the delivery queue to a few runs; only the first scan comes by time."""
    monkeypatch.setattr(module, "DELIVERY_QUEUE_MAX_RUNS", QUEUE_MAX)
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 3600.0)


@pytest.mark.usefixtures("small_queue")
async def test_more_changed_runs_than_are_noted_are_found_by_the_next_pass(
    path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not wait for the next full scan, and the leadership is renewed only by time."""
    acquire, acquired = FollowerWorker._acquire_leadership, list[object]()

    async def count(worker: FollowerWorker) -> None:
        acquired.append(worker)
        await acquire(worker)

    monkeypatch.setattr(FollowerWorker, "_acquire_leadership", count)
    agent = ControllableTools().agent("Done.")
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, Webhook(receiver.url, secret=SECRET)),
    ):
        runs = [await midrun.start(agent, "go") for _ in range(3 * QUEUE_MAX)]
        deliveries = await receiver.wait_for(len(runs))
    assert len(acquired) == 2  # at the start, and by the first scan
    assert {str(each.data["run_id"]) for each in deliveries} == {run.id for run in runs}


@pytest.mark.usefixtures("small_queue")
async def test_refused_deliveries_do_not_delay_those_of_other_runs(
    path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refused ones wait for their next attempt; the others are sent meanwhile."""
    monkeypatch.setattr(module, "RETRY_FIRST_DELAY_S", 3600.0)
    receiver.answer = refuse_bad_runs(receiver)
    agent = ControllableTools().agent("Done.")
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        async with following(midrun, Webhook(receiver.url, secret=SECRET)):
            for _ in range(BAD_RUNS):
                await (await midrun.start(agent, "bad")).until("completed")
            await receiver.wait_for(BAD_RUNS)
            for number in range(QUEUE_MAX):
                run = await midrun.start(agent, "good")
                deliveries = await receiver.wait_for(BAD_RUNS + 1 + number)
                assert deliveries[-1].data["run_id"] == run.id
        receiver.deliveries.clear()
        # A new process finds all of them pending; the refused ones are the oldest.
        run = await midrun.start(agent, "good")
        await run.until("completed")
        monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.05)
        async with following(midrun, Webhook(receiver.url, secret=SECRET)):
            while run.id not in {delivery.data["run_id"] for delivery in receiver.deliveries}:
                await receiver.wait_for(len(receiver.deliveries) + 1)


@pytest.mark.usefixtures("small_queue")
async def test_attempts_that_hang_do_not_delay_those_of_other_runs(
    path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver may answer slowly to the repetition of a refused delivery."""
    monkeypatch.setattr(module, "FIRST_ATTEMPTS_MAX_CONCURRENT", 1)
    may_answer, receive = anyio.Event(), receiver.receive
    tried_runs: set[str] = set()
    hanging_count = 0

    async def hang_on_repetition(request: Request) -> Response:
        nonlocal hanging_count
        response, delivery = await receive(request), receiver.deliveries[-1]
        if delivery.data["task"] == "bad" and str(delivery.data["run_id"]) in tried_runs:
            hanging_count += 1
            await may_answer.wait()
        tried_runs.add(str(delivery.data["run_id"]))
        return response

    receiver.answer = refuse_bad_runs(receiver)
    receiver.handler = hang_on_repetition
    agent = ControllableTools().agent("Done.")
    # The attempts that hang must not time out during the test.
    webhook = Webhook(receiver.url, secret=SECRET, timeout=timedelta(hours=1))
    async with (
        Midrun(f"sqlite:///{path}", agents=[agent]) as midrun,
        following(midrun, webhook),
    ):
        for _ in range(BAD_RUNS):
            await (await midrun.start(agent, "bad")).until("completed")
        while hanging_count < module.RETRIES_MAX_CONCURRENT or len(tried_runs) < BAD_RUNS:
            await receiver.wait_for(len(receiver.deliveries) + 1)
        run = await midrun.start(agent, "good")
        while receiver.deliveries[-1].data["run_id"] != run.id:
            await receiver.wait_for(len(receiver.deliveries) + 1)
        assert hanging_count == module.RETRIES_MAX_CONCURRENT
        may_answer.set()


# ── a new follower in a store that has runs ──────────────────────────────────


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.once)])
def url(request: pytest.FixtureRequest, path: Path) -> str:
    """Return the URL of a store."""
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    server = request.getfixturevalue("postgres")
    assert isinstance(server, Postgres)
    return server.url()


@pytest.mark.slow
async def test_a_follower_that_is_killed_after_its_registration_misses_nothing(
    url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor delivers changes since the registration, and no older ones."""
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.05)
    agent = SecretTools().make_agent(Use("ask"), "Thanks.", name="asks")
    async with Midrun(url, agents=[agent]) as midrun:
        run = await midrun.start(agent, "Ask.")
        await run.until("waiting")
        command = make_command(url, receiver.url)
        async with await anyio.open_process(command, cwd=ROOT, stderr=None) as follower_process:
            assert follower_process.stdout is not None
            await follower_process.stdout.receive()  # it is registered
            follower_process.kill()
        await run.answer("yes")
        await run.until("completed")
        async with following(midrun, Webhook(receiver.url, secret=SECRET)):
            await receiver.wait_for(1)
            other = await midrun.start(agent, "Ask.")
            await other.until("waiting")
            await receiver.wait_for(2)
    delivered = [
        (delivery.data["run_id"], delivery.data["phase"]) for delivery in receiver.deliveries
    ]
    assert delivered == [(run.id, "completed"), (other.id, "waiting")]


async def test_a_new_follower_needs_no_cursors_for_existing_runs(path: Path) -> None:
    """A cursor is written only for a run that has grown since the registration."""
    store = SqliteStore(path)
    for run in (RUN, OTHER_RUN):
        await create_run(store, run, head=COMPLETED_HEAD)
    await store.follower_cursors().acquire_leadership("late", holder="p", ttl=LEASE_TTL)
    db = apsw.Connection(str(path))
    assert db.execute("SELECT count(*) FROM cursors").get == 0
    await append_in_phase(store, OTHER_RUN, 1)
    assert db.execute("SELECT follower, seq FROM cursors").fetchall() == [("late", 1)]
    db.close()
    await store.close()


# ── wake-ups ─────────────────────────────────────────────────────────────────


class RecordingFollower:
    """A follower that records the seqs that it delivers."""

    name = "listener"
    attempts = 1

    def __init__(self) -> None:
        self.delivered_seqs: list[Seq] = []
        self.delivered = {Seq(1): anyio.Event(), Seq(2): anyio.Event()}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Need no resources."""
        yield

    async def deliver(self, pending: PendingRun) -> FollowerCursor:
        """Record the seq and set its event."""
        self.delivered_seqs.append(pending.row.seq)
        self.delivered[pending.row.seq].set()
        return FollowerCursor(run=pending.run, seq=pending.row.seq)


@pytest.mark.spoils_journals
async def test_a_run_that_grows_during_its_delivery_is_delivered_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The change is reported while the worker still handles the older state."""
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 3600.0)
    follower, saw_change = RecordingFollower(), anyio.Event()
    noted_seqs: list[Seq] = []
    original_note_change = FollowerWorker._note_change
    original_fill_queues = FollowerWorker._fill_queues
    original_get_cursor = MemoryFollowerCursors.get_cursor

    def note_change(worker: FollowerWorker, change: Change) -> None:
        original_note_change(worker, change)
        noted_seqs.append(change.seq)

    async def fill_queues(worker: FollowerWorker, tasks: TaskGroup) -> None:
        has_noted = Seq(2) in noted_seqs
        await original_fill_queues(worker, tasks)
        if has_noted:
            saw_change.set()

    async def get_cursor(
        cursors: MemoryFollowerCursors, follower: str, run: RunId
    ) -> FollowerCursor:
        """Let the run grow after its row was read; wait for a pass that has seen the change."""
        cursor = await original_get_cursor(cursors, follower, run)
        if cursor.seq == 1 and not saw_change.is_set():
            await append_in_phase(midrun.store, RUN, 1)
            await saw_change.wait()
        return cursor

    monkeypatch.setattr(FollowerWorker, "_note_change", note_change)
    monkeypatch.setattr(FollowerWorker, "_fill_queues", fill_queues)
    monkeypatch.setattr(MemoryFollowerCursors, "get_cursor", get_cursor)
    with anyio.fail_after(60):
        async with Midrun("memory://") as midrun, following(midrun, follower):
            await create_run(midrun.store, RUN, head=COMPLETED_HEAD)
            await follower.delivered[Seq(2)].wait()
    assert follower.delivered_seqs == [1, 2]


# ── runs that were deleted ───────────────────────────────────────────────────


class RefusingFollower:
    """Deletes each run while it delivers it, then asks for another attempt."""

    name = "refusing"
    attempts = 9

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.delivered = 0

    def open(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def deliver(self, pending: PendingRun) -> FollowerCursor:
        self.delivered += 1
        await self._store.delete_runs([pending.run], by="ann")
        raise RetryLater("not now", Seq(1))


async def test_a_run_that_was_deleted_is_not_tried_again() -> None:
    """Also if its delivery had failed before: the retry finds no run, and is forgotten."""
    store = MemoryStore()
    follower = RefusingFollower(store)
    worker = FollowerWorker(store, follower, Environment())
    await store.follower_cursors().acquire_leadership("refusing", holder="p", ttl=LEASE_TTL)
    await create_run(store, RUN, head=COMPLETED_HEAD)
    await worker._deliver_run(RUN, worker._first_queue)
    assert RUN in worker._retries
    await worker._deliver_run(RUN, worker._retry_queue)
    assert not worker._retries
    assert follower.delivered == 1
    assert not await store.follower_cursors().list_behind("refusing", limit=9)
