"""Hops: how a thread tells an event loop that something is done, without waiting for it.

AnyIO can call into a loop from a thread, but only by blocking the thread until the loop has
answered. A writer thread that had to wait for a busy loop before it could commit the next group
would lose most of what grouping gains. And in a crowd, waiting for AnyIO's events costs more
than what they announce. So stores wait for futures of asyncio's, and wake through this module.
Cancel scopes are still AnyIO's: it cancels who awaits a future like everybody else.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress

Loop = asyncio.AbstractEventLoop
Waiter = asyncio.Future[None]
"""What one task awaits until somebody, in whatever thread, wakes it."""


def new_waiter() -> Waiter:
    """Return a waiter for a task of the caller's loop."""
    return asyncio.get_running_loop().create_future()


def running_loop() -> Loop | None:
    """Return the loop that the caller runs in, if it runs in one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def wake(waiters: Iterable[Waiter]) -> None:
    """Wake those who await `waiters`, with one hop for each loop that is not the caller's.

    A second time does nothing, nor does it once the loop is gone.
    """
    here = running_loop()
    elsewhere: dict[Loop, list[Waiter]] = {}
    for waiter in waiters:
        loop = waiter.get_loop()
        if loop is not here:
            elsewhere.setdefault(loop, []).append(waiter)
        elif not waiter.done():
            waiter.set_result(None)
    for loop, waiting in elsewhere.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(wake, waiting)
