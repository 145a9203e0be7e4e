"""User code: its tasks, its errors, and cancellations that it leaves behind.

`UserTasks` runs each coroutine of user code in an asyncio task of its own and stops it.

Tools, hooks, models and stop conditions are user code. An exception that they raise ends their
call and nothing else. Two kinds are not theirs, and must be raised again (`must_reraise`):

- **Ctrl-C**, which Python raises as `KeyboardInterrupt` in the code that happens to run.
- **A cancellation of a scope around us.** `CancelledError` alone does not tell where it comes
  from. It is ours if an AnyIO scope around the current code is cancelled. If none is, the code
  has awaited something that other code cancelled, and that is an error like any other.

User code can also leave a cancellation *behind*: it calls `Task.cancel()` on our task and
returns before that is delivered. `absorb_stray_cancellation` removes it.
"""

import asyncio
import logging
import math
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final, Generic, TypeVar, cast

import anyio
from anyio.lowlevel import checkpoint

from midrun.agents.builtin_tools import PauseHere
from midrun.codec.safe_repr import safe_str
from midrun.driver.in_flight_call import InFlightCall
from midrun.driver.subprocess.protocol import QuestionAsked, Raised


def outcome_of_exception(error: BaseException) -> Raised | QuestionAsked:
    """Return the outcome of a function that raised `error`: a failure, or a question.

    `pause_here` asks its question by raising. Inside a task group the exception arrives in an
    exception group, so all leaves are searched.
    """
    leaves = list(_iter_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, PauseHere):
            return QuestionAsked(
                question=leaf.question, data=leaf.data, continuation=leaf.continuation
            )
    return describe_exception(error)


def describe_exception(error: BaseException) -> Raised:
    """Return the type and text of `error`; of a group, the texts of all its leaves."""
    leaves = list(_iter_leaves(error))
    if len(leaves) == 1:
        return Raised(kind=type(leaves[0]).__name__, message=safe_str(leaves[0]))
    message = "; ".join(f"{type(leaf).__name__}: {safe_str(leaf)}" for leaf in leaves)
    return Raised(kind=type(error).__name__, message=message)


def format_exception(error: BaseException) -> str:
    """Return `error` as one text, "Type: message"."""
    failure = describe_exception(error)
    return f"{failure.kind}: {failure.message}"


def must_reraise(error: BaseException) -> bool:
    """Tell whether `error`, caught from user code, must be raised again: see above."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return is_enclosing_scope_cancelled()
    return is_ctrl_c(error)


def is_ctrl_c(error: BaseException) -> bool:
    """Tell whether a signal handler raised `error`, and not the code that was running.

    Signals are handled in the main thread. `asyncio.run` handles SIGINT in Python code, whose
    frame is then the innermost of the error. Python's own handler is not written in Python and
    leaves no frame, so that while it is installed every KeyboardInterrupt counts as Ctrl-C.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not isinstance(error, KeyboardInterrupt) or not in_main_thread:
        return False
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name == "_on_sigint"


def is_enclosing_scope_cancelled() -> bool:
    """Tell whether the cancellation that was just caught comes from a scope around us."""
    # AnyIO reports minus infinity as the deadline of a scope that is cancelled.
    return anyio.current_effective_deadline() == -math.inf


async def absorb_stray_cancellation() -> None:
    """Absorb a `Task.cancel()` that user code left pending on this task.

    For example, code arms a timer that cancels the current task, and the timer fires just as
    the code returns. Asyncio raises the `CancelledError` at the next await of the task. That
    await is ours, and the error would end our task, and with it the task group of all runs.

    A cancellation that comes from an enclosing AnyIO scope is not lost: AnyIO delivers it again
    in every turn of the event loop until the scope is left.
    """
    task = asyncio.current_task()
    # `cancelling` counts the requests that were made and not taken back. It is also above zero
    # after a cancellation that was delivered and caught.
    if task is None or not task.cancelling():
        return
    # Await once, so that a pending cancellation is raised here. Behind the shield AnyIO
    # delivers nothing, so an error that is raised can only be the stray one.
    with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
        await checkpoint()
    # Take all requests back: otherwise `asyncio.timeout` and task groups of asyncio would take
    # the task for cancelled.
    while task.cancelling():
        task.uncancel()


def _iter_leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _iter_leaves(part)
    else:
        yield error


