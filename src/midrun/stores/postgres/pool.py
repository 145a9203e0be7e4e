"""The connections of one event loop to the server: a bounded pool with retries.

A server that restarts or fails over breaks every connection at once. A request that is safe to
send twice is sent again on a new connection, for up to `RECONNECT_MAX_S`.
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
"""The longest time to wait for a server that has gone away."""

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 0.5


class Links:
    """At most `size` connections that the tasks of one event loop share."""

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
        """Execute a statement that is safe to repeat; return its rows.

        Raises:
            StoreUnreachable: no answer in time.
        """

        async def execute_once(connection: Link, _: int) -> Rows:
            return await connection.ask(statement, values, prepare=prepare)

        return await self.insist(execute_once)

    async def insist(self, ask: Callable[[Link, int], Awaitable[T]]) -> T:
        """Call `run` with a connection; repeat it when the answer is lost.

        `run` gets the connection and the number of answers lost so far.

        Raises:
            StoreUnreachable: no answer in time.
        """
        # The first retry comes without a pause: most often only the idle connection was dead.
        deadline, lost_count, pause_s = boottime() + BACK_S, 0, 0.0
        while True:
            try:
                async with self.link() as connection:
                    return await ask(connection, lost_count)
            except Lost as lost:
                if boottime() + pause_s > deadline:
                    raise unreachable(self.address, lost) from lost
            lost_count += 1
            await anyio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, PAUSE_S), PAUSE_MAX_S)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """Lend a connection for the duration of the context.

        Raises:
            AnswerLost: none can be made now.
        """
        async with self._room:
            if self._closed:
                raise StoreClosed(self.address.name)
            connection = self._idle.pop() if self._idle else await self._made()
            try:
                yield connection
            finally:
                if connection.dropped or self._closed:
                    connection.drop()
                    self._all.discard(connection)
                    # A restart breaks all connections. Without this, every idle one would
                    # cost its next user a lost answer.
                    self._drop_idle()
                else:
                    self._idle.append(connection)

    async def _made(self) -> Link:
        connection = await Link.made(self.address, patience_s=self._patience_s)
        self._time.said(connection.now)
        self._all.add(connection)
        return connection

    def _drop_idle(self) -> None:
        while self._idle:
            connection = self._idle.pop()
            connection.drop()
            self._all.discard(connection)

    async def close(self) -> None:
        """Wait for the statements that are under way, then close all connections."""
        self._closed = True
        with anyio.move_on_after(self._patience_s, shield=True):
            # Once all slots are taken here, no task uses a connection.
            for _ in range(self._size):
                await self._room.acquire()
        self.abandon()

    def abandon(self) -> None:
        """Close all connections at once, from any thread; their event loop is gone."""
        self._closed = True
        for connection in tuple(self._all):
            connection.drop()
        self._idle.clear()
        self._all.clear()
