"""A proxy before the server: it cuts, loses and stalls what goes through, when told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum, auto
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

SOCKET = ".s.PGSQL.5432"
WRITE = b'"lines":'
"""What only a write has in it."""

SIZE = 65_536


class Cut(Enum):
    """What becomes of the next write."""

    NONE = auto()
    BEFORE = auto()  # the server never hears of it
    AFTER = auto()  # it is committed, and its answer is lost


class Cutter:
    """Carries everything on, but for what it is told to cut. `folder` is where it listens."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder = folder
        self._server = server
        self.next = Cut.NONE
        self.cuts = 0
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self._flows = anyio.Event()
        self._flows.set()
        self._open: list[TaskGroup] = []
        self._connections: list[_Connection] = []

    def forget(self) -> None:
        """Let nothing more through of what is connected now, without a word to anybody.

        As a firewall does that has lost its table: whoever connects anew is carried.
        """
        for connection in self._connections:
            connection.forgotten = True

    def stall(self) -> None:
        """Let nothing through from now on, without a word to anybody."""
        self._flows = anyio.Event()

    def flow(self) -> None:
        """Let everything through again."""
        self._flows.set()

    async def carry(self, asks: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Carry one connection, until one of the three is gone or cuts it."""
        place = self._server / SOCKET
        try:
            their_answers, their_asks = await asyncio.open_unix_connection(place)
        except OSError:
            answers.close()
            return
        connection = _Connection(self)
        self._connections.append(connection)
        try:
            async with anyio.create_task_group() as tasks:
                self._open.append(tasks)
                tasks.start_soon(_then_cut, connection.asks(asks, their_asks), tasks)
                tasks.start_soon(_then_cut, connection.answers(their_answers, answers), tasks)
        finally:
            self._open.remove(tasks)
            self._connections.remove(connection)
            their_asks.transport.abort()
            answers.transport.abort()

    async def close(self) -> None:
        """Cut everything that is still open."""
        for tasks in self._open:
            tasks.cancel_scope.cancel()
        while self._open:  # noqa: ASYNC110 - they end by themselves now
            await anyio.sleep(0.001)

    async def through(self) -> None:
        """Wait while everything is stalled."""
        await self._flows.wait()


class _Connection:
    """One connection through the proxy; `losing` is whether its next answer is lost."""

    def __init__(self, cutter: Cutter) -> None:
        self._cutter = cutter
        self._losing = False
        self.forgotten = False

    async def asks(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(SIZE):
            await self._cutter.through()
            if self.forgotten:
                continue
            if WRITE in data and self._cutter.next is not Cut.NONE:
                cut, self._cutter.next = self._cutter.next, Cut.NONE
                self._cutter.cuts += 1
                if cut is Cut.BEFORE:
                    return
                self._losing = True
            server.write(data)

    async def answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(SIZE):
            await self._cutter.through()
            if self.forgotten:
                continue
            if self._losing:  # it has answered, so it has committed
                if self._cutter.meanwhile is not None:
                    await self._cutter.meanwhile()
                return
            client.write(data)


async def _then_cut(half: Awaitable[None], tasks: TaskGroup) -> None:
    with suppress(OSError):
        await half
    tasks.cancel_scope.cancel()


@asynccontextmanager
async def cutting(folder: Path, server: Path) -> AsyncIterator[Cutter]:
    """Give a proxy that listens in `folder` for what goes to `server`."""
    # Streams of asyncio: those of AnyIO for Unix sockets stumble over being cancelled.
    cutter = Cutter(folder, server)
    async with await asyncio.start_unix_server(cutter.carry, folder / SOCKET):
        try:
            yield cutter
        finally:
            await cutter.close()
