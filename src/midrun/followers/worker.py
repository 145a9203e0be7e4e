"""The worker that keeps one follower up to date with one store.

The journals are the queue, so nothing is copied or lost. The store keeps a cursor for each
follower and run, which is moved after each delivery; after a restart, delivery continues there.
Every entry is delivered at least once, and the entries of one run in order.

A run whose delivery failed is tried again later. Until then it costs one entry in `_retries`.
Retries have a queue and a concurrency limit of their own: many runs that a receiver refuses, or
refuses slowly, cannot block runs that it would accept.

If several processes follow the same store with the same follower, one of them is the leader and
delivers. The leadership is a lease in the store, renewed at each full scan.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final, Protocol, runtime_checkable

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct, field

from midrun.core.entries import Record
from midrun.core.ids import RunId, Seq
from midrun.core.retries import compute_backoff_s
from midrun.core.values import RESTING_PHASES, Phase
from midrun.driver.notifications import Wakeup
from midrun.errors import MidrunError, Misconfigured, RunNotFound, StoreError
from midrun.ports.environment import Environment
from midrun.ports.follower_cursors import FollowerCursor, HasFollowerCursors
from midrun.ports.store import Change, RunRow, Store
from midrun.runs.midrun import Midrun

LEADERSHIP_TTL: Final = timedelta(seconds=30)
"""Duration of the leadership: after this silence another process takes over."""

SCAN_INTERVAL_S: Final = 10.0
"""Interval of full scans, which find changes that no notification reported.

Each scan also renews the leadership, so this must stay well below its duration."""

PASS_MIN_INTERVAL_S: Final = 0.25
"""Minimum pause between two passes: a busy run changes thousands of times a minute."""

SHUTDOWN_WRITE_TIMEOUT_S: Final = 2.0
"""Time limit for the last writes to the store on shutdown."""

FIRST_ATTEMPTS_MAX_CONCURRENT: Final = 8
RETRIES_MAX_CONCURRENT: Final = 2
"""Number of concurrent deliveries: first attempts, and retries."""

DELIVERY_QUEUE_MAX_RUNS: Final = 256
"""Maximum number of runs in a delivery queue; further runs stay in the store."""

RETRY_SCHEDULES_MAX: Final = 4096
"""Maximum number of runs with a retry schedule, about a megabyte of memory.

Further failing runs have no schedule: each full scan tries them again."""

RETRY_FIRST_DELAY_S: Final = 1.0
RETRY_MAX_DELAY_S: Final = 3600.0
"""First and longest delay between two attempts; each delay is twice the one before."""

log = logging.getLogger("midrun.followers")


class RetryLater(Exception):
    """Raised by a follower to retry the delivery of the entry at `seq` later.

    `seconds` is the delay that the receiver asked for, such as its `Retry-After` header.
    """

    def __init__(self, reason: str, seq: Seq, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seq = seq
        self.seconds = seconds


class PendingRun(Struct, frozen=True, kw_only=True):
    """A resting run with the entries that are not delivered yet: at least one, in order.

    `note` is the text that the follower stored with its cursor at the last delivery.
    """

    store: Store
    row: RunRow
    records: Sequence[Record]
    note: str

    @property
    def run(self) -> RunId:
        """The run's id."""
        return self.row.run


class Follower(Protocol):
    """Delivers entries of runs to another system."""

    @property
    def name(self) -> str:
        """The name of its cursors; must be the same in every process."""
        ...

    @property
    def attempts(self) -> int:
        """Number of attempts before a delivery is skipped."""
        ...

    def open(self) -> AbstractAsyncContextManager[None]:
        """Return a context that holds the follower's resources, such as connections."""
        ...

    async def deliver(self, pending: PendingRun) -> FollowerCursor:
        """Deliver the first item of `pending` and return the cursor after it.

        The same item may be delivered again, even concurrently from another process, so each
        delivery must carry an id that does not change.

        Raises:
            RetryLater: the delivery failed and should be tried again.
        """
        ...


@runtime_checkable
class FollowsWorkingRuns(Protocol):
    """A `Follower` that also gets runs that work, not only runs that rest.

    Such a run is delivered at most once per `working_interval_s`, since each delivery writes a
    cursor to the store. A run that rests is delivered at once, as to every follower.
    """

    @property
    def working_interval_s(self) -> float:
        """Seconds between two deliveries of a run that works."""
        ...


