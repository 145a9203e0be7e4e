"""User coroutines in asyncio tasks of their own: how they are cancelled, and how they are left.

A cancelled AnyIO scope raises in its tasks again on every turn of the event loop, until they
have left it. Code that was not written for AnyIO cannot end under that. LangGraph, for example,
has a new task cancel its nodes and awaits that task; the next cancellation ends the new task
before its first step, and the nodes go on. And a coroutine that swallows its cancellation is
raised in for as long as it lives, at the cost of one core.

So the coroutine of a tool, a hook, a model or a stop condition runs in an asyncio task of its
own, outside of all our scopes. The driver waits for that task inside the scope of the flight.
When the scope is cancelled, the waiting side stops the task: it raises in it once, again after
half of the grace, and then at intervals that double, a few times. Meanwhile it waits behind a
shield, where nothing is raised, so that waiting costs nothing. The door says *not responding*,
and decides when the run goes on without the call.

`Task.cancel` alone would not do: it also raises behind the shields of AnyIO, where a tool must
not be interrupted. So the coroutine runs in two scopes of AnyIO, `stop` and inside it `gate`.
`stop` is cancelled and stays so. `gate` is opened (its shield is taken away) for each
cancellation, and closed by the task itself as soon as the cancellation has reached it. While
the coroutine is behind a shield of its own, AnyIO delivers nothing and costs nothing, and
delivers when that shield ends.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final, Generic, TypeVar, cast

import anyio

from midrun.driver.in_flight_call import Flight
from midrun.driver.user_code_errors import is_ctrl_c

T = TypeVar("T")

log = logging.getLogger("midrun")

CANCELLATIONS_MAX: Final = 8
"""The number of cancellations that one stop delivers to a user task."""

CANCELLATION_GAP_MIN_S: Final = 0.01
"""The shortest time between two cancellations of a user task, for a very short grace."""

ABANDONED: Final[set["UserTask[object]"]] = set()
"""Tasks that were still running when their `Midrun` was left; asyncio holds no reference."""

THREADS: Final[set[str]] = set()
"""Labels of the user functions that block a thread right now."""


def list_unfinished() -> list[str]:
    """Return the labels of user code that runs on although its `Midrun` was left."""
    return sorted({*THREADS, *(task.label for task in ABANDONED)})


class _Task(asyncio.Task[None]):
    """A task that calls `on_cancel` whenever `cancel` is called on it."""

    on_cancel: Callable[[], None] | None = None

    def cancel(self, msg: object = None) -> bool:
        """Call `on_cancel`, then cancel the task."""
        if self.on_cancel is not None:
            self.on_cancel()
        return super().cancel(msg)


class UserTask(Generic[T]):
    """One user coroutine in an asyncio task of its own, in a copy of the caller's context."""

    def __init__(self, work: Callable[[], Awaitable[T]], label: str, grace: timedelta) -> None:
        self.label = label
        self.grace_s = grace.total_seconds()
        self.stopping_since: float | None = None
        self._half_s = max(self.grace_s / 2, CANCELLATION_GAP_MIN_S)
        self._value: list[T] = []  # the value, once there is one
        self._error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stop_scope, self._gate = anyio.CancelScope(), anyio.CancelScope()
        self.asyncio_task = _Task(self._run(work), name=label)
        self.asyncio_task.on_cancel = self._close_gate
        self.asyncio_task.add_done_callback(self._end)

    async def _run(self, work: Callable[[], Awaitable[T]]) -> None:
        # The outcome is kept here: a task that code has cancelled as it returned counts as
        # cancelled for asyncio, and its result would be lost.
        if self.stopping_since is not None:
            return  # it was stopped before its first step
        try:
            with self._stop_scope, self._gate:
                self._value = [await work()]
        except BaseException as error:
            if is_ctrl_c(error):
                # Raised here, it leaves the event loop. If the waiting side raised it too, it
                # would interrupt the loop again while `asyncio.run` lets all tasks clean up.
                self._error = asyncio.CancelledError()
                raise
            self._error = error

    def _end(self, task: "asyncio.Task[None]") -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.asyncio_task.on_cancel = None  # a cycle that would have to be collected
        if not task.cancelled():
            task.exception()  # so that asyncio does not report it once more

    @property
    def grace_ends_at(self) -> float:
        """When the coroutine should have stopped, on the clock of the event loop."""
        return (self.stopping_since or 0.0) + self.grace_s

    @property
    def has_outcome(self) -> bool:
        """Whether the coroutine has returned or raised; a cancellation by `stop` is neither."""
        cancelled = isinstance(self._error, asyncio.CancelledError)
        stopped = cancelled and self.stopping_since is not None
        return bool(self._value) or (self._error is not None and not stopped)

    def outcome(self) -> T:
        """Return the value that the coroutine has returned, or raise its error."""
        if self._value:
            return self._value[0]
        raise self._error or asyncio.CancelledError

    async def wait(self, *others: "asyncio.Future[None]") -> None:
        """Wait until the coroutine or one of `others` ends; a cancellation ends neither."""
        await asyncio.wait({self.asyncio_task, *others}, return_when=asyncio.FIRST_COMPLETED)

    def stop(self) -> None:
        """Cancel the task now, or if it is being stopped already, within half of its grace."""
        if self.asyncio_task.done():
            return
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self.stopping_since = loop.time()
            self._cancel(self._half_s, CANCELLATIONS_MAX)
        else:  # not at once: it may be cleaning up just now
            self._timer.cancel()
            self._timer = loop.call_later(
                self._half_s, self._cancel, self._half_s, CANCELLATIONS_MAX
            )

    def _close_gate(self) -> None:
        self._gate.shield = self.stopping_since is not None

    def _cancel(self, gap_s: float, left: int) -> None:
        self._gate.shield = False
        self._stop_scope.cancel()
        if left > 1:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(gap_s, self._cancel, 2 * gap_s, left - 1)


