"""The SQLite writer: every write of this process goes through one connection.

**Groups.** Each event loop has a `GroupCommit`, see there. A task that writes several times in
succession without a competitor commits alone, up to `SOLO_COMMITS_MAX` times: no other task
would join its group, and the committer would only cost time.

**Inline or in the thread.** A hop to a thread and back costs about as much as a commit on a
good disk, and under a busy event loop the thread waits milliseconds for the interpreter lock.
So a group is committed inline, in the event loop's own thread, while that is fast. Commits in
succession that took longer than `INLINE_COMMIT_MAX_S` each, and `SLOW_COMMITS_MAX` times as
long together, send the next groups to the writer thread (a *detour*). The detour doubles each
time the following inline commit is slow again. A single commit may be slow because another
process used the disk or the core; the thread would not have made it faster. Waiting for
another process's lock is always left to the thread: inline commits run with a busy timeout of
zero and fall back to the thread when the file is locked. Checkpoints run in the thread, too.

**Atomicity.** A request that raises before its first change was refused; the rest of its group
is committed without it. A request that raises after its first change is a `PartialWrite`: the
whole transaction is rolled back, and each request of the group is then committed alone.
"""

import os
import sys
from asyncio import Task, current_task, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Final, Generic, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import apsw
from anyio.lowlevel import checkpoint_if_cancelled

from midrun.errors import StoreClosed
from midrun.stores.cross_thread import Loop, Waiter, make_waiter, may_be_cancelled, wake_waiters
from midrun.stores.group_commit import (
    GROUP_MAX_BYTES,
    Failure,
    GroupCommit,
    PendingWrite,
    fail_requests,
)
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import (
    FILE_ERRORS,
    FileIdentity,
    explain_failure,
    translate_error,
)
from midrun.stores.sqlite.row_cache import RowCache
from midrun.stores.watchers import Watchers

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

SOLO_COMMITS_MAX: Final = 16
"""The most commits in succession that one task makes without opening a group."""

INLINE_COMMIT_MAX_S: Final = 0.004
"""The longest inline commit that is still fast, in seconds.

A commit through the thread takes about this long when the loop is busy, because both threads
share the interpreter lock. Above it the thread is the cheaper way.
"""

SLOW_COMMITS_MAX: Final = 3
"""Slow commits of that duration before groups go to the thread; one that is longer counts for
several."""

DETOUR_MIN_GROUPS: Final = 8
"""Groups that go to the thread after slow inline commits."""

DETOUR_MAX_GROUPS: Final = 4096
"""The detour doubles with each slow inline commit, up to this many groups."""

CHECKPOINT_PAGES: Final = 1000
"""A checkpoint is due after this many pages were written: SQLite's own default."""

COMMITS_PER_PAGE_COUNT: Final = 4
"""The number of written pages is read once in this many commits."""

FRAME_HEADER_BYTES: Final = 24
"""Size of the header that precedes each page in the write-ahead log."""

GROWTH_FIRST_PAGES: Final = 80
"""After this many pages the log is grown in advance for the first time.

A process that writes less than this is a short command and would not profit. To create a file
takes half of them.
"""


class WriterTask(Enum):
    """Work of the writer thread besides commits."""

    CHECKPOINT = auto()
    GROW_WAL = auto()
    STOP = auto()