# User coroutines in asyncio tasks of their own: how they are cancelled and abandoned.
#
# **Why not in our scopes.** AnyIO cancels by level: a cancelled scope raises in its tasks again
# in every turn of the event loop, until they have left the scope. Code that was written for
# asyncio, which raises once, cannot clean up under that. LangGraph, for example, starts a new
# task that cancels its nodes, and awaits that task; the next cancellation ends the new task
# before its first step, and the nodes go on. And a coroutine that swallows `CancelledError`
# gets one in every turn for as long as it lives, which uses a whole core.
#
# So the coroutine of a tool, a hook, a model or a stop condition runs in an asyncio task of its
# own, outside of all our scopes. Our side (`UserTasks.run`) waits for that task inside the
# scope of the call:
#
#     dispatcher ── cancels ──► scope of the call
#                                 │ raises once, in our waiting side
#                                 ▼
#                      UserTasks.run ── UserTask.stop ──► the user's coroutine
#                                 │                       (again after half of the grace,
#                                 ▼                        then at growing intervals)
#                      waits on behind a shield
#
# When the scope is cancelled, our side cancels the user's task once, again after half of the
# grace, and then a few more times at intervals that double. Meanwhile it waits behind a shield,
# where AnyIO raises nothing, so that waiting costs nothing. The dispatcher shows the call as
# *not responding* and decides when the run continues without it.
#
# **Why not plain `Task.cancel()`.** It would also raise behind AnyIO shields in the user's
# code, and a shield says that the code must not be interrupted there. So the coroutine runs in
# two AnyIO scopes, `_stop_scope` and inside it `_gate`. A cancellation is delivered like this:
#
# 1. `_cancel` cancels `_stop_scope`, which stays cancelled, and opens the gate: it sets
#    `_gate.shield` to False.
# 2. AnyIO now delivers the cancellation through the open gate. If the code is behind a shield
#    of its own, AnyIO waits until that shield ends, at no cost.
# 3. AnyIO delivers by calling `Task.cancel()`. `_GatedTask` overrides that method to close the
#    gate (`_gate.shield = True`), so that AnyIO does not raise again in the next turn.
# 4. A timer opens the gate again for the next cancellation.

T = TypeVar("T")

log = logging.getLogger("midrun")

CANCELLATIONS_MAX: Final = 8
"""The number of cancellations that one stop delivers to a user task."""

CANCELLATION_GAP_MIN_S: Final = 0.01
"""The shortest time between two cancellations of a user task, for a very short grace."""

ABANDONED_TASKS: Final[set["UserTask[object]"]] = set()
"""Tasks that were still running when their `Midrun` was left; asyncio holds no reference."""

RUNNING_THREAD_LABELS: Final[set[str]] = set()
"""Labels of the user functions that block a thread right now."""


def list_unfinished() -> list[str]:
    """Return the labels of user code that runs on although its `Midrun` was left."""
    return sorted({*RUNNING_THREAD_LABELS, *(task.label for task in ABANDONED_TASKS)})


