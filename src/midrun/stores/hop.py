"""Hops: how a thread tells an event loop that something is done, without waiting for it.

AnyIO can call into a loop from a thread, but only by blocking the thread until the loop has
answered. A writer thread that had to wait for a busy loop before it could commit the next group
would lose most of what grouping gains. So this one module talks to asyncio's loop itself; all
waiting is still AnyIO's.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from threading import get_ident
from weakref import WeakKeyDictionary

import anyio

Loop = asyncio.AbstractEventLoop


class Home:
    """An event loop and the thread that it runs in."""

    __slots__ = ("__weakref__", "loop", "thread")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.thread = get_ident()

    @staticmethod
    def here() -> "Home":
        """Return the home of the caller; the same object for all tasks of a loop."""
        loop = asyncio.get_running_loop()
        home = _HOMES.get(loop)
        if home is None:
            home = _HOMES[loop] = Home(loop)
        return home


def whereabouts() -> tuple[Loop, int]:
    """Return the caller's loop, and a number that tells its task from others that run now."""
    loop = asyncio.get_running_loop()
    return loop, id(asyncio.current_task(loop))


_HOMES: WeakKeyDictionary[Loop, Home] = WeakKeyDictionary()


class Signal:
    """A one-time wake-up for any number of waiters in one loop, set from any thread."""

    __slots__ = ("done", "home")

    def __init__(self, home: Home) -> None:
        self.home = home
        self.done = anyio.Event()

    def set(self) -> None:
        """Wake the waiters; a second time does nothing, nor does it once the loop is gone."""
        set_all([self])

    async def wait(self) -> None:
        """Wait until it is set."""
        await self.done.wait()


def set_all(signals: Iterable[Signal]) -> None:
    """Set all of `signals`, with one hop for each event loop."""
    elsewhere: dict[Home, list[anyio.Event]] = {}
    here = get_ident()
    for signal in signals:
        if signal.home.thread == here:
            signal.done.set()
        else:
            elsewhere.setdefault(signal.home, []).append(signal.done)
    for home, waiting in elsewhere.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            home.loop.call_soon_threadsafe(partial(_set_each, waiting))


def _set_each(waiting: Iterable[anyio.Event]) -> None:
    for done in waiting:
        done.set()
