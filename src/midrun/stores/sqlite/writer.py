"""The writer: one connection through which everything this process writes goes, in groups.

**Groups.** A commit costs an fsync whether it holds one append or two hundred. The first
writer of a loop's turn leads: it lets every task that is ready hand in its request, then
carries all of them out in one transaction and answers each after the commit. A task that was
also the last to write goes ahead alone instead, up to `ROW_MAX` times in a row: there is
nobody to wait for.

**Inline or by thread.** A hop to a thread and back costs about as much as a commit on a good
disk, and under a busy loop the thread waits milliseconds for the interpreter lock. So a group
is committed right here, in the event loop's thread, as long as that is quick: it blocks the
loop no longer than any other callback would. A commit that took longer than `QUICK_S` sends the
next ones to the thread, for twice as long every time it happens again. Waiting for the lock of
another process is always left to the thread, and so are checkpoints; while the thread is busy
with either, a group goes on gathering instead of queueing up behind it.

**Nothing by halves.** A request that raises before it has written anything was refused, and
its group is committed without it. One that raises later takes its group back with it; then each
of them is carried out alone.

**Cancellation.** A request that was handed in is carried out, whatever becomes of its waiter.
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
from midrun.stores.cross_thread import Loop, Waiter, new_waiter, wake
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import DAMAGE, Place, meaning_of
from midrun.stores.sqlite.operations import Group, Request, Torn
from midrun.stores.sqlite.row_cache import Standings
from midrun.stores.watchers import Watchers

T = TypeVar("T")

GROUP_MAX: Final = 256
ROW_MAX: Final = 8
QUICK_S: Final = 0.004
"""A commit by the thread takes about that long when the loop is busy: they share one lock."""

DETOUR: Final = 8
DETOUR_MAX: Final = 4096

PAGES: Final = 1000
"""A checkpoint is due when the write-ahead log has this many pages: SQLite's own default."""

LOOK: Final = 4
"""How much was written is asked for once in so many commits."""

FRAME: Final = 4096 + 24
WARM: Final = 16
"""After so many commits a process is not a passing command: the log is grown to full size."""


class Chore(Enum):
    """What the thread does besides committing."""

    CHECKPOINT = auto()
    GROW_LOG = auto()
    STOP = auto()


