"""An agent framework in small, and a provider of models on a real socket that it streams from.

The framework ends its work as LangGraph does: the node at work is a task, and a task of its own
cancels it. A second cancellation in the middle of that leaves the node running.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

PART = b"5\r\nword \r\n"


class Provider:
    """A provider that streams for ever, and sees when its connection is closed."""

    def __init__(self) -> None:
        self.port = 0
        self.streaming = anyio.Event()
        self.closed = anyio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Provider"]:
        """Accept connections while open."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + PART)
        await writer.drain()
        self.streaming.set()
        await reader.read()  # the end of the connection, from the client's side
        self.closed.set()
        writer.close()


class Framework:
    """An agent framework that streams from a provider inside a task of its own."""

    def __init__(self, provider: Provider) -> None:
        self.nodes: list[asyncio.Task[None]] = []
        self._provider = provider

    async def run(self) -> None:
        """Run the one node; when cancelled, end it in a task, and wait for that task."""
        node = asyncio.create_task(self._stream())  # noqa: TID251 - as frameworks do
        self.nodes.append(node)
        try:
            await asyncio.wait({node})
        finally:
            await asyncio.create_task(_end(node))  # noqa: TID251 - as frameworks do

    async def _stream(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._provider.port)
        try:
            writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.read()
        finally:
            writer.close()


async def _end(node: asyncio.Task[None]) -> None:
    node.cancel()
    await asyncio.wait({node})
