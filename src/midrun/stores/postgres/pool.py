"""Links: the connections that one event loop has to a server, a bounded number of them.

A server that restarts, or fails over, takes every link with it. What may be asked twice is
asked again on a new one, for as long as the caller's patience lasts.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, LiteralString, TypeVar

import anyio

from midrun.errors import StoreClosed
from midrun.ports.environment import boottime
from midrun.stores.postgres.connection import Address, Link, Lost, Rows, Values, unreachable
from midrun.stores.postgres.server_clock import StoreTime

T = TypeVar("T")

BACK_S: Final = 10.0
"""How long a server that went away is waited for."""

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 0.5


class Links:
    """At most `size` links, for the tasks of one event loop to share."""

    def __init__(
        self, address: Address, time: StoreTime, *, size: int, patience_s: float
    ) -> None:
        self.address = address
        self._time = time
        self._patience_s = patience_s
        self._size = size
        self._room = anyio.Semaphore(size)
        self._idle: list[Link] = []
        self._all: set[Link] = set()
        self._closed = False

    async def ask(
        self,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        """Return the answer to what may safely be asked twice.

        Raises:
            StoreUnreachable: nobody answered in time.
        """

        async def one(link: Link, _: int) -> Rows:
            return await link.ask(statement, values, prepare=prepare)

        return await self.insist(one)

    async def insist(self, ask: Callable[[Link, int], Awaitable[T]]) -> T:
        """Return what `ask` returns; it is given a link, and how often it was lost before.

        Raises:
            StoreUnreachable: nobody answered in time.
        """
        until, lost_ones, pause_s = boottime() + BACK_S, 0, 0.0
        while True:
            try:
                async with self.link() as link:
                    return await ask(link, lost_ones)
            except Lost as lost:
                if boottime() + pause_s > until:
                    raise unreachable(self.address, lost) from lost
            lost_ones += 1
            await anyio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, PAUSE_S), PAUSE_MAX_S)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """Give a link for a while.

        Raises:
            Lost: there is none to be had now.
        """
        async with self._room:
            if self._closed:
                raise StoreClosed(self.address.name)
            link = self._idle.pop() if self._idle else await self._made()
            try:
                yield link
            finally:
                if link.dropped or self._closed:
                    link.drop()
                    self._all.discard(link)
                    self._drop_idle()  # what happened to it has happened to them, most likely
                else:
                    self._idle.append(link)

    async def _made(self) -> Link:
        link = await Link.made(self.address, patience_s=self._patience_s)
        self._time.said(link.now)
        self._all.add(link)
        return link

    def _drop_idle(self) -> None:
        while self._idle:
            link = self._idle.pop()
            link.drop()
            self._all.discard(link)

    async def close(self) -> None:
        """Wait for the answers that are under way, then drop all links."""
        self._closed = True
        with anyio.move_on_after(self._patience_s, shield=True):
            for _ in range(self._size):
                await self._room.acquire()
        self.abandon()

    def abandon(self) -> None:
        """Drop all links, from whatever thread; the event loop that used them is gone."""
        self._closed = True
        for link in tuple(self._all):
            link.drop()
        self._idle.clear()
        self._all.clear()
