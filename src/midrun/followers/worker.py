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
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct, field

from midrun.core.entries import Record
from midrun.core.ids import RunId, Seq
from midrun.core.retries import doubled
from midrun.core.values import RESTS
from midrun.driver.notifications import Bell
from midrun.errors import MidrunError, Misconfigured, RunNotFound, StoreError
from midrun.ports.environment import Outside
from midrun.ports.follower_cursors import Mark, Marking
from midrun.ports.store import Change, RunRow, Store
from midrun.runs.midrun import Midrun

PLACE: Final = timedelta(seconds=30)
"""Duration of the leadership: after this silence another process takes over."""

LOOK_S: Final = 10.0
"""Interval of full scans, which find changes that no notification reported.

Each scan also renews the leadership, so this must stay well below its duration."""

GAP_S: Final = 0.25
"""Minimum pause between two passes: a busy run changes thousands of times a minute."""

LEAVE_S: Final = 2.0
"""Time limit for the last writes to the store on shutdown."""

AT_ONCE: Final = 8
AGAIN_AT_ONCE: Final = 2
"""Number of concurrent deliveries: first attempts, and retries."""

MANY: Final = 256
"""Maximum number of runs in a delivery queue; further runs stay in the store."""

REMEMBERED: Final = 4096
"""Maximum number of runs with a retry schedule, about a megabyte of memory.

Further failing runs have no schedule: each full scan tries them again."""

FIRST_S: Final = 1.0
LONGEST_S: Final = 3600.0
"""First and longest delay between two attempts; each delay is twice the one before."""

log = logging.getLogger("midrun.followers")


