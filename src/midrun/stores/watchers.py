"""Report grown runs to the watches that are open in this process.

A store calls `Watchers.notify` after each commit, its own or one that it has detected in
another process. Each open `ChangeWatch` keeps one number per run, the newest seq that its
consumer has not seen. So a slow consumer misses intermediate steps but never the newest one,
and its memory is bounded by the number of runs.

The same commit can be reported twice: by the writer of this process and by the poller or
listener that sees every commit of the store. `Watchers` therefore remembers the newest seq it
has reported for the last `REMEMBERED_MAX_RUNS` runs and drops the repetition.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from anyio.lowlevel import checkpoint

from midrun.core.ids import START, RunId, Seq
from midrun.ports.store import Change
from midrun.stores.cross_thread import new_waiter, running_loop, wake

REMEMBERED: Final = 4096
"""The number of runs whose last reported seq is remembered."""

IN_A_ROW: Final = 64
"""The number of changes a consumer gets before other tasks get a turn of the event loop."""

LATER_S: Final = 0.002
"""The time for which commits of this process are collected before a watch is woken.

The driver of the run learns of its own append directly, so this delay costs it nothing.
"""

LATCHES: Final = RunId("")
"""The run id in a change that concerns the halts, which belong to no run."""


class Watchers:
    """Distribute changes to every open watch; callable from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: list[Watch] = []
        self._told: OrderedDict[RunId, Seq] = OrderedDict()  # last reported seq, LRU order

    def __len__(self) -> int:
        return len(self._open)

    def tell(
        self,
        changes: Iterable[tuple[RunId, Seq]],
        *,
        held: Collection[RunId] = (),
        later: bool = False,
    ) -> None:
        """Report `changes` to every watch, without waiting; leave out repetitions.

        The runs in `held` have a live lease. With `delayed=True` a watch of this event loop is
        woken after a short delay, so that several commits wake it once.
        """
        # Read without the lock. A watch that is opened at this moment is owed only the commits
        # that come after it.
        if not self._open:
            return
        with self._lock:
            fresh = {run: seq for run, seq in changes if self._is_news(run, seq)}
            watches = tuple(self._open)
        if fresh:
            for watch in watches:
                # A halt must take effect at once, so a batch with one is never delayed.
                watch.tell(fresh, held, later=later and LATCHES not in fresh)

    def end(self) -> None:
        """End every watch because the store is being closed."""
        with self._lock:
            watches = tuple(self._open)
        for watch in watches:
            watch.end()

    @contextmanager
    def joined(self) -> Iterator["Watch"]:
        """Open a watch that receives every change from now on."""
        watch = Watch()
        with self._lock:
            self._open.append(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._open.remove(watch)

    def _is_news(self, run: RunId, seq: Seq) -> bool:
        if run == LATCHES:
            return True
        if self._told.get(run, START) >= seq:
            return False
        self._told[run] = seq
        self._told.move_to_end(run)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return True


class Watch(AsyncIterator[Change]):
    """The pending changes of one consumer: the newest seq of each run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._news: dict[RunId, Seq] = {}
        self._held: set[RunId] = set()  # the pending runs that have a live lease
        self._waiter = new_waiter()
        self._in_a_row = 0
        self._due = False  # a delayed wake-up is scheduled
        self._ended = False

    def tell(
        self, news: dict[RunId, Seq], held: Collection[RunId] = (), *, later: bool = False
    ) -> None:
        """Add changes; a newer seq of a run replaces an older one."""
        with self._lock:
            for run, seq in news.items():
                if seq >= self._news.get(run, START):
                    self._news[run] = seq
                    (self._held.add if run in held else self._held.discard)(run)
        # No wake-up can be lost here. `__anext__` creates its waiter under the lock and only if
        # nothing is pending. So either it has seen the change that was added above, or
        # `_waiter` is already the one it is about to await.
        #
        # The delay uses `call_later`, which is not thread-safe: from another thread the watch
        # is woken at once.
        loop = self._waiter.get_loop()
        if not later or running_loop() is not loop:
            wake([self._waiter])
        elif not (self._due or self._waiter.done()):
            self._due = True
            loop.call_later(LATER_S, self._come_due)

    def _come_due(self) -> None:
        self._due = False
        wake([self._waiter])

    def end(self) -> None:
        """End the iteration once every pending change was delivered."""
        with self._lock:
            self._ended = True
        wake([self._waiter])

    async def __anext__(self) -> Change:
        # Without this, a consumer with a long backlog would never suspend and would block the
        # loop.
        self._in_a_row += 1
        if self._in_a_row > IN_A_ROW:
            self._in_a_row = 1
            await checkpoint()
        while True:
            with self._lock:
                for run in self._news:
                    held = run in self._held
                    self._held.discard(run)
                    return Change(run=run, seq=self._news.pop(run), held=held)
                if self._ended:
                    raise StopAsyncIteration
                self._waiter = waiter = new_waiter()
            self._in_a_row = 1
            await waiter