class Writer:
    """Commits requests in groups; see the module for how."""

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
        self._standings = Standings(db)
        self._path = path
        self._place = Place(path)
        self._busy_ms = busy_ms
        self._watchers = watchers
        self._timer = timer
        self._gathering: dict[Loop, Group] = {}
        self._turn = Lock()  # whoever has it may use the connection
        self._busy = False  # whether the thread has it, or is about to
        self._held_up: list[Waiter] = []  # leaders that wait until it has not
        self._door = Lock()  # closing, and handing over to the thread, exclude one another
        self._closed = False
        self._queue: SimpleQueue[Group | Chore] = SimpleQueue()
        self._detours_left = 0
        self._detour = DETOUR
        self._commits = 0
        self._waits = True  # whether the connection waits for locks, as it was opened
        self._pages = 0  # written at the last checkpoint
        self._last_task = 0
        self._in_a_row = 0
        db.wal_autocheckpoint(0)  # checkpoints are the thread's, not some commit's
        self._thread = Thread(target=self._serve, name="midrun-writer", daemon=True)
        self._thread.start()

    async def write(self, work: Callable[[Standings], T], *, quick: bool = True) -> T:
        """Return what `work` returned, once it is committed.

        What is not `quick` is left to the thread.
        """
        await checkpoint_if_cancelled()
        request = Request(work)
        loop = get_running_loop()
        gathering = self._gathering.get(loop)
        if not quick:
            self._hand_over([request])
        elif gathering is not None and len(gathering) < GROUP_MAX:
            request.waiter = loop.create_future()
            gathering.append(request)
        elif gathering is None and self._goes_ahead(loop):
            self._hand_in([request])
        else:
            await self._lead(loop, request)
        if request.waiter is not None:
            await request.waiter
        return request.result()

    def _goes_ahead(self, loop: Loop) -> bool:
        """Tell whether the caller's task need not wait for others: it was the last to write."""
        task = id(current_task(loop))
        if task == self._last_task and self._in_a_row < ROW_MAX:
            self._in_a_row += 1
            return True
        self._last_task, self._in_a_row = task, 0
        return False

    async def _lead(self, loop: Loop, request: Request[T]) -> None:
        """Let the others of this turn come in, then see to it that all are carried out."""
        group: Group = [request]
        self._gathering[loop] = group
        try:
            await checkpoint()
            if not self._detours_left:
                await self._thread_done()
        finally:  # also when it is cancelled: the others rely on it
            if self._gathering.get(loop) is group:
                del self._gathering[loop]
            if len(group) > 1:
                self._last_task = 0  # in a crowd the leader does not go ahead alone next time
            self._hand_in(group)

    async def _thread_done(self) -> None:
        """Wait until the thread has no need of the connection, if it has."""
        with self._door:
            if not self._busy:
                return
            waiter = new_waiter()
            self._held_up.append(waiter)
        await waiter

    async def close(self) -> None:
        """Commit what was handed in, then close the connection."""
        with self._door:
            if self._closed:
                return
            self._closed = True
            self._queue.put(Chore.STOP)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._thread.join)
        with self._turn:
            self._db.close()

    def _hand_in(self, group: Group) -> None:
        """Commit here and now if that is likely to be quick; else leave it to the thread."""
        if self._detours_left:
            self._detours_left -= 1
        elif self._queue.empty() and self._turn.acquire(blocking=False):
            answered = True
            try:
                answered = not self._closed and self._commit(group, wait=False)
            finally:
                self._turn.release()
                if answered:
                    _answer(group)
            if answered:
                return
        self._hand_over(group)

    def _judge(self, took_s: float) -> None:
        """Decide from what a commit took in the loop's thread whether the next go there."""
        if took_s <= QUICK_S:
            self._detour = DETOUR
            return
        self._detours_left = self._detour
        self._detour = min(self._detour * 2, DETOUR_MAX)

    def _hand_over(self, group: Group) -> None:
        for request in group:
            request.waiter = request.waiter or new_waiter()  # here, in the loop that it is for
        with self._door:
            if not self._closed:
                self._queue.put(group)
                return
        for request in group:
            request.failure = StoreClosed(str(self._path))
        _answer(group)

    def _serve(self) -> None:
        """Be the thread: take what has gathered, commit it, answer."""
        while True:
            item = self._queue.get()
            if item is Chore.STOP:
                return
            self._busy = True
            try:
                self._see_to(item)
            finally:
                with self._door:
                    self._busy = False
                    held_up, self._held_up = self._held_up, []
                wake(held_up)

    def _see_to(self, item: Group | Chore) -> None:
        with self._turn:
            if isinstance(item, Chore):
                self._do(item)
                return
            chores = self._gather(item)
            with suppress(Exception):  # they have been told; the next group may fare better
                self._commit(item, wait=True)
        _answer(item)
        for chore in chores:
            self._queue.put(chore)

    def _gather(self, group: Group) -> list[Chore]:
        """Add what else has been handed over; return the chores that were in between."""
        chores: list[Chore] = []
        while len(group) < GROUP_MAX:
            try:
                item = self._queue.get_nowait()
            except Empty:
                break
            if isinstance(item, Chore):
                chores.append(item)
            else:
                group += item
        return chores

    def _commit(self, group: Group, *, wait: bool) -> bool:
        """Carry out and commit `group`; False if that must be left to those who can wait.

        Whatever happens to this thread, each of them has an outcome then.
        """
        at = self._standings
        try:
            if wait != self._waits:
                self._db.set_busy_timeout(self._busy_ms if wait else 0)
                self._waits = wait
            at.begin()
            for request in group:
                request.attempt(at)
            self._place.check()
            started = self._timer()
            at.commit()
        except (*DAMAGE, Torn) as error:
            errno = self._db.system_errno
            at.abandon()
            return wait and self._fail(group, error, errno)
        except BaseException as error:
            problem = f"{type(error).__name__} interrupted a commit; read what became of it"
            for request in group:
                request.failure = StoreUnreachable(str(self._path), problem)
            at.abandon()
            raise
        if not wait:
            self._judge(self._timer() - started)
        self._watchers.tell(at.news, later=True)
        self._count()
        return True

    def _fail(self, group: Group, error: Exception, errno: int) -> bool:
        if len(group) > 1 and not isinstance(error, apsw.BusyError):
            # One of them may be what the disk has no room for: each gets a chance of its own.
            for request in group:
                self._commit([request], wait=True)
            return True
        failure = (
            error.cause
            if isinstance(error, Torn)
            else meaning_of(error, self._path, self._busy_ms, errno=errno)
        )
        for request in group:
            request.failure = failure
        return True

    def _count(self) -> None:
        self._commits += 1
        if self._commits == WARM:
            self._queue.put(Chore.GROW_LOG)
        if self._commits % LOOK:
            return
        pages, _ = self._db.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)
        if pages - self._pages >= PAGES:
            self._pages = pages
            self._queue.put(Chore.CHECKPOINT)

    def _do(self, chore: Chore) -> None:
        with suppress(*DAMAGE, OSError):  # either can be done another time, or never
            if chore is Chore.CHECKPOINT:
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            else:
                self._grow_log()

    def _grow_log(self) -> None:
        """Have the write-ahead log's file grow to the size that it will have anyway.

        While the file still grows, every fsync also has to write the file's new length: a
        commit costs nearly twice as much. What does not fit into a small cache is spilled into
        the log; taken back, it leaves nothing but the room.
        """
        room = os.statvfs(self._path)
        if room.f_bavail * room.f_frsize < 16 * PAGES * FRAME:
            return  # better slow than full
        size = self._db.execute(queries.CACHE_SIZE).get
        self._db.execute(queries.SMALL_CACHE)
        try:
            self._standings.begin()
            self._db.execute(queries.MAKE_ROOM)
            self._db.execute(queries.FILL_ROOM, (PAGES * FRAME,))
        finally:
            self._standings.abandon()
            self._db.pragma("cache_size", size)


def _answer(group: Group) -> None:
    """Wake those who wait for a request of `group`."""
    if waiters := [request.waiter for request in group if request.waiter is not None]:
        wake(waiters)