class Later(Exception):
    """Raised by a follower to retry the delivery of the entry at `seq` later.

    `seconds` is the delay that the receiver asked for, such as its `Retry-After` header.
    """

    def __init__(self, why: str, seq: Seq, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.seq = seq
        self.seconds = seconds


class Followed(Struct, frozen=True, kw_only=True):
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

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Return a context that holds the follower's resources, such as connections."""
        ...

    async def tell(self, followed: Followed) -> Mark:
        """Deliver the first item of `pending` and return the cursor after it.

        The same item may be delivered again, even concurrently from another process, so each
        delivery must carry an id that does not change.

        Raises:
            RetryLater: the delivery failed and should be tried again.
        """
        ...


@asynccontextmanager
async def following(
    midrun: Midrun, *followers: Follower, outside: Outside | None = None
) -> AsyncIterator[None]:
    """Deliver the runs in the store of `midrun` to `followers` while the context is open.

    A follower that is new to the store gets only entries that are written from then on.

    Raises:
        Misconfigured: the store cannot keep cursors, or two followers have the same name.
    """
    if not isinstance(midrun.store, Marking):
        raise Misconfigured("followers", "this store cannot keep cursors; use another store")
    if len({follower.name for follower in followers}) < len(followers):
        raise Misconfigured("followers", "two have the same name; pass a different name=")
    async with AsyncExitStack() as stack:
        for follower in followers:
            await stack.enter_async_context(follower.opened())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        for follower in followers:
            worker = Trail(midrun.store, follower, outside or Outside())
            # `start` returns when the worker has tried to become leader. For a new follower,
            # that fixes the point from which entries are delivered: before the body runs.
            await tasks.start(worker.follow)
        yield


class Trail:
    """Delivers the runs of one store to one follower.

    One task, `run`, decides which runs are due. Each run in a queue has a delivery task of
    its own, which waits for a slot of that queue's semaphore. A run is in at most one queue, so
    its entries are delivered in order.
    """

    def __init__(self, store: Store, follower: Follower, outside: Outside) -> None:
        assert isinstance(store, Marking)
        self._store = store
        self._marks = store.marks()
        self._follower = follower
        self._chance = outside.chance
        self._holder = f"f_{outside.ids()}"
        self._bell = Bell()
        self._changed: set[RunId] = set()  # notified since the last pass
        self._later: dict[RunId, _Later] = {}  # failed, with the time of the next attempt
        self._first = _Lane(room=anyio.Semaphore(AT_ONCE))
        self._again = _Lane(room=anyio.Semaphore(AGAIN_AT_ONCE))
        self._next_look = 0.0
        self._attending = False

    async def follow(self, *, task_status: TaskStatus[None]) -> None:
        """Deliver until cancelled; report `started` once the starting point is fixed."""
        try:
            async with anyio.create_task_group() as tasks:
                # Subscribe before the first pass. A change between the two is then reported
                # by the subscription, and not missed until the next full scan.
                await tasks.start(self._hear)
                await self._attend()
                task_status.started()
                while True:
                    await self._look(tasks)
                    await self._bell.wait(self._pause())
                    await anyio.sleep(GAP_S)  # collect further changes into the same pass
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVE_S):
                await self._give_up_place()

    async def _hear(self, *, task_status: TaskStatus[None]) -> None:
        async with self._store.watch() as changes:
            task_status.started()
            async for change in changes:
                self._note(change)

    def _note(self, change: Change) -> None:
        if change.run and len(self._changed) < MANY:  # a full scan finds the rest
            self._changed.add(change.run)
            self._bell.ring()

    async def _attend(self) -> None:
        """Acquire or renew the leadership; only the leader delivers."""
        name = self._follower.name
        try:
            self._attending = await self._marks.attend(name, holder=self._holder, ttl=PLACE)
        except StoreError as error:
            self._attending = False
            log.warning("%s: deliveries are suspended: %s", name, error)

    async def _give_up_place(self) -> None:
        if self._attending:
            try:
                await self._marks.leave(self._follower.name, holder=self._holder)
            except StoreError:
                return  # the leadership expires

    # ── choosing runs ─────────────────────────────────────────────────────────────────────

    async def _look(self, tasks: TaskGroup) -> None:
        """Move due runs into the delivery queues, as far as they have room."""
        now = anyio.current_time()
        # Replaced, not cleared: notifications that arrive during the awaits below go into the
        # new set and are handled by the next pass.
        candidates = self._changed
        self._changed = set()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            await self._attend()
            candidates |= await self._behind()
        if not self._attending:
            return
        # A run that is being delivered may have grown after its task read the journal. It stays
        # in the set of changed runs, so that a pass after the end of that task looks again.
        still_queued = candidates & self._busy
        due = [run for run, later in self._later.items() if later.due <= now]
        due.sort(key=lambda run: self._later[run].due)
        overflow = self._take(
            tasks, self._first, [run for run in candidates if run not in self._later]
        )
        self._take(tasks, self._again, due)
        self._changed |= still_queued | set(overflow[:MANY])  # a full scan finds the rest

    def _take(self, tasks: TaskGroup, lane: "_Lane", found: Sequence[RunId]) -> Sequence[RunId]:
        """Start deliveries until the queue is full; return the runs that did not fit."""
        busy = self._busy
        ready = [run for run in found if run not in busy]
        fits = max(0, MANY - len(lane.runs))
        for run in ready[:fits]:
            lane.runs.add(run)
            tasks.start_soon(self._tell, run, lane)
        return ready[fits:]

    @property
    def _busy(self) -> set[RunId]:
        return self._first.runs | self._again.runs

    async def _behind(self) -> set[RunId]:
        if not self._attending:
            return set()
        try:
            # The store returns the runs that have waited longest first. Those that wait for a
            # retry or are in a queue come back in every scan; the limit leaves room for others.
            limit = MANY + len(self._later.keys() | self._busy)
            marks = await self._marks.behind(self._follower.name, limit=limit)
        except StoreError as error:
            log.warning("%s: cannot scan for undelivered runs: %s", self._follower.name, error)
            return set()
        if len(marks) == limit:
            self._next_look = 0.0  # there may be more: scan again in the next pass
        return {mark.run for mark in marks}

    def _pause(self) -> float:
        """Return the seconds until the next scan or retry is due."""
        if not self._attending:
            return max(0.0, self._next_look - anyio.current_time())
        busy, due = self._busy, self._next_look
        # While the retry queue is full, a due run cannot enter it: waking up for that run would
        # spin. The end of a delivery wakes the worker.
        if len(self._again.runs) < MANY:
            waiting = (at.due for run, at in self._later.items() if run not in busy)
            due = min((due, *waiting))
        return max(0.0, due - anyio.current_time())

    # ── delivering ────────────────────────────────────────────────────────────────────────

    async def _tell(self, run: RunId, lane: "_Lane") -> None:
        """Deliver all entries of one run in order; on failure, schedule a retry."""
        try:
            # Checked before a slot is taken: a run that went on needs none.
            if (await self._store.row(run)).head.phase in RESTS:
                async with lane.room:
                    while await self._tell_next(run):
                        pass
        except Later as later:
            self._put_off(run, str(later), later.seconds)
        except RunNotFound:
            self._later.pop(run, None)
        except MidrunError as error:  # such as a busy store or an unreadable journal
            self._put_off(run, str(error))
        except Exception as error:
            log.exception("%s: delivery of run %s failed", self._follower.name, run)
            self._put_off(run, type(error).__name__)
        else:
            self._later.pop(run, None)
        finally:
            lane.runs.discard(run)
            self._bell.ring()  # the queue has room, and a retry may be due

    async def _tell_next(self, run: RunId) -> bool:
        """Deliver one item and move the cursor; return False if none is left."""
        row = await self._store.row(run)
        mark = await self._marks.marked(self._follower.name, run)
        if row.head.phase not in RESTS or mark.seq >= row.seq:
            return False
        limit = row.seq - mark.seq
        records = await self._store.read(run, after=mark.seq, limit=limit)
        followed = Followed(store=self._store, row=row, records=records, note=mark.note)
        cursor = await self._told(followed, mark)
        # The delivery has happened. Shielded, so that a shutdown at this moment does not lose
        # the cursor and repeat the delivery after the restart.
        with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVE_S):
            await self._marks.mark(self._follower.name, cursor)
        if (later := self._later.pop(run, None)) is not None:
            name, attempts = self._follower.name, later.attempts
            log.info("%s: run %s delivered after %d failed attempts", name, run, attempts)
        return True

    async def _told(self, followed: Followed, mark: Mark) -> Mark:
        """Deliver one item and return the new cursor; skip the item after too many attempts."""
        try:
            return await self._follower.tell(followed)
        except Later as later:
            schedule = self._later.get(followed.run)
            if schedule is None or schedule.attempts + 1 < self._follower.attempts:
                raise
            log.error("%s: gave up on run %s: %s", *self._of(followed.run), later)  # noqa: TRY400 - the text has the reason
            return Mark(run=followed.run, seq=later.seq, note=mark.note)

    def _of(self, run: RunId) -> tuple[str, RunId]:
        return self._follower.name, run

    def _put_off(self, run: RunId, why: str, seconds: float = 0.0) -> None:
        before = self._later.get(run)
        attempts = 1 + (0 if before is None else before.attempts)
        wait = doubled(attempts, first=FIRST_S, longest=LONGEST_S, chance=self._chance())
        # The receiver may ask for a longer delay, but not for more than the longest one.
        due = anyio.current_time() + max(wait, min(seconds, LONGEST_S))
        if before is not None or len(self._later) < REMEMBERED:
            self._later[run] = _Later(attempts=attempts, due=due)
        level = logging.WARNING if attempts == 1 else logging.DEBUG
        log.log(level, "%s: delivery of run %s is retried later: %s", *self._of(run), why)


class _Later(Struct, frozen=True, kw_only=True):
    """The retry schedule of one run."""

    attempts: int  # failed attempts so far
    due: float  # time of the next attempt, by AnyIO's clock


class _Lane(Struct, frozen=True, kw_only=True):
    """A delivery queue: its runs, waiting or in progress, and its concurrency limit."""

    room: anyio.Semaphore
    runs: set[RunId] = field(default_factory=set)
