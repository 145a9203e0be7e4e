"""Calls in flight and the user code that they run: its tasks, its stop, and its errors.

The dispatcher stops a call with `InFlightCall.stop`. `UserTasks` starts an asyncio task for
each call of async user code; `UserCode` runs the code in that task, and stops it.

Tools, hooks, models and stop conditions are user code. An exception that they raise ends their
call and nothing else. Three kinds are not theirs, and must be raised again (`must_reraise`):

- **Ctrl-C**, which Python raises as `KeyboardInterrupt` in the code that happens to run.
- **`CallDropped`**, which ends the task of a call whose worker is gone.
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
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from midrun.agents.agent import Agent
from midrun.agents.builtin_tools import PauseHere
from midrun.agents.file import File
from midrun.agents.tool import Tool
from midrun.codec.safe_repr import safe_str
from midrun.core.driver_inputs import DriverInput
from midrun.core.scheduler import ControlChild
from midrun.core.state import CallState
from midrun.core.values import CleanupAction, Json, WorkKind
from midrun.driver.subprocess.protocol import QuestionAsked, Raised
from midrun.driver.subprocess.zygote_client import refuse_file

WaitEnded: TypeAlias = Callable[[], Awaitable[None]]
"""Waits for the end of a call, or of the user code that runs for it."""

SHUTDOWN_REASON: Final = "shutdown"
"""The reason to stop a call because this worker gives the run back."""

FENCED_REASON: Final = "fenced"
"""The reason to stop a call because its epoch is over."""

OVERDUE_REASON: Final = "overdue"
"""The reason to stop user code whose own time (`timeout=`) is up, without a control."""

NO_WAIT_REASONS: Final = frozenset(
    {"cancelled", SHUTDOWN_REASON, FENCED_REASON, OVERDUE_REASON}
)
"""Reasons to stop a call for which the run waits no longer than the grace."""


class InFlightCall:
    """One call, undo, release or check (`work_kind`) that has started, and its stop state.

    The dispatcher creates it, stops it, and marks its end. The code that makes the call runs
    inside `scope`, or sets `code` if it is async user code, and reads `stop_reason` to tell a
    stop from a failure.

    `stop_reason` is the reason to stop, or "" while there is none: "paused", "redirected",
    "cancelled", "halted", "shutdown" or "fenced". A call that waits for a child run is stopped
    only for "shutdown" and "fenced". Otherwise its child is sent a control (`sent_control`),
    and the call ends when the child rests.

    `finished` says that nothing of the call runs any more. `abandoned` says that the journal
    has closed the call without waiting for it: it may still be running, and an outcome that it
    has is late. `overdue_input` is the driver input to journal if it is abandoned because its
    own time (`timeout=`) is up.
    """

    __slots__ = (
        "_finished_event",
        "_scope",
        "abandoned",
        "artifacts",
        "attempt",
        "call",
        "code",
        "files",
        "finished",
        "kill_time_s",
        "on_overdue",
        "overdue_input",
        "owner",
        "save",
        "sent_control",
        "show",
        "shutting_down",
        "stop_reason",
        "tool",
        "work_kind",
    )  # fmt: skip

    def __init__(
        self,
        call: CallState,
        owner: Agent,
        save: Callable[[Json], Coroutine[object, None, None]],
        work_kind: WorkKind = "call",
        attempt: int = 0,
    ) -> None:
        self.call = call
        self.owner = owner  # the agent that spoke when the call was requested
        self.save = save
        self.work_kind = work_kind
        self.attempt = attempt or call.attempt
        # Set by the dispatcher for a tool call: stores a file that the tool shows.
        self.show: Callable[[File], Coroutine[object, None, None]] = refuse_file
        self.artifacts: tuple[File, ...] = ()  # of the result, journaled with it
        self.files: dict[str, bytes] = {}  # bodies of the files that its outcome names
        self.tool: Tool | None = None  # set by the dispatcher; None for a model or a child run
        self.code: UserCode | None = None  # async user code that runs for it
        self._scope: anyio.CancelScope | None = None
        self.finished = False
        # Created by the first waiter: most calls have none.
        self._finished_event: anyio.Event | None = None
        self.stop_reason = ""
        self.sent_control: ControlChild | None = None  # the control that its child run was sent
        self.shutting_down = False  # the worker shuts down, and this call has a grace to finish
        self.abandoned = False
        self.kill_time_s = 0.0  # the time to end, after its grace, of a process that is killed
        self.overdue_input: DriverInput | None = None
        # Set by the dispatcher; called when the own time of async user code is up. It takes the
        # call as an argument: a function that holds the call would be a reference cycle, and
        # only the garbage collector would free the call.
        self.on_overdue: Callable[[InFlightCall, WaitEnded], None] | None = None

    @property
    def scope(self) -> anyio.CancelScope:
        """The scope of all waiting for this call, except for that of async user code.

        Most calls run async user code and need none, so it is made when it is first used.
        """
        if self._scope is None:
            self._scope = anyio.CancelScope()
            if self.stop_reason:
                self._scope.cancel()
        return self._scope

    def detach_scope(self) -> None:
        """Leave the entered scope alone from here on: a later stop does not cancel it.

        If it is cancelled already, it stays so. The next use of `scope` makes a new one.
        """
        self._scope = None

    @property
    def action(self) -> CleanupAction:
        """The kind of cleanup; of use only for an undo or a release."""
        return "release" if self.work_kind == "release" else "undo"

    @property
    def is_stopping(self) -> bool:
        """Whether this call must stop, or its child run was sent a control to stop."""
        return bool(self.stop_reason) or self.sent_control is not None

    def mark_finished(self) -> None:
        """Mark the call as finished, and wake all waiters."""
        self.finished = True
        if self._finished_event is not None:
            self._finished_event.set()

    async def wait_finished(self) -> None:
        """Wait until the call is finished."""
        if not self.finished:
            self._finished_event = self._finished_event or anyio.Event()
            await self._finished_event.wait()

    def stop(self, reason: str) -> bool:
        """Stop the call for `reason`; False if the reason changes nothing.

        A second reason, such as a cancel after a pause, replaces the first. The scope has been
        cancelled by then; async user code is cancelled once more.

        A reason for which the run waits never replaces one for which it does not. A pausing run
        whose worker shuts down asks for both stops in every turn of its loop; otherwise
        they would replace each other, and each time start a new grace.
        """
        if self.stop_reason == reason:
            return False
        if self.stop_reason in NO_WAIT_REASONS and reason not in NO_WAIT_REASONS:
            return False
        self.stop_reason = reason
        if self._scope is not None:
            self._scope.cancel()
        if self.code is not None:
            self.code.stop()
        return True

    def forget_pause(self) -> bool:
        """Forget a pause that its child run was sent, as it is withdrawn; False if none was."""
        # A cancel or a halt cannot be withdrawn, and a call that is stopped does not continue.
        sent = self.sent_control
        if sent is None or sent.control != "pause" or self.stop_reason:
            return False
        self.sent_control = None
        return True


# Errors of user code.


def make_exception_outcome(error: BaseException) -> Raised | QuestionAsked:
    """Return the outcome of a function that raised `error`: a failure, or a question.

    `pause_here` asks its question by raising. Inside a task group the exception arrives in an
    exception group, so all leaves are searched.
    """
    leaves = list(_iter_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, PauseHere):
            return QuestionAsked.from_pause(leaf)
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
    return is_ctrl_c(error) or isinstance(error, CallDropped)


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


# Calls of async user code: one asyncio task for each, and how it is cancelled and abandoned.
#
# **Why not in our scopes.** AnyIO cancels by level: a cancelled scope raises in its tasks again
# in every turn of the event loop, until they have left the scope. Code that was written for
# asyncio, which raises once, cannot clean up under that. LangGraph, for example, starts a new
# task that cancels its nodes, and awaits that task; the next cancellation ends the new task
# before its first step, and the nodes continue. And a coroutine that swallows `CancelledError`
# gets one in every turn for as long as it lives, which uses a whole core.
#
# So the call of a tool, a hook, a model or a stop condition that is async runs in an asyncio
# task of its own (`CallTask`), outside of our task groups and of all our scopes. `UserTasks`
# keeps these tasks. Inside its task, the call runs the user's coroutine with `UserCode.run`.
# `InFlightCall.stop` calls `UserCode.stop`, which cancels the code once, again after half of
# the grace, and then a few more times at intervals that double. Nothing waits for the end of
# the code except its own task: the dispatcher shows the call as *not responding* and decides
# when the run continues without it.
#
# **Why not plain `Task.cancel()`.** It would also raise behind AnyIO shields in the user's
# code, and a shield says that the code must not be interrupted there. So the coroutine runs in
# two AnyIO scopes, `_stop_scope` and inside it `_gate`. A cancellation is delivered like this:
#
# 1. `_cancel` cancels `_stop_scope`, which stays cancelled, and opens the gate: it sets
#    `_gate.shield` to False.
# 2. AnyIO now delivers the cancellation through the open gate. If the code is behind a shield
#    of its own, AnyIO waits until that shield ends, at no cost.
# 3. AnyIO delivers by calling `Task.cancel()`. `CallTask` overrides that method to close the
#    gate (`_gate.shield = True`), so that AnyIO does not raise again in the next turn.
# 4. A timer opens the gate again for the next cancellation.

T = TypeVar("T")

log = logging.getLogger("midrun")

CANCELLATIONS_MAX: Final = 8
"""The number of cancellations that one stop delivers to user code."""

CANCELLATION_GAP_MIN_S: Final = 0.01
"""The shortest time between two cancellations of user code, for a very short grace."""

ABANDONED_CODE: Final[set["UserCode"]] = set()
"""Code that was still running when its `Midrun` was left; asyncio holds no reference."""

RUNNING_THREAD_LABELS: Final[set[str]] = set()
"""Labels of the user functions that block a thread right now."""


def list_unfinished() -> list[str]:
    """Return the labels of user code that runs on although its `Midrun` was left."""
    return sorted({*RUNNING_THREAD_LABELS, *(code.label for code in ABANDONED_CODE)})


class CodeStopped(Exception):
    """User code was stopped, and has neither a value nor an error of its own."""


class CallDropped(BaseException):
    """User code has ended that was abandoned at the shutdown of its worker."""


class CallTask(asyncio.Task[None]):
    """The asyncio task of one call. It calls `on_cancel` whenever it is cancelled."""

    on_cancel: Callable[[], None] | None = None

    def cancel(self, msg: object = None) -> bool:
        """Call `on_cancel`, then cancel the task."""
        if self.on_cancel is not None:
            self.on_cancel()
        return super().cancel(msg)


class UserCode:
    """One user coroutine that runs in the task of its call, and the means to stop it."""

    __slots__ = (
        "_ended_event",
        "_gate",
        "_half_grace_s",
        "_has_ended",
        "_stop_scope",
        "_tasks",
        "_timeout_timer",
        "_timer",
        "grace_s",
        "is_overdue",
        "label",
        "stopping_since",
        "task",
    )

    def __init__(self, tasks: "UserTasks", label: str, grace: timedelta) -> None:
        self.label = label
        self.grace_s = grace.total_seconds()
        self.stopping_since: float | None = None
        self.is_overdue = False  # its time limit has passed
        self.task: CallTask | None = None  # the task that runs it
        self._tasks = tasks
        self._half_grace_s = max(self.grace_s / 2, CANCELLATION_GAP_MIN_S)
        self._has_ended = False
        self._ended_event: anyio.Event | None = None  # made by the first waiter: most have none
        self._timer: asyncio.TimerHandle | None = None  # of the next cancellation
        self._timeout_timer: asyncio.TimerHandle | None = None  # of the time limit
        self._stop_scope, self._gate = tasks.make_scope(), tasks.make_scope()

    async def run(
        self, work: Callable[[], Awaitable[T]], in_flight: InFlightCall | None = None
    ) -> T:
        """Await `work` in the current task, which `UserTasks.start` has started.

        `in_flight.stop` stops it. Code that returns or raises after it was cancelled has
        that outcome: a tool may finish within its grace. There is no limit on that.

        Raises:
            CodeStopped: it was stopped before its first step, or ended by the cancellation.
        """
        task = asyncio.current_task()
        assert isinstance(task, CallTask), "user code runs in a task of `UserTasks`"
        self.task = task
        task.set_name(self.label)
        try:
            # A stop may come between the start of the task and this line. Code that has not
            # begun has no effect, so it must not begin any more.
            if self.stopping_since is not None or (in_flight and in_flight.stop_reason):
                raise CodeStopped
            if in_flight is not None:
                in_flight.code = self
            self._tasks.running.add(self)
            task.on_cancel = self._close_gate
            with self._stop_scope, self._gate:
                return await work()
        except asyncio.CancelledError:
            if self.stopping_since is None:
                raise  # an error of the code: it has awaited something that was cancelled
            raise CodeStopped from None
        finally:
            task.on_cancel = None
            if in_flight is not None:
                in_flight.code = None
            self._finish()
            # The next `await` of this task is ours: see the function.
            if task.cancelling():
                await absorb_stray_cancellation()
            if self in ABANDONED_CODE:
                ABANDONED_CODE.discard(self)
                raise CallDropped
        raise CodeStopped  # the scope has absorbed its cancellation

    def _finish(self) -> None:
        self._has_ended = True
        self._tasks.running.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        if self._ended_event is not None:
            self._ended_event.set()

    @property
    def grace_ends_at(self) -> float:
        """The end of the grace, on the clock of the event loop."""
        return (self.stopping_since or 0.0) + self.grace_s

    async def wait_ended(self) -> None:
        """Wait until the code has ended."""
        if not self._has_ended:
            self._ended_event = self._ended_event or anyio.Event()
            await self._ended_event.wait()

    def stop_at_timeout(self, seconds: float, on_overdue: Callable[[WaitEnded], None]) -> None:
        """Stop the code after `seconds`, and call `on_overdue` then, unless it has ended.

        If it is being stopped by then, for another reason, only `on_overdue` is called.
        """

        def end_time() -> None:
            self.is_overdue = True
            if self.stopping_since is None:
                self.stop()
            on_overdue(self.wait_ended)

        self._timeout_timer = asyncio.get_running_loop().call_later(seconds, end_time)

    def stop(self) -> None:
        """Cancel the code now; if it is being stopped already, after half of its grace."""
        if self._has_ended:
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
        # The order does not matter for delivery, but the gate must be open: a closed one hides
        # the cancelled scope from everything inside of it.
        self._gate.shield = False
        self._stop_scope.cancel()
        if remaining > 1:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(gap_s, self._cancel, 2 * gap_s, remaining - 1)


class UserTasks:
    """The tasks in which one worker calls async user code; made inside a running event loop.

    `running` is the code that runs at present. `task_group` gets the errors of the tasks: they
    are bugs of ours, since errors of user code are outcomes. A task of that group itself would
    be in a scope, and would cost a handle, a second scope and two more turns of the event loop.
    """

    def __init__(self, task_group: TaskGroup) -> None:
        self.running: set[UserCode] = set()
        self._is_shut_down = False
        # AnyIO looks for its backend whenever it makes a scope, at twice the cost of the scope.
        # The class of an existing scope is that of all others in the same event loop.
        self.make_scope = type(anyio.CancelScope())
        self._task_group = task_group
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[Coroutine[object, object, None], CallTask] = {}

    def start(
        self, call: Coroutine[object, object, None], context: Context | None = None
    ) -> None:
        """Start `call` in a task of its own; drop it if the worker has shut down.

        `context` has its context variables; by default, it gets a copy of the current ones.
        """
        if self._is_shut_down:
            call.close()
        else:
            self._tasks[call] = CallTask(self._run(call), loop=self._loop, context=context)

    async def _run(self, call: Coroutine[object, object, None]) -> None:
        # The end is noted here: a callback of the task would cost a turn of the event loop.
        try:
            await call
        except CallDropped:
            pass
        except Exception as error:  # noqa: BLE001 - raised again in the group
            self._task_group.start_soon(_raise_error, error)
        except BaseException:  # Ctrl-C: raised here, it leaves the event loop at once
            self._tasks[call].add_done_callback(_retrieve_error)
            raise
        finally:
            del self._tasks[call]

    async def shut_down(self) -> None:
        """Stop all code, wait for its grace, and abandon and log the code that still runs.

        The task of abandoned code stays in the event loop. When the code ends after all, its
        call ends without an outcome.
        """
        self._is_shut_down = True
        for code in self.running:
            code.stop()
        if self._tasks:
            now = asyncio.get_running_loop().time()
            ends = (code.grace_ends_at for code in self.running)
            rest_s = max(ends, default=now) - now
            await asyncio.wait(self._tasks.values(), timeout=max(rest_s, 0.0))
        for code in self.running:
            log.warning(
                "Abandoned %s: it did not stop within its grace of %g s. "
                "It may still act in this process.",
                code.label,
                code.grace_s,
            )
            ABANDONED_CODE.add(code)
        # Everything else that a call does is our own code, and bounded.
        abandoned = {code.task for code in self.running}
        if own := [task for task in self._tasks.values() if task not in abandoned]:
            await asyncio.wait(own)


def _retrieve_error(task: asyncio.Task[None]) -> None:
    task.exception()  # otherwise asyncio logs that no code has taken it


async def _raise_error(error: Exception) -> None:
    raise error
