"""Errors of user code, in words that can be journaled and told to an agent."""

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
from midrun.driver.subprocess.protocol import Asked, Raised


def end_of(error: BaseException) -> Raised | Asked:
    """Return what an error means for the function that raised it.

    A question counts from wherever it was asked, also from inside a task group.
    """
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, PauseHere):
            return Asked(question=leaf.question, data=leaf.data, continuation=leaf.continuation)
    return raised(error)


def raised(error: BaseException) -> Raised:
    """Return `error` in words; a group is told by what is in it."""
    leaves = list(_leaves(error))
    if len(leaves) == 1:
        return Raised(kind=type(leaves[0]).__name__, message=safe_str(leaves[0]))
    told = "; ".join(f"{type(leaf).__name__}: {safe_str(leaf)}" for leaf in leaves)
    return Raised(kind=type(error).__name__, message=told)


def words(error: BaseException) -> str:
    """Return `error` as one text."""
    told = raised(error)
    return f"{told.kind}: {told.message}"


def must_go_on(error: BaseException) -> bool:
    """Tell whether an error that user code raised is meant for us, and must be raised again.

    That is Ctrl-C, and a cancellation of a scope around us. Everything else that a tool, a
    model or a condition raises ends its call, and nothing else.
    """
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return is_ours()
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


def is_ours() -> bool:
    """Tell whether the cancellation that was just caught is one of a scope around us.

    If not, something that the code waited for was cancelled by others, and that is its error.
    """
    return anyio.current_effective_deadline() == -math.inf


async def shake_off() -> None:
    """Let a cancellation that somebody's code has left on this task come, and come to nothing.

    A timer of its own that fires too late leaves one, say. Asyncio would raise it wherever we
    await next, or end the task with it, and with the task all that is driven beside it. What a
    scope around us wants comes again.
    """
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        return
    with suppress(anyio.get_cancelled_exc_class()), anyio.CancelScope(shield=True):
        await checkpoint()
    while task.cancelling():
        task.uncancel()


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error