class PartialWrite(Exception):
    """A request failed after its first change: its transaction must not be committed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class SqliteWrite(PendingWrite[T_co], Generic[T_co], eq=False, kw_only=True):
    """An operation on its way to the file. `inline=False` sends it to the writer thread."""

    operation: Callable[[RowCache], T_co]
    inline: bool

    def run_operation(self, rows: RowCache) -> T_co | Failure:
        """Carry out the operation in the open transaction; return its outcome.

        A refusal is an outcome of this request. An error of the file is raised: it concerns the
        whole transaction.

        Raises:
            PartialWrite: the operation failed after its first change.
        """
        before = rows.db.total_changes()
        try:
            return self.operation(rows)
        except FILE_ERRORS:
            raise
        except Exception as failure:
            # `total_changes` counts every row that this connection has changed. Equal counts
            # prove that the operation raised before its first write, so the transaction can go
            # on.
            if rows.db.total_changes() != before:
                raise PartialWrite(failure) from failure
            return Failure(failure)


WriteGroup: TypeAlias = list[SqliteWrite[object]]
"""Requests that are committed in one transaction."""


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
        # Only the tasks of an event loop use its `GroupCommit`, so it needs no lock.
        self._groups_by_loop: dict[Loop, GroupCommit[SqliteWrite[object]]] = {}
        self._connection_lock = Lock()  # held while a thread uses the connection
        # Orders `close` against handing over. A group put on the queue after STOP would never
        # be answered, so `_closed` is read and the queue is filled under one lock.
        self._handoff_lock = Lock()
        self._closed = False
        self._queue: SimpleQueue[tuple[WriteGroup, Waiter] | WriterTask] = SimpleQueue()
        self._detours_left = 0
        self._next_detour = DETOUR_MIN_GROUPS
        self._slow_s = 0.0  # duration of the slow inline commits since the last fast one
        self._commit_count = 0
        self._waits_for_locks = True  # the connection was opened with a busy timeout
        self._pages_at_checkpoint = 0  # pages written when the last checkpoint was queued
        self._pages_at_growth = GROWTH_FIRST_PAGES  # pages after which the log is grown next
        self._filler_pages = 0  # pages written only to grow the log
        self._last_task: Task[object] | None = None  # the task that wrote last
        self._solo_commits = 0
        # A checkpoint can take many milliseconds. It must not hit a commit in the event loop.
        db.wal_autocheckpoint(0)
        self._thread = Thread(target=self._run_thread, name="midrun-writer", daemon=True)
        self._thread.start()

    async def write(self, operation: Callable[[RowCache], T], *, inline: bool = True) -> T:
        """Return the result of `operation` once it is committed.

        `inline=False` is for a large write: it is a group of its own and goes to the writer
        thread, whatever the last commits cost.
        """
        loop = get_running_loop()
        task = current_task(loop)
        if may_be_cancelled(task):
            await checkpoint_if_cancelled()
        request = SqliteWrite(operation=operation, inline=inline)
        groups = self._groups_by_loop.get(loop) or self._add_loop(loop)
        # A size beyond the limit of a group makes `GroupCommit` put the request into a group of
        # its own, so that nothing small waits for it in one transaction.
        if not inline:
            request.size_bytes = GROUP_MAX_BYTES + 1
        elif groups.committer is None:
            if task is self._last_task and self._solo_commits < SOLO_COMMITS_MAX:
                # No await from the check to the commit: no other task of this loop can write in
                # between.
                self._solo_commits += 1
                if self._commit_inline([request]):
                    return request.get_result()
                request.inline = False
            else:
                # Another task wrote in between, or the allowance is used up. The caller opens a
                # group, so that tasks which wait for their turn of the loop can join.
                self._last_task, self._solo_commits = task, 0
        await groups.submit(request)
        return request.get_result()

    def _add_loop(self, loop: Loop) -> GroupCommit[SqliteWrite[object]]:
        # Tests and scripts run one event loop after the other, and no code of the store runs
        # when a loop ends.
        for other in [known for known in self._groups_by_loop if known.is_closed()]:
            del self._groups_by_loop[other]
        groups = GroupCommit(str(self._path), self._commit_group)
        self._groups_by_loop[loop] = groups
        return groups

    async def close(self) -> None:
        """Commit every request of this event loop, then close the connection.

        The requests of other event loops that the thread does not have yet are refused.
        """
        with anyio.CancelScope(shield=True):
            if (groups := self._groups_by_loop.get(get_running_loop())) is not None:
                await groups.close()
            with self._handoff_lock:
                if self._closed:
                    return
                self._closed = True
                self._queue.put(WriterTask.STOP)
            await anyio.to_thread.run_sync(self._thread.join)
        with self._connection_lock:
            self._db.close()

    async def _commit_group(self, group: WriteGroup) -> None:
        """Commit `group` inline if that is likely fast; else in the thread."""
        if len(group) > 1:
            # Several tasks write at the same time: none of them must commit alone next.
            self._last_task = None
        # Only the first request can be one for the thread. A large one is a group of its own,
        # and one that was tried alone before is handed in while no other is pending.
        if group[0].inline and self._commit_inline(group):
            return
        waiter = make_waiter()
        with self._handoff_lock:
            if self._closed:
                raise StoreClosed(str(self._path))
            self._queue.put((group, waiter))
        await waiter

    def _commit_inline(self, group: WriteGroup) -> bool:
        """Commit `group` in this thread; return False to leave it to the writer thread."""
        if self._detours_left:
            self._detours_left -= 1
            return False
        # An inline commit must not overtake groups that already wait for the thread, and it
        # must never block the event loop: the lock is only tried.
        if not self._queue.empty() or not self._connection_lock.acquire(blocking=False):
            return False
        try:
            return not self._closed and self._commit_transaction(group, wait=False)
        finally:
            self._connection_lock.release()

    def _run_thread(self) -> None:
        """Run the writer thread: take a queued item, carry it out, answer it."""
        while (item := self._queue.get()) is not WriterTask.STOP:
            with self._connection_lock:
                if isinstance(item, WriterTask):
                    self._run_task(item)
                    continue
                group, waiter = item
                try:
                    self._commit_transaction(group, wait=True)
                except BaseException as error:  # noqa: BLE001 - the thread must survive it
                    fail_requests(group, error, str(self._path))
            wake_waiters([waiter])

    def _commit_transaction(self, group: WriteGroup, *, wait: bool) -> bool:
        """Carry out `group` in one transaction; return False to leave it to the thread.

        When this returns True, every request of the group has an outcome. When it raises, none
        has one, and the commit may or may not have reached the disk.
        """
        rows = self._rows
        try:
            if wait != self._waits_for_locks:
                self._db.set_busy_timeout(self._busy_ms if wait else 0)
                self._waits_for_locks = wait
            # `BEGIN IMMEDIATE` takes the write lock first. So everything that the requests read
            # stays true until the commit.
            rows.begin()
            outcomes: list[object] = []
            for request in group:
                outcomes.append(request.run_operation(rows))  # noqa: PERF401 - groups are short
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
            return wait and self._fail_group(group, explain_failure(self._db, error), errno)
        except BaseException:  # KeyboardInterrupt, SystemExit or a bug
            rows.roll_back()
            raise
        for request, outcome in zip(group, outcomes, strict=True):
            request.outcome = outcome
        # Only inline commits are measured. One in the thread does not block the event loop.
        if not wait:
            commit_s = self._timer() - started
            if self._slow_s or commit_s > INLINE_COMMIT_MAX_S:
                self._plan_detour(commit_s)
        self._watchers.notify(rows.changes, delayed=True)
        self._commit_count += 1
        if self._commit_count % COMMITS_PER_PAGE_COUNT == 0:
            self._maintain_log()
        return True

    def _plan_detour(self, commit_s: float) -> None:
        """Send the next groups to the thread if inline commits have become slow."""
        if commit_s <= INLINE_COMMIT_MAX_S:
            self._slow_s, self._next_detour = 0.0, DETOUR_MIN_GROUPS
            return
        self._slow_s += commit_s
        if self._slow_s >= SLOW_COMMITS_MAX * INLINE_COMMIT_MAX_S:
            self._detours_left = self._next_detour
            self._next_detour = min(self._next_detour * 2, DETOUR_MAX_GROUPS)

    def _fail_group(self, group: WriteGroup, error: Exception, errno: int) -> bool:
        if len(group) > 1 and not isinstance(error, apsw.BusyError):
            # One request may be too large for the disk, or may have raised after its first
            # change. Committed one by one, the others succeed. A lock is no request's fault:
            # then all fail at once, or each would wait the whole busy timeout.
            for request in group:
                self._commit_transaction([request], wait=True)
            return True
        failure = (
            error.cause
            if isinstance(error, PartialWrite)
            else translate_error(error, self._path, self._busy_ms, errno=errno)
        )
        for request in group:
            request.outcome = Failure(failure)
        return True

    def _maintain_log(self) -> None:
        """Queue a checkpoint, or growth of the log, when it is due."""
        pages = self._count_pages()
        if pages >= self._pages_at_growth:
            # The log doubles each time, until it is as long as it gets between checkpoints. So
            # growing it never writes more than the commits have written.
            self._pages_at_growth = 2 * pages if 2 * pages < CHECKPOINT_PAGES else sys.maxsize
            self._queue.put(WriterTask.GROW_WAL)
        if pages - self._pages_at_checkpoint >= CHECKPOINT_PAGES:
            self._pages_at_checkpoint = pages
            self._queue.put(WriterTask.CHECKPOINT)

    def _count_pages(self) -> int:
        """Return the pages that this connection has committed since it was opened.

        This is a cheap measure of how far the log has grown.
        """
        pages, _ = self._db.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)
        return pages - self._filler_pages

    def _run_task(self, task: WriterTask) -> None:
        # Both tasks are optional. A checkpoint that fails is queued again later; a log that was
        # not grown is only slower.
        with suppress(*FILE_ERRORS, OSError):
            if task is WriterTask.CHECKPOINT:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                self._grow_wal()

    def _grow_wal(self) -> None:
        """Double the file of the write-ahead log, up to its length between checkpoints.

        While the file grows, each fsync also has to write the file's new length, and a commit
        costs nearly twice as much. To grow it at once, a transaction writes a large blob with a
        tiny page cache, so that SQLite spills the pages into the log. Then it is rolled back:
        the pages are invisible and the file keeps its length.
        """
        page_bytes = self._db.pragma("page_size") + FRAME_HEADER_BYTES
        pages = self._count_pages()
        length = min(2 * pages, CHECKPOINT_PAGES)
        disk = os.statvfs(self._path)
        if disk.f_bavail * disk.f_frsize < 16 * CHECKPOINT_PAGES * page_bytes:
            return  # a slow log is better than a full disk
        if Path(f"{self._path.resolve()}-wal").stat().st_size >= length * page_bytes:
            return  # an earlier writer has left the log long enough
        # The size is restored below, whatever happens: with the small cache every later
        # transaction would spill its pages into the log.
        size = self._db.execute(queries.CACHE_SIZE).get
        self._db.execute(queries.SMALL_CACHE)
        try:
            self._rows.begin()
            self._db.execute(queries.CREATE_FILLER)
            self._db.execute(queries.INSERT_FILLER, ((length - pages) * page_bytes,))
        finally:
            self._rows.roll_back()
            self._db.pragma("cache_size", size)
            self._filler_pages += self._count_pages() - pages
