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
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from anyio.lowlevel import checkpoint

from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.ports.store import Change
from midrun.stores.cross_thread import Loop, get_current_loop, make_waiter, wake_waiters

REMEMBERED_MAX_RUNS: Final = 4096
"""The number of runs whose last reported seq is remembered."""

CHANGES_BEFORE_YIELD: Final = 64
"""The number of changes a consumer gets before other tasks get a turn of the event loop."""

COLLECT_S: Final = 0.005
"""Seconds for which commits of this process are collected before they are reported.

The driver of the run learns of its own append directly, so this delay costs it nothing.
"""

HALTS_CHANGED: Final = RunId("")
"""The run id in a change that concerns the halts, which belong to no run."""


class Watchers:
    """Distribute changes to every open watch; callable from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._watches: list[ChangeWatch] = []
        self._last_seqs: OrderedDict[RunId, Seq] = OrderedDict()  # the newest change last
        self._collected: dict[RunId, Seq] = {}  # not reported yet
        self._timer_loop: Loop | None = None  # has a timer that reports them

    def notify(
        self,
        changes: Iterable[tuple[RunId, Seq]],
        *,
        held: Collection[RunId] = (),
        delayed: bool = False,
    ) -> None:
        """Report `changes` to every watch, without waiting; leave out repetitions.

        The runs in `held` have a live lease. With `delayed=True` they are reported after a
        short delay, together with those of later commits.
        """
        # A thread without an event loop has no timer: there, nothing is delayed.
        loop, is_news = get_current_loop() if delayed else None, False
        # Commits are remembered also while no watch is open: the listener of a watch that is
        # opened next may still receive their announcement.
        with self._lock:
            for run, seq in changes:
                if run == HALTS_CHANGED:
                    loop = None  # a halt must take effect at once
                elif self._last_seqs.get(run, SEQ_ZERO) < seq:
                    self._last_seqs[run] = seq
                    self._last_seqs.move_to_end(run)
                else:
                    continue
                self._collected[run] = seq
                is_news = True
            # A timer of another event loop may never come, because that loop has ended.
            if is_news and loop is not None and self._timer_loop is not loop:
                self._timer_loop = loop
                loop.call_later(COLLECT_S, self._report)
        if is_news and loop is None:
            self._report(held)

    def _report(self, held: Collection[RunId] = ()) -> None:
        """Report everything that was collected, and forget the oldest runs."""
        with self._lock:
            collected, self._collected, self._timer_loop = self._collected, {}, None
            while len(self._last_seqs) > REMEMBERED_MAX_RUNS:
                self._last_seqs.popitem(last=False)
            watches = tuple(self._watches)
        if collected:
            for watch in watches:
                watch.add_changes(collected, held)

    def end_watches(self) -> None:
        """End every watch because the store is being closed."""
        self._report()
        with self._lock:
            watches = tuple(self._watches)
        for watch in watches:
            watch.end()

    @contextmanager
    def subscribe(self) -> Iterator["ChangeWatch"]:
        """Open a watch that receives every change from now on."""
        self._report()  # the earlier ones are not for it
        watch = ChangeWatch(self._report)
        with self._lock:
            self._watches.append(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.remove(watch)


class ChangeWatch(AsyncIterator[Change]):
    """The pending changes of one consumer: the newest seq of each run."""

    def __init__(self, report_collected: Callable[[], None]) -> None:
        self._report_collected = report_collected  # adds what was collected until now
        self._lock = Lock()
        self._pending: dict[RunId, Seq] = {}
        self._pending_held: set[RunId] = set()  # the pending runs that have a live lease
        self._waiter = make_waiter()
        self._since_yield = 0
        self._ended = False

    def add_changes(self, changes: dict[RunId, Seq], held: Collection[RunId] = ()) -> None:
        """Add changes; a newer seq of a run replaces an older one."""
        with self._lock:
            for run, seq in changes.items():
                if seq >= self._pending.get(run, SEQ_ZERO):
                    self._pending[run] = seq
                    (self._pending_held.add if run in held else self._pending_held.discard)(run)
        # No wake-up can be lost here. `__anext__` creates its waiter under the lock and only if
        # nothing is pending. So either it has seen the change that was added above, or
        # `_waiter` is already the one it is about to await.
        wake_waiters([self._waiter])

    def end(self) -> None:
        """End the iteration once every pending change was delivered."""
        with self._lock:
            self._ended = True
        wake_waiters([self._waiter])

    async def __anext__(self) -> Change:
        # Without this, a consumer with a long backlog would never suspend and would block the
        # loop.
        self._since_yield += 1
        if self._since_yield > CHANGES_BEFORE_YIELD:
            self._since_yield = 1
            await checkpoint()
        while True:
            self._report_collected()
            with self._lock:
                for run in self._pending:
                    held = run in self._pending_held
                    self._pending_held.discard(run)
                    return Change(run=run, seq=self._pending.pop(run), held=held)
                if self._ended:
                    raise StopAsyncIteration
                self._waiter = waiter = make_waiter()
            # The wait below gives other tasks their turn.
            self._since_yield = 1
            await waiter
