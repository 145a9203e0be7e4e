"""Notifications: wake the tasks that wait for a run, or for all runs, to change.

A `Wakeup` is an auto-reset event with one waiter. A `ChangeNotifier` reads the one watch on the
store that a process has and sets the wakeups of all subscribers of the run that changed.

A notification carries no data. It says *look again*, and the subscriber reads the journal or
the row. So notifications may be merged, repeated or come early without harm. One that is lost
delays its subscriber; the worker's periodic sweep finds the run.
"""

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskStatus

from midrun.core.ids import RunId
from midrun.errors import Misconfigured
from midrun.ports.store import Change, Store


class Wakeup:
    """An auto-reset event: remembers that it was set until its one waiter has returned.

    `set` before `wait` is not lost: `wait` then returns at once. Any number of `set` calls
    between two waits count as one. Every step of every run waits for one of these, and a bare
    future costs a third of an `anyio.Event`.
    """

    __slots__ = ("_is_set", "_waiter")

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: Future[None] | None = None

    def set(self) -> None:
        """Wake the waiter; without one, let the next `wait` return at once."""
        # The flag is set even if there is a waiter: the waiter may be cancelled in the same
        # turn of the event loop, and then the next `wait` must not miss this.
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is set, or for `timeout_s`; then reset it."""
        if not self._is_set:
            self._waiter = get_running_loop().create_future()
            try:
                if timeout_s is None:
                    await self._waiter  # the usual case, without the cost of a cancel scope
                else:
                    with anyio.move_on_after(max(timeout_s, 0.0)):
                        await self._waiter
            finally:
                self._waiter = None
        self._is_set = False


class ChangeNotifier:
    """Wakes the subscribers of a run when its journal has grown.

    `is_closed` is True once the store is not watched any more. Then every notification wakes
    its subscribers, so that they notice it and do not wait for ever.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._subscriptions: dict[RunId, list[tuple[Wakeup, Callable[[], bool]]]] = {}
        self._callbacks: list[Callable[[Change], None]] = []
        self._loop: AbstractEventLoop | None = None
        self.is_closed = False

    def subscribe_all(self, callback: Callable[[Change], None]) -> None:
        """Call `callback` for every change of every run."""
        self._callbacks.append(callback)

    @contextmanager
    def subscribe(
        self, run: RunId, is_relevant: Callable[[], bool] = lambda: True
    ) -> Iterator[Wakeup]:
        """Give a wakeup that is set whenever `run` has grown and `is_relevant` returns True.

        `is_relevant` is called with every change, before the subscriber is woken; it saves
        waking a task that would only go back to wait.
        """
        self.check_loop()  # a wakeup of another event loop would never be set
        subscription = (Wakeup(), is_relevant)
        self._subscriptions.setdefault(run, []).append(subscription)
        try:
            yield subscription[0]
        finally:
            subscriptions = self._subscriptions[run]
            subscriptions.remove(subscription)
            if not subscriptions:
                del self._subscriptions[run]

    def check_loop(self) -> None:
        """Check that the current event loop is the one in which the store is watched.

        Raises:
            Misconfigured: it is another one. A run that was started from it would end with it.
        """
        if self._loop is not None and self._loop is not get_running_loop():
            problem = "cannot use it here: it is open in another event loop."
            remedy = "Call anyio.from_thread.run, or open a second Midrun on the same store."
            raise Misconfigured("Midrun", f"{problem} {remedy}")

    def notify(self, run: RunId) -> None:
        """Wake the subscribers of `run`, so that they look at it again."""
        for wakeup, is_relevant in self._subscriptions.get(run, ()):
            # Once the store is closed nothing changes any more: wake all, relevant or not.
            if self.is_closed or is_relevant():
                wakeup.set()

    async def watch_store(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Watch the store until cancelled, or until it is closed."""
        self._loop = get_running_loop()
        try:
            async with self._store.watch() as changes:
                task_status.started()
                async for change in changes:
                    # The worker comes first: it tells its run loops, and takes up new runs.
                    for callback in self._callbacks:
                        callback(change)
                    self.notify(change.run)
        finally:
            # First the flag, then the wake-ups: a subscriber that wakes up must see that
            # nothing will come.
            self.is_closed = True
            for run in tuple(self._subscriptions):
                self.notify(run)
