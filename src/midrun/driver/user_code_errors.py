"""Errors of user code: their text for the journal, and cancellations that it leaves behind.

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
import math
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import anyio
from anyio.lowlevel import checkpoint

from midrun.agents.human import PauseHere
from midrun.codec.safe_repr import safe_str
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
