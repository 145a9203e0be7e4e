"""Hops: how a thread tells an event loop that something is done, without waiting for it.

AnyIO can call into a loop from a thread, but only by blocking the thread until the loop has
answered. A writer thread that had to wait for a busy loop before it could commit the next group
would lose most of what grouping gains. So this one module asks the loop itself; AnyIO's own
token tells which loop that is.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Protocol, runtime_checkable

import anyio
from anyio.lowlevel import RunVar, current_token


@runtime_checkable
class _Loop(Protocol):
    """What asyncio's loops have for this; Trio's token calls the same thing `run_sync_soon`."""

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object: ...


class Home:
    """An event loop and the thread that it runs in."""

    def __init__(self) -> None:
        loop = current_token().native_token
        if not isinstance(loop, _Loop):
            raise TypeError("midrun's stores run on asyncio; start with anyio.run(...)")
        self.loop = loop
        self.thread = get_ident()

    @staticmethod
    def here() -> "Home":
        """Return the home of the caller; the same object for all tasks of a loop."""
        home = _HOME.get(None)
        if home is None:
            _HOME.set(home := Home())
        return home


_HOME: RunVar[Home] = RunVar("midrun-home")


class Signal:
    """A one-time wake-up for one waiter: made in its event loop, set from any thread."""

    __slots__ = ("done", "home")

    def __init__(self, home: Home) -> None:
        self.home = home
        self.done = anyio.Event()

    def set(self) -> None:
        """Wake the waiter; a second time does nothing, nor does it once the loop is gone."""
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
