"""Hops: how a thread tells an event loop that something is done, without waiting for it.

AnyIO can call into a loop from a thread, but only by blocking the thread until the loop has
answered. A writer thread that had to wait for a busy loop before it could commit the next group
would lose most of what grouping gains. So this one module asks the loop itself; AnyIO's own
token tells which loop that is.
"""

from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Protocol, runtime_checkable

import anyio
from anyio.lowlevel import current_token


@runtime_checkable
class _Loop(Protocol):
    """What asyncio's loops have for this; Trio's token calls the same thing `run_sync_soon`."""

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


class Signal:
    """A one-time wake-up for one waiter: made in its event loop, set from any thread."""

    def __init__(self) -> None:
        loop = current_token().native_token
        if not isinstance(loop, _Loop):
            raise TypeError("midrun's stores run on asyncio; start with anyio.run(...)")
        self._loop = loop
        self._thread = get_ident()
        self._done = anyio.Event()

    def set(self) -> None:
        """Wake the waiter; a second time does nothing, nor does it once the loop is gone."""
        if get_ident() == self._thread:
            self._done.set()
            return
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._done.set)

    async def wait(self) -> None:
        """Wait until it is set."""
        await self._done.wait()
