"""The connections of one event loop to the server: a bounded pool with retries.

A server that restarts or fails over breaks every connection at once. A request that is safe to
send twice is sent again on a new connection, for up to `RECONNECT_MAX_S`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, LiteralString, TypeVar

import anyio

from midrun.errors import StoreClosed
from midrun.ports.platform import read_boot_clock
from midrun.stores.postgres.connection import (
    AnswerLost,
    PostgresAddress,
    PostgresConnection,
    Rows,
    ServerClock,
    Values,
    make_unreachable_error,
)

T = TypeVar("T")

RECONNECT_MAX_S: Final = 10.0
"""The longest time to wait for a server that has gone away."""

RETRY_PAUSE_S: Final = 0.05
RETRY_PAUSE_MAX_S: Final = 0.5


class ConnectionPool:
    """At most `size` connections that the tasks of one event loop share."""

    def __init__(
        self,
        address: PostgresAddress,
        server_clock: ServerClock,
        *,
        size: int,
        timeout_s: float,
    ) -> None:
        self.address = address
        self._server_clock = server_clock
        self._timeout_s = timeout_s
        self._size = size
        self._free_slots = anyio.Semaphore(size)
        self._idle: list[PostgresConnection] = []
        self._all: set[PostgresConnection] = set()
        self._closed = False

    async def execute(
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

        async def execute_once(connection: PostgresConnection, _: int) -> Rows:
            return await connection.execute(statement, values, prepare=prepare)

        return await self.run_with_retry(execute_once)

    async def run_with_retry(self, run: Callable[[PostgresConnection, int], Awaitable[T]]) -> T:
        """Call `run` with a connection; repeat it when the answer is lost.

        `run` gets the connection and the number of answers lost so far.

        Raises:
            StoreUnreachable: no answer in time.
        """
        # The first retry comes without a pause: most often only the idle connection was dead.
        deadline, lost_count, pause_s = read_boot_clock() + RECONNECT_MAX_S, 0, 0.0
        while True:
            try:
                async with self.borrow() as connection:
                    return await run(connection, lost_count)
            except AnswerLost as lost:
                if read_boot_clock() + pause_s > deadline:
                    raise make_unreachable_error(self.address, lost) from lost
            lost_count += 1
            await anyio.sleep(pause_s)
            pause_s = min(max(2 * pause_s, RETRY_PAUSE_S), RETRY_PAUSE_MAX_S)

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[PostgresConnection]:
        """Lend a connection for the duration of the context.

        Raises:
            AnswerLost: none can be made now.
        """
        async with self._free_slots:
            if self._closed:
                raise StoreClosed(self.address.name)
            connection = self._idle.pop() if self._idle else await self._connect()
            try:
                yield connection
            finally:
                if connection.closed or self._closed:
                    connection.close()
                    self._all.discard(connection)
                    # A restart breaks all connections. Without this, every idle one would
                    # cost its next user a lost answer.
                    self._close_idle()
                else:
                    self._idle.append(connection)

    async def _connect(self) -> PostgresConnection:
        connection = await PostgresConnection.connect(self.address, timeout_s=self._timeout_s)
        self._server_clock.observe(connection.connected_at)
        self._all.add(connection)
        return connection

    def _close_idle(self) -> None:
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            self._all.discard(connection)

    async def close(self) -> None:
        """Wait for the statements that are under way, then close all connections."""
        self._closed = True
        with anyio.move_on_after(self._timeout_s, shield=True):
            # Once all slots are taken here, no task uses a connection.
            for _ in range(self._size):
                await self._free_slots.acquire()
        self.close_at_once()

    def close_at_once(self) -> None:
        """Close all connections at once, from any thread; their event loop is gone."""
        self._closed = True
        for connection in tuple(self._all):
            connection.close()
        self._idle.clear()
        self._all.clear()
