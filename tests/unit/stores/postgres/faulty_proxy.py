"""A proxy before Postgres that drops connections, loses replies and stalls on demand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

SOCKET = ".s.PGSQL.5432"
WRITE = b'"lines":'
"""Bytes that only a write contains."""

READ_BYTES = 65_536


class Fault(Enum):
    """The fault to inject at the next write."""

    NONE = auto()
    DROP_WRITE = auto()  # the write never reaches the server
    LOSE_REPLY = auto()  # the write is committed, and its reply is lost


class FaultyProxy:
    """Forwards connections to the server and injects faults. It listens in `folder`."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self._server = server
        self.next_fault = Fault.NONE
        self.fault_count = 0
        self.before_lost_reply: Callable[[], Awaitable[None]] | None = None
        self._is_flowing = anyio.Event()
        self._is_flowing.set()
        self._task_groups: list[TaskGroup] = []
        self._connections: list[_Connection] = []

    def drop_silently(self) -> None:
        """Drop all further data of the current connections without closing them.

        A firewall that lost its table behaves this way. New connections work.
        """
        for connection in self._connections:
            connection.is_forgotten = True

    def stall(self) -> None:
        """Hold back all data until `flow` is called."""
        self._is_flowing = anyio.Event()

    def resume(self) -> None:
        """Forward all data again."""
        self._is_flowing.set()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until one side closes it or a fault ends it."""
        socket_path = self._server / SOCKET
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(socket_path)
        except OSError:
            writer.close()
            return
        connection = _Connection(self)
        self._connections.append(connection)
        try:
            async with anyio.create_task_group() as tasks:
                self._task_groups.append(tasks)
                tasks.start_soon(
                    forward_then_close,
                    connection.forward_requests(reader, server_writer),
                    tasks,
                )
                tasks.start_soon(
                    forward_then_close, connection.forward_replies(server_reader, writer), tasks
                )
        finally:
            self._task_groups.remove(tasks)
            self._connections.remove(connection)
            server_writer.transport.abort()
            writer.transport.abort()

    async def close(self) -> None:
        """Close all open connections."""
        for tasks in self._task_groups:
            tasks.cancel_scope.cancel()
        while self._task_groups:  # noqa: ASYNC110 - the cancelled groups remove themselves
            await anyio.sleep(0.001)

    async def wait_until_flowing(self) -> None:
        """Wait while the proxy is stalled."""
        await self._is_flowing.wait()


class _Connection:
    """One connection through the proxy."""

    def __init__(self, cutter: FaultyProxy) -> None:
        self._proxy = cutter
        self._loses_reply = False
        self.is_forgotten = False

    async def forward_requests(
        self, client: asyncio.StreamReader, server: asyncio.StreamWriter
    ) -> None:
        while data := await client.read(READ_BYTES):
            await self._proxy.wait_until_flowing()
            if self.is_forgotten:
                continue
            if WRITE in data and self._proxy.next_fault is not Fault.NONE:
                fault, self._proxy.next_fault = self._proxy.next_fault, Fault.NONE
                self._proxy.fault_count += 1
                if fault is Fault.DROP_WRITE:
                    return
                self._loses_reply = True
            server.write(data)

    async def forward_replies(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        while data := await server.read(READ_BYTES):
            await self._proxy.wait_until_flowing()
            if self.is_forgotten:
                continue
            if self._loses_reply:  # the server has replied, so it has committed
                if self._proxy.before_lost_reply is not None:
                    await self._proxy.before_lost_reply()
                return
            client.write(data)


async def forward_then_close(forward: Awaitable[None], tasks: TaskGroup) -> None:
    with suppress(OSError):
        await forward
    tasks.cancel_scope.cancel()


@asynccontextmanager
async def run_proxy(folder: Path, server: Path) -> AsyncIterator[FaultyProxy]:
    """Run a proxy that listens in `folder` and forwards to `server`."""
    # asyncio streams: AnyIO's streams for Unix sockets fail when they are cancelled.
    cutter = FaultyProxy(folder, server)
    async with await asyncio.start_unix_server(cutter.forward, folder / SOCKET):
        try:
            yield cutter
        finally:
            await cutter.close()
