"""Wake tasks of an event loop from any thread, without waiting for the loop.

AnyIO can call into a loop from a thread, but it blocks the thread until the loop has answered.
A writer thread that had to wait for a busy loop before it could commit the next group would
lose most of the gain of group commit. And with many waiters, AnyIO's events cost more than the
work that they announce. So the stores await plain asyncio futures and complete them through
this module.

Cancel scopes are still AnyIO's: it cancels a task that awaits a future like any other.
`may_be_cancelled` asks them quickly.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from anyio._backends import _asyncio as anyio_backend  # see `may_be_cancelled`

_ANYIO_TASKS: Final = getattr(anyio_backend, "_task_states", None)
"""Task → the state that AnyIO keeps for it, with its innermost cancel scope."""

Loop = asyncio.AbstractEventLoop
Waiter = asyncio.Future[None]
"""A future that one task awaits until another task or thread wakes it."""


def make_waiter() -> Waiter:
    """Return a waiter for a task of the running event loop."""
    return asyncio.get_running_loop().create_future()


get_current_loop: Final = asyncio._get_running_loop  # noqa: SLF001 - for event loops, and documented
"""Return the event loop of this thread, or None outside of one."""


def wake_waiters(waiters: Iterable[Waiter]) -> None:
    """Complete `waiters`; use one cross-thread call per foreign event loop.

    A waiter that is already complete, or whose loop is closed, is skipped.
    """
    here = get_current_loop()
    elsewhere: dict[Loop, list[Waiter]] = {}
    for waiter in waiters:
        loop = waiter.get_loop()
        if loop is not here:
            elsewhere.setdefault(loop, []).append(waiter)
        # A waiter is done as well when its task was cancelled.
        elif not waiter.done():
            waiter.set_result(None)
    for loop, waiting in elsewhere.items():
        # In the other loop this function runs again; there the waiters are its own. A closed
        # loop raises RuntimeError, and none of its tasks can wait any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(wake_waiters, waiting)


def may_be_cancelled(task: asyncio.Task[object] | None) -> bool:
    """Tell whether a cancel scope of the current `task` may be cancelled; False is certain.

    AnyIO's `checkpoint_if_cancelled` finds that out as well, but with seventeen Python calls in
    a task with five scopes, and every append asks. This reads the same fields of the scopes.
    They are private: with an AnyIO that lacks them the answer is True, and the caller asks it.
    """
    if task is None or _ANYIO_TASKS is None:
        return True
    try:
        scope = _ANYIO_TASKS[task].cancel_scope
        while scope is not None:
            if scope._cancel_called:  # noqa: SLF001 - see above
                return True
            if scope._shield:  # noqa: SLF001
                return False
            scope = scope._parent_scope  # noqa: SLF001
    except KeyError:
        return False  # no scope was ever entered in this task
    except AttributeError:
        return True
    return False