class UserTasks:
    """The user coroutines that one engine runs. Made inside a running event loop."""

    def __init__(self) -> None:
        self._running: set[UserTask[object]] = set()
        self._left: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        label: str,
        grace: timedelta,
        flight: Flight | None = None,
    ) -> T:
        """Await `work` in a task of its own; when cancelled, stop it and wait for its end.

        A coroutine that returns or raises although it was told to stop has its outcome. It is
        waited for as long as it takes, unless the engine is left: the door lets the run go on
        without it.
        """
        task = UserTask(work, label, grace)
        known = cast("UserTask[object]", task)
        self._running.add(known)
        task.asyncio_task.add_done_callback(lambda _: self._running.discard(known))
        try:
            await task.wait()
        except asyncio.CancelledError:
            task.stop()
            if flight is not None:
                flight.watch_stop(task.stop, task.wait)
            with anyio.CancelScope(shield=True):
                await task.wait(self._left)
            if not task.has_outcome:
                raise
        return task.outcome()

    async def leave(self) -> None:
        """Stop every task, wait for their graces, then abandon and log those that still run."""
        for task in self._running:
            task.stop()
        tasks = {task.asyncio_task: task for task in self._running}
        if tasks:
            now = asyncio.get_running_loop().time()
            rest_s = max(task.grace_ends_at - now for task in self._running)
            await asyncio.wait(tasks, timeout=max(rest_s, 0.0))
        for task in tuple(self._running):
            log.warning(
                "Abandoned %s: it did not stop within its grace of %g s. "
                "It may still act in this process.",
                task.label,
                task.grace_s,
            )
            ABANDONED.add(task)
            task.asyncio_task.add_done_callback(partial(_forget, task))
        self._left.set_result(None)


def _forget(task: UserTask[object], _: object) -> None:
    ABANDONED.discard(task)
