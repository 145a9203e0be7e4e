"""Group commit: every write of this process goes through one SQLite connection.

**Why groups.** A commit costs one fsync whether it holds one append or two hundred. So tasks
that write at the same time share a transaction. The first task that calls `write` in one turn
of its event loop becomes the *leader*: it opens a group and yields once. Every other ready task
finds the open group and adds its request to it. The leader then commits the whole group in one
transaction, and each request gets its own result after the commit. A task that writes several
times in succession without a competitor commits alone, up to `SOLO_COMMITS_MAX` times, because
no other task would join its group.

**Inline or in the thread.** A hop to a thread and back costs about as much as a commit on a
good disk, and under a busy event loop the thread waits milliseconds for the interpreter lock.
So a group is committed inline, in the event loop's own thread, while that is fast. A commit
that took longer than `INLINE_COMMIT_MAX_S` sends the next groups to the writer thread (a
*detour*); the detour doubles each time the following inline commit is slow again. Waiting for
another process's lock is always left to the thread: inline commits run with a busy timeout of
zero and fall back to the thread when the file is locked. Checkpoints run in the thread, too.
While the thread uses the connection, a leader keeps its group open, so that more requests join
it instead of queueing behind the thread.

**Atomicity.** A request that raises before its first change was refused; the rest of its group
is committed without it. A request that raises after its first change is a `PartialWrite`: the
whole transaction is rolled back, and each request of the group is then committed alone.

**Cancellation.** A request that was handed in is carried out even if the task that waits for it
is cancelled. That task cannot know the outcome; it has to read the journal.
"""

import os
from asyncio import current_task, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import apsw
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from midrun.errors import StoreClosed, StoreUnreachable
from midrun.stores.cross_thread import Loop, Waiter, new_waiter, wake_waiters
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import FILE_ERRORS, FileIdentity, translate_error
from midrun.stores.sqlite.operations import PartialWrite, PendingWrite, WriteGroup
from midrun.stores.sqlite.row_cache import RowCache
from midrun.stores.watchers import Watchers

T = TypeVar("T")

GROUP_MAX_REQUESTS: Final = 256
"""A group of this many requests takes no more. The next request opens a new group."""

SOLO_COMMITS_MAX: Final = 8
"""The most commits in succession that one task makes without opening a group."""

INLINE_COMMIT_MAX_S: Final = 0.004
"""The longest inline commit that is still fast, in seconds.

A commit through the thread takes about this long when the loop is busy, because both threads
share the interpreter lock. Above it the thread is the cheaper way.
"""

DETOUR_MIN_GROUPS: Final = 8
"""Groups that go to the thread after the first slow inline commit."""

DETOUR_MAX_GROUPS: Final = 4096
"""The detour doubles with each slow inline commit, up to this many groups."""

CHECKPOINT_PAGES: Final = 1000
"""A checkpoint is due after this many pages were written: SQLite's own default."""

COMMITS_PER_PAGE_COUNT: Final = 4
"""The number of written pages is read once in this many commits."""

WAL_FRAME_BYTES: Final = 4096 + 24
"""Size of one page in the write-ahead log: the page and its frame header."""

WARMUP_COMMITS: Final = 16
"""After this many commits the log is grown to full size.

A process that writes less than this is a short command and would not profit.
"""


class WriterTask(Enum):
    """Work of the writer thread besides commits."""

    CHECKPOINT = auto()
    GROW_WAL = auto()
    STOP = auto()