class _GatedTask(asyncio.Task[None]):
    """An asyncio task that calls `on_cancel` whenever it is cancelled."""

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
        self._half_grace_s = max(self.grace_s / 2, CANCELLATION_GAP_MIN_S)
        self._value: list[T] = []  # the value, once there is one
        self._error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stop_scope, self._gate = anyio.CancelScope(), anyio.CancelScope()
        self.asyncio_task = _GatedTask(self._run(work), name=label)
        self.asyncio_task.on_cancel = self._close_gate
        self.asyncio_task.add_done_callback(self._finish)

    async def _run(self, work: Callable[[], Awaitable[T]]) -> None:
        # The outcome is stored here and not taken from the task: if the code's own task is
        # cancelled in the moment in which it returns, asyncio counts it as cancelled and drops
        # the result.
        if self.stopping_since is not None:
            return  # stopped before its first step
        try:
            with self._stop_scope, self._gate:
                self._value = [await work()]
        except BaseException as error:
            if is_ctrl_c(error):
                # Raised here, Ctrl-C leaves the event loop at once. The waiting side must not
                # raise it a second time: that would interrupt the loop again, while
                # `asyncio.run` cancels all tasks and lets them clean up.
                self._error = asyncio.CancelledError()
                raise
            self._error = error

    def _finish(self, task: "asyncio.Task[None]") -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.asyncio_task.on_cancel = None  # break the reference cycle
        if not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio logs it

    @property
    def grace_ends_at(self) -> float:
        """The end of the grace, on the clock of the event loop."""
        return (self.stopping_since or 0.0) + self.grace_s

    @property
    def has_outcome(self) -> bool:
        """Whether the coroutine returned or raised; a `CancelledError` after `stop` is none."""
        cancelled = isinstance(self._error, asyncio.CancelledError)
        stopped = cancelled and self.stopping_since is not None
        return bool(self._value) or (self._error is not None and not stopped)

    def get_outcome(self) -> T:
        """Return the value that the coroutine has returned, or raise its error."""
        if self._value:
            return self._value[0]
        raise self._error or asyncio.CancelledError

    async def wait(self, *others: "asyncio.Future[None]") -> None:
        """Wait until the coroutine or one of `others` ends.

        `asyncio.wait` cancels none of them if this call itself is cancelled.
        """
        await asyncio.wait({self.asyncio_task, *others}, return_when=asyncio.FIRST_COMPLETED)

    def stop(self) -> None:
        """Cancel the task now; if it is being stopped already, after half of its grace."""
        if self.asyncio_task.done():
            return
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self.stopping_since = loop.time()
            self._cancel(self._half_grace_s, CANCELLATIONS_MAX)
        else:
            # A second reason to stop. The code may be cleaning up after the first cancellation:
            # do not interrupt that at once, and begin the series of intervals anew.
            self._timer.cancel()
            self._timer = loop.call_later(
                self._half_grace_s, self._cancel, self._half_grace_s, CANCELLATIONS_MAX
            )

    def _close_gate(self) -> None:
        # The code may cancel its own task before any stop: that closes nothing.
        self._gate.shield = self.stopping_since is not None

    def _cancel(self, gap_s: float, remaining: int) -> None:
        self._gate.shield = False
        self._stop_scope.cancel()
        if remaining > 1:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(gap_s, self._cancel, 2 * gap_s, remaining - 1)


class UserTasks:
    """The user coroutines that one worker runs. Create it inside a running event loop."""

    def __init__(self) -> None:
        self._running_tasks: set[UserTask[object]] = set()
        self._shutdown_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        label: str,
        grace: timedelta,
        in_flight: InFlightCall | None = None,
    ) -> T:
        """Await `work` in a task of its own; when cancelled, stop it and wait for its end.

        A coroutine that returns or raises after it was cancelled has that outcome: a tool may
        finish within its grace. There is no limit on this wait except the shutdown of the
        worker; the dispatcher lets the run continue without the call.
        """
        # The task has a copy of the caller's context variables, as every asyncio task has.
        task = UserTask(work, label, grace)
        tracked = cast("UserTask[object]", task)
        self._running_tasks.add(tracked)
        task.asyncio_task.add_done_callback(lambda _: self._running_tasks.discard(tracked))
        try:
            await task.wait()
        except asyncio.CancelledError:
            # Our side was cancelled, by the scope of the call or by a timeout around it.
            task.stop()
            if in_flight is not None:
                in_flight.track_stop(task.stop, task.wait)
            with anyio.CancelScope(shield=True):
                await task.wait(self._shutdown_done)
            # Without an outcome the cancellation continues to the scope that it belongs to.
            # With one it is absorbed: the callers leave that scope before their next
            # checkpoint.
            if not task.has_outcome:
                raise
        return task.get_outcome()

    async def shut_down(self) -> None:
        """Stop all tasks, wait for their graces, and abandon and log those that still run.

        An abandoned task stays in the event loop; only its waiter is released.
        """
        for task in self._running_tasks:
            task.stop()
        tasks = {task.asyncio_task: task for task in self._running_tasks}
        if tasks:
            now = asyncio.get_running_loop().time()
            rest_s = max(task.grace_ends_at - now for task in self._running_tasks)
            await asyncio.wait(tasks, timeout=max(rest_s, 0.0))
        for task in tuple(self._running_tasks):
            log.warning(
                "Abandoned %s: it did not stop within its grace of %g s. "
                "It may still act in this process.",
                task.label,
                task.grace_s,
            )
            ABANDONED_TASKS.add(task)
            task.asyncio_task.add_done_callback(partial(_discard_abandoned, task))
        self._shutdown_done.set_result(None)


def _discard_abandoned(task: UserTask[object], _: object) -> None:
    ABANDONED_TASKS.discard(task)