@asynccontextmanager
async def following(
    midrun: Midrun, *followers: Follower, environment: Environment | None = None
) -> AsyncIterator[None]:
    """Deliver the runs in the store of `midrun` to `followers` while the context is open.

    A follower that is new to the store gets only entries that are written from then on.

    Raises:
        Misconfigured: the store cannot keep cursors, or two followers have the same name.
    """
    if not isinstance(midrun.store, HasFollowerCursors):
        raise Misconfigured("followers", "this store cannot keep cursors; use another store")
    if len({follower.name for follower in followers}) < len(followers):
        raise Misconfigured("followers", "two have the same name; pass a different name=")
    async with AsyncExitStack() as stack:
        for follower in followers:
            await stack.enter_async_context(follower.open())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        for follower in followers:
            worker = FollowerWorker(midrun.store, follower, environment or Environment())
            # `start` returns when the worker has tried to become leader. For a new follower,
            # that fixes the point from which entries are delivered: before the body runs.
            await tasks.start(worker.run)
        yield


class FollowerWorker:
    """Delivers the runs of one store to one follower.

    One task, `run`, decides which runs are due. Each run in a queue has a delivery task of
    its own, which waits for a slot of that queue's semaphore. A run is in at most one queue, so
    its entries are delivered in order.
    """

    def __init__(self, store: Store, follower: Follower, environment: Environment) -> None:
        assert isinstance(store, HasFollowerCursors)
        self._store = store
        self._cursors = store.follower_cursors()
        self._follower = follower
        self._random = environment.random_unit
        self._holder = f"f_{environment.make_id()}"
        self._wakeup = Wakeup()
        self._changed: set[RunId] = set()  # notified since the last pass
        self._retries: dict[RunId, _RetrySchedule] = {}  # of failed deliveries
        self._first_queue = DeliveryQueue(slots=anyio.Semaphore(FIRST_ATTEMPTS_MAX_CONCURRENT))
        self._retry_queue = DeliveryQueue(slots=anyio.Semaphore(RETRIES_MAX_CONCURRENT))
        self._next_scan_at = 0.0
        self._are_more_behind = False  # undelivered runs that are neither noted nor in a queue
        self._is_leader = False
        self._working_interval_s = (
            follower.working_interval_s if isinstance(follower, FollowsWorkingRuns) else None
        )
        # When each working run was delivered last, or first seen, by AnyIO's clock.
        self._working_since: dict[RunId, float] = {}

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Deliver until cancelled; report `started` once the starting point is fixed."""
        try:
            async with anyio.create_task_group() as tasks:
                # Subscribe before the first pass. A change between the two is then reported
                # by the subscription, and not missed until the next full scan.
                await tasks.start(self._watch_changes)
                await self._acquire_leadership()
                task_status.started()
                while True:
                    await self._fill_queues(tasks)
                    await self._wakeup.wait(self._compute_wait_s())
                    # Collect further changes into the same pass.
                    await anyio.sleep(PASS_MIN_INTERVAL_S)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_WRITE_TIMEOUT_S):
                await self._release_leadership()

    async def _watch_changes(self, *, task_status: TaskStatus[None]) -> None:
        async with self._store.watch() as changes:
            task_status.started()
            async for change in changes:
                self._note_change(change)

    def _note_change(self, change: Change) -> None:
        if not change.run:  # a halt; halts are not delivered
            return
        if change.run in self._changed or len(self._changed) < DELIVERY_QUEUE_MAX_RUNS:
            self._changed.add(change.run)
        else:
            self._are_more_behind = True
        self._wakeup.set()

    async def _acquire_leadership(self) -> None:
        """Acquire or renew the leadership; only the leader delivers."""
        name = self._follower.name
        try:
            self._is_leader = await self._cursors.acquire_leadership(
                name, holder=self._holder, ttl=LEADERSHIP_TTL
            )
        except StoreError as error:
            self._is_leader = False
            log.warning("%s: deliveries are suspended: %s", name, error)

    async def _release_leadership(self) -> None:
        if self._is_leader:
            try:
                await self._cursors.release_leadership(self._follower.name, holder=self._holder)
            except StoreError:
                return  # the leadership expires

    # ── choosing runs ─────────────────────────────────────────────────────────────────────

    async def _fill_queues(self, tasks: TaskGroup) -> None:
        """Move due runs into the delivery queues, as far as they have room."""
        now = anyio.current_time()
        # Replaced, not cleared: notifications that arrive during the awaits below go into the
        # new set and are handled by the next pass.
        candidates = self._changed
        self._changed = set()
        is_scan_due = now >= self._next_scan_at
        if is_scan_due:
            self._next_scan_at = now + SCAN_INTERVAL_S
            await self._acquire_leadership()
        if is_scan_due or self._must_scan_early:
            candidates |= await self._scan_undelivered()
        if not self._is_leader:
            return
        # A run that is being delivered may have grown after its task read the journal. It stays
        # in the set of changed runs, so that a pass after the end of that task looks again.
        still_queued = candidates & self._queued_runs
        due = [run for run, later in self._retries.items() if later.due <= now]
        due.sort(key=lambda run: self._retries[run].due)
        overflow = self._enqueue(
            tasks, self._first_queue, [run for run in candidates if run not in self._retries]
        )
        self._enqueue(tasks, self._retry_queue, due)
        self._changed |= still_queued | set(overflow[:DELIVERY_QUEUE_MAX_RUNS])
        if len(overflow) > DELIVERY_QUEUE_MAX_RUNS:
            self._are_more_behind = True

    def _enqueue(
        self, tasks: TaskGroup, queue: "DeliveryQueue", runs: Sequence[RunId]
    ) -> Sequence[RunId]:
        """Start deliveries until the queue is full; return the runs that did not fit."""
        busy = self._queued_runs
        ready = [run for run in runs if run not in busy]
        fits = max(0, DELIVERY_QUEUE_MAX_RUNS - len(queue.runs))
        for run in ready[:fits]:
            queue.runs.add(run)
            tasks.start_soon(self._deliver_run, run, queue)
        return ready[fits:]

    @property
    def _queued_runs(self) -> set[RunId]:
        return self._first_queue.runs | self._retry_queue.runs

    async def _scan_undelivered(self) -> set[RunId]:
        if not self._is_leader:
            return set()
        self._are_more_behind = False
        try:
            # The store returns the runs that have waited longest first. Those that wait for a
            # retry or are in a queue come back in every scan; the limit leaves room for others.
            limit = DELIVERY_QUEUE_MAX_RUNS + len(self._retries.keys() | self._queued_runs)
            behind = await self._cursors.list_behind(self._follower.name, limit=limit)
        except StoreError as error:
            log.warning("%s: cannot scan for undelivered runs: %s", self._follower.name, error)
            return set()  # the next full scan finds them
        if len(behind) == limit:
            self._are_more_behind = True
        return {cursor.run for cursor in behind}

    @property
    def _must_scan_early(self) -> bool:
        """Whether more runs are behind, and the queue has room for some of them."""
        has_room = len(self._first_queue.runs) < DELIVERY_QUEUE_MAX_RUNS
        return self._is_leader and self._are_more_behind and has_room

    def _compute_wait_s(self) -> float:
        """Return the seconds until the next scan or retry is due."""
        if self._must_scan_early:
            return 0.0
        if not self._is_leader:
            return max(0.0, self._next_scan_at - anyio.current_time())
        busy, due = self._queued_runs, self._next_scan_at
        # While the retry queue is full, a due run cannot enter it: waking up for that run would
        # spin. The end of a delivery wakes the worker.
        if len(self._retry_queue.runs) < DELIVERY_QUEUE_MAX_RUNS:
            waiting = (at.due for run, at in self._retries.items() if run not in busy)
            due = min((due, *waiting))
        return max(0.0, due - anyio.current_time())

    # ── delivering ────────────────────────────────────────────────────────────────────────

    async def _deliver_run(self, run: RunId, queue: "DeliveryQueue") -> None:
        """Deliver all entries of one run in order; on failure, schedule a retry."""
        try:
            # Checked before a slot is taken: a run that has continued needs none.
            if self._is_due(run, (await self._store.get_row(run)).head.phase):
                async with queue.slots:
                    while await self._deliver_next(run):
                        pass
        except RetryLater as later:
            self._schedule_retry(run, str(later), later.seconds)
        except RunNotFound:
            self._retries.pop(run, None)
            self._working_since.pop(run, None)
        except MidrunError as error:  # such as a busy store or an unreadable journal
            self._schedule_retry(run, str(error))
        except Exception as error:
            log.exception("%s: delivery of run %s failed", self._follower.name, run)
            self._schedule_retry(run, type(error).__name__)
        else:
            self._retries.pop(run, None)
        finally:
            queue.runs.discard(run)
            self._wakeup.set()  # the queue has room, and a retry may be due

    async def _deliver_next(self, run: RunId) -> bool:
        """Deliver one item and move the cursor; return False if none is left."""
        row = await self._store.get_row(run)
        old = await self._cursors.get_cursor(self._follower.name, run)
        if not self._is_due(run, row.head.phase) or old.seq >= row.seq:
            return False
        limit = row.seq - old.seq
        records = await self._store.read(run, after=old.seq, limit=limit)
        pending = PendingRun(store=self._store, row=row, records=records, note=old.note)
        cursor = await self._deliver_or_skip(pending, old)
        # The delivery has happened. Shielded, so that a shutdown at this moment does not lose
        # the cursor and repeat the delivery after the restart.
        with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_WRITE_TIMEOUT_S):
            await self._cursors.advance_cursor(self._follower.name, cursor)
        if run in self._working_since:
            self._working_since[run] = anyio.current_time()
        if (later := self._retries.pop(run, None)) is not None:
            name, attempts = self._follower.name, later.attempts
            log.info("%s: run %s delivered after %d failed attempts", name, run, attempts)
        return True

    def _is_due(self, run: RunId, phase: Phase) -> bool:
        """Tell whether entries of `run` are to be delivered now, by its phase."""
        if phase in RESTING_PHASES:
            self._working_since.pop(run, None)
            return True
        if self._working_interval_s is None:
            return False
        now = anyio.current_time()
        return now - self._working_since.setdefault(run, now) >= self._working_interval_s

    async def _deliver_or_skip(
        self, pending: PendingRun, cursor: FollowerCursor
    ) -> FollowerCursor:
        """Deliver one item and return the new cursor; skip the item after too many attempts."""
        try:
            return await self._follower.deliver(pending)
        except RetryLater as later:
            schedule = self._retries.get(pending.run)
            if schedule is None or schedule.attempts + 1 < self._follower.attempts:
                raise
            log.error("%s: gave up on run %s: %s", self._follower.name, pending.run, later)  # noqa: TRY400 - the text has the reason
            return FollowerCursor(run=pending.run, seq=later.seq, note=cursor.note)

    def _schedule_retry(self, run: RunId, reason: str, seconds: float = 0.0) -> None:
        before = self._retries.get(run)
        attempts = 1 + (0 if before is None else before.attempts)
        wait = compute_backoff_s(
            attempts,
            first_s=RETRY_FIRST_DELAY_S,
            longest_s=RETRY_MAX_DELAY_S,
            chance=self._random(),
        )
        # The receiver may ask for a longer delay, but not for more than the longest one.
        due = anyio.current_time() + max(wait, min(seconds, RETRY_MAX_DELAY_S))
        if before is not None or len(self._retries) < RETRY_SCHEDULES_MAX:
            self._retries[run] = _RetrySchedule(attempts=attempts, due=due)
        level = logging.WARNING if attempts == 1 else logging.DEBUG
        text = "%s: delivery of run %s is retried later: %s"
        log.log(level, text, self._follower.name, run, reason)


class _RetrySchedule(Struct, frozen=True, kw_only=True):
    """The retry schedule of one run."""

    attempts: int  # failed attempts so far
    due: float  # time of the next attempt, by AnyIO's clock


class DeliveryQueue(Struct, frozen=True, kw_only=True):
    """A delivery queue: its runs, waiting or in progress, and its concurrency limit."""

    slots: anyio.Semaphore
    runs: set[RunId] = field(default_factory=set)