class SqliteWriter:
    """Commit requests in groups; the module docstring explains the mechanism."""

    def __init__(
        self,
        db: apsw.Connection,
        path: Path,
        *,
        busy_ms: int,
        watchers: Watchers,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self._db = db
        self._rows = RowCache(db)
        self._path = path
        self._file_identity = FileIdentity(path)
        self._busy_ms = busy_ms
        self._watchers = watchers
        self._timer = timer
        # The groups that still accept requests, one per event loop. Only tasks of that loop
        # read or change its entry, so it needs no lock.
        self._open_groups: dict[Loop, WriteGroup] = {}
        self._connection_lock = Lock()  # held while a thread uses the connection
        # `_thread_busy` is a hint, not a lock: the writer thread sets it when it takes an item.
        # A leader that misses the moment fails to get `_connection_lock` and queues its group
        # instead.
        self._thread_busy = False
        self._waiting_leaders: list[Waiter] = []  # leaders that wait for the thread to finish
        # Orders `close` against handing over. A group put on the queue after STOP would never
        # be answered, so `_closed` is read and the queue is filled under one lock.
        self._handoff_lock = Lock()
        self._closed = False
        self._queue: SimpleQueue[WriteGroup | WriterTask] = SimpleQueue()
        self._detours_left = 0
        self._next_detour = DETOUR_MIN_GROUPS
        self._commit_count = 0
        self._waits_for_locks = True  # the connection was opened with a busy timeout
        self._pages_at_checkpoint = 0  # pages written when the last checkpoint was queued
        self._last_task_id = 0
        self._solo_commits = 0
        # A checkpoint can take many milliseconds. It must not hit a commit in the event loop.
        db.wal_autocheckpoint(0)
        self._thread = Thread(target=self._run_thread, name="midrun-writer", daemon=True)
        self._thread.start()

    async def write(self, operation: Callable[[RowCache], T], *, inline: bool = True) -> T:
        """Return the result of `operation` once it is committed.

        `inline=False` sends the request to the writer thread, whatever the last commits cost.
        """
        await checkpoint_if_cancelled()
        request = PendingWrite(operation)
        loop = get_running_loop()
        # From here to the end of the branches there is no await before the request is part of a
        # group or of the queue. So a cancellation arrives either before it was handed in or
        # after, never between.
        open_group = self._open_groups.get(loop)
        if not inline:
            self._queue_group([request])
        elif open_group is not None and len(open_group) < GROUP_MAX_REQUESTS:
            request.waiter = loop.create_future()
            open_group.append(request)
        elif open_group is None and self._may_commit_alone(loop):
            self._submit_group([request])
        else:
            # There is no open group, or it is full. The new group takes its place; the leader
            # of the full one still commits that.
            await self._lead_group(loop, request)
        # The leader's own request has no waiter when it was committed inline: then its outcome
        # is already set.
        if request.waiter is not None:
            await request.waiter
        return request.get_result()

    def _may_commit_alone(self, loop: Loop) -> bool:
        """Tell whether the caller's task wrote last and may commit without a group."""
        task = id(current_task(loop))
        if task == self._last_task_id and self._solo_commits < SOLO_COMMITS_MAX:
            self._solo_commits += 1
            return True
        # Another task wrote in between, or the allowance is used up. The caller opens a group,
        # so that tasks which wait for their turn of the loop can join.
        self._last_task_id, self._solo_commits = task, 0
        return False

    async def _lead_group(self, loop: Loop, request: PendingWrite[T]) -> None:
        """Open a group, let the other ready tasks join it, then submit it."""
        group: WriteGroup = [request]
        self._open_groups[loop] = group
        try:
            await checkpoint()  # one turn of the loop: every ready task can join
            # On a detour the group goes to the thread's queue anyway. There is no use in
            # waiting for the thread first.
            if not self._detours_left:
                await self._wait_for_thread()
        finally:
            # This runs also when the leader is cancelled: the tasks that joined the group
            # depend on its commit. Another leader may have replaced a full group meanwhile.
            if self._open_groups.get(loop) is group:
                del self._open_groups[loop]
            if len(group) > 1:
                # Other tasks write at the same time: the leader must not commit alone next.
                self._last_task_id = 0
            self._submit_group(group)

    async def _wait_for_thread(self) -> None:
        """Wait until the writer thread does not use the connection."""
        with self._handoff_lock:
            if not self._thread_busy:
                return
            waiter = new_waiter()
            self._waiting_leaders.append(waiter)
        await waiter

    async def close(self) -> None:
        """Commit every request that was handed in, then close the connection."""
        with self._handoff_lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(WriterTask.STOP)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)
        with self._connection_lock:
            self._db.close()

    def _submit_group(self, group: WriteGroup) -> None:
        """Commit `group` inline if that is likely fast; else queue it."""
        if self._detours_left:
            self._detours_left -= 1
        # An inline commit must not overtake groups that already wait for the thread, and it
        # must never block the event loop: the lock is only tried.
        elif self._queue.empty() and self._connection_lock.acquire(blocking=False):
            # `True` covers the exceptions that `_commit_group` re-raises (KeyboardInterrupt,
            # say): it has set a failure on every request, and the waiters must be woken to see
            # it.
            answered = True
            try:
                answered = not self._closed and self._commit_group(group, wait=False)
            finally:
                self._connection_lock.release()
                if answered:
                    _wake_group(group)
            if answered:
                return
        self._queue_group(group)

    def _adapt_detour(self, took_s: float) -> None:
        """Send the next groups to the thread if an inline commit was slow."""
        if took_s <= INLINE_COMMIT_MAX_S:
            self._next_detour = DETOUR_MIN_GROUPS
            return
        self._detours_left = self._next_detour
        self._next_detour = min(self._next_detour * 2, DETOUR_MAX_GROUPS)

    def _queue_group(self, group: WriteGroup) -> None:
        for request in group:
            # A waiter belongs to one event loop. It is created here, in the loop of the task
            # that waits.
            request.waiter = request.waiter or new_waiter()
        with self._handoff_lock:
            if not self._closed:
                self._queue.put(group)
                return
        for request in group:
            request.failure = StoreClosed(str(self._path))
        _wake_group(group)

    def _run_thread(self) -> None:
        """Run the writer thread: take a queued item, carry it out, answer it."""
        while True:
            item = self._queue.get()
            if item is WriterTask.STOP:
                return
            self._thread_busy = True
            try:
                self._handle_item(item)
            finally:
                # Reset the flag and collect the waiting leaders under the lock under which
                # `_wait_for_thread` tests the flag and adds its waiter. Otherwise a leader
                # could wait for a wake-up that has already been sent.
                with self._handoff_lock:
                    self._thread_busy = False
                    leaders, self._waiting_leaders = self._waiting_leaders, []
                wake_waiters(leaders)

    def _handle_item(self, item: WriteGroup | WriterTask) -> None:
        with self._connection_lock:
            if isinstance(item, WriterTask):
                self._run_task(item)
                return
            tasks = self._take_queued(item)
            # `_commit_group` has stored the failure in each request. The thread must survive
            # it.
            with suppress(Exception):
                self._commit_group(item, wait=True)
        _wake_group(item)
        # Maintenance that was queued between two groups comes after both, and so does STOP.
        for chore in tasks:
            self._queue.put(chore)

    def _take_queued(self, group: WriteGroup) -> list[WriterTask]:
        """Add the groups that wait in the queue; return the maintenance tasks between them."""
        tasks: list[WriterTask] = []
        while len(group) < GROUP_MAX_REQUESTS:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if isinstance(item, WriterTask):
                tasks.append(item)
            else:
                group += item
        return tasks

    def _commit_group(self, group: WriteGroup, *, wait: bool) -> bool:
        """Carry out `group` in one transaction; return False to leave it to the thread.

        When this returns True or raises, every request of the group has an outcome.
        """
        rows = self._rows
        try:
            if wait != self._waits_for_locks:
                self._db.set_busy_timeout(self._busy_ms if wait else 0)
                self._waits_for_locks = wait
            # `BEGIN IMMEDIATE` takes the write lock first. So everything that the requests read
            # stays true until the commit.
            rows.begin()
            for request in group:
                request.run_operation(rows)
            # Before the commit, not after it: entries committed to a file that lost its name
            # would be acknowledged and then be gone with this process.
            self._file_identity.check_unchanged()
            started = self._timer()
            rows.commit()
        except (*FILE_ERRORS, PartialWrite) as error:
            # The rollback below overwrites the connection's errno, so it is read first. Inline,
            # any failure is repeated by the thread, which can wait for locks and can split the
            # group.
            errno = self._db.system_errno
            rows.roll_back()
            return wait and self._fail_group(group, error, errno)
        except BaseException as error:
            # KeyboardInterrupt, SystemExit or a bug. The commit may or may not have reached the
            # disk.
            problem = (
                f"{type(error).__name__} interrupted a commit, which may have taken effect:"
                " read the run to find out"
            )
            for request in group:
                request.failure = StoreUnreachable(str(self._path), problem)
            rows.roll_back()
            raise
        # Only inline commits are measured. One in the thread does not block the event loop.
        if not wait:
            self._adapt_detour(self._timer() - started)
        self._watchers.notify(rows.changes, delayed=True)
        self._count_commit()
        return True

    def _fail_group(self, group: WriteGroup, error: Exception, errno: int) -> bool:
        if len(group) > 1 and not isinstance(error, apsw.BusyError):
            # One request may be too large for the disk, or may have raised after its first
            # change. Committed one by one, the others succeed. A lock is no request's fault:
            # then all fail at once, or each would wait the whole busy timeout.
            for request in group:
                self._commit_group([request], wait=True)
            return True
        failure = (
            error.cause
            if isinstance(error, PartialWrite)
            else translate_error(error, self._path, self._busy_ms, errno=errno)
        )
        for request in group:
            request.failure = failure
        return True

    def _count_commit(self) -> None:
        self._commit_count += 1
        if self._commit_count == WARMUP_COMMITS:
            self._queue.put(WriterTask.GROW_WAL)
        if self._commit_count % COMMITS_PER_PAGE_COUNT:
            return
        # The pages that this connection has written since it was opened: a cheap measure of how
        # far the log has grown.
        pages, _ = self._db.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)
        if pages - self._pages_at_checkpoint >= CHECKPOINT_PAGES:
            self._pages_at_checkpoint = pages
            self._queue.put(WriterTask.CHECKPOINT)

    def _run_task(self, task: WriterTask) -> None:
        # Both tasks are optional. A checkpoint that fails is queued again later; a log that was
        # not grown is only slower.
        with suppress(*FILE_ERRORS, OSError):
            if task is WriterTask.CHECKPOINT:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                self._grow_wal()

    def _grow_wal(self) -> None:
        """Grow the file of the write-ahead log to the size it will reach anyway.

        While the file grows, each fsync also has to write the file's new length, and a commit
        costs nearly twice as much. To grow it at once, a transaction writes a large blob with a
        tiny page cache, so that SQLite spills the pages into the log. Then it is rolled back:
        the pages are invisible and the file keeps its length.
        """
        disk = os.statvfs(self._path)
        if disk.f_bavail * disk.f_frsize < 16 * CHECKPOINT_PAGES * WAL_FRAME_BYTES:
            return  # a slow log is better than a full disk
        size = self._db.execute(queries.CACHE_SIZE).get
        self._db.execute(queries.SMALL_CACHE)
        try:
            self._rows.begin()
            self._db.execute(queries.CREATE_FILLER)
            self._db.execute(queries.INSERT_FILLER, (CHECKPOINT_PAGES * WAL_FRAME_BYTES,))
        finally:
            self._rows.roll_back()
            self._db.pragma("cache_size", size)


def _wake_group(group: WriteGroup) -> None:
    """Wake the tasks that wait for a request of `group`."""
    if waiters := [request.waiter for request in group if request.waiter is not None]:
        wake_waiters(waiters)
