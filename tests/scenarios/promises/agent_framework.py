"""A minimal agent framework, and a model provider on a real socket that it streams from.

The framework ends its work as LangGraph does: its node is a task, and another task cancels the
node. If the framework is cancelled a second time meanwhile, the node keeps running.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

CHUNK = b"5\r\nword \r\n"


class StreamingProvider:
    """A provider that streams without end, and sets `closed` when the client disconnects."""

    def __init__(self) -> None:
        self.port = 0
        self.streaming = anyio.Event()
        self.closed = anyio.Event()

    @asynccontextmanager
    async def listen(self) -> AsyncIterator["StreamingProvider"]:
        """Accept connections on a free port."""
        server = await asyncio.start_server(self._stream_reply, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _stream_reply(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK)
        await writer.drain()
        self.streaming.set()
        await reader.read()  # returns when the client disconnects
        self.closed.set()
        writer.close()


class AgentFramework:
    """Streams from a provider inside a task of its own."""

    def __init__(self, provider: StreamingProvider) -> None:
        self.nodes: list[asyncio.Task[None]] = []
        self._provider = provider

    async def run(self) -> None:
        """Run one node; on cancellation, end it in another task, and wait for that task."""
        node = asyncio.create_task(self._stream())  # noqa: TID251 - as frameworks do
        self.nodes.append(node)
        try:
            await asyncio.wait({node})
        finally:
            await asyncio.create_task(_cancel_and_wait(node))  # noqa: TID251 - as frameworks do

    async def _stream(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._provider.port)
        try:
            writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.read()
        finally:
            writer.close()


async def _cancel_and_wait(node: asyncio.Task[None]) -> None:
    node.cancel()
    await asyncio.wait({node})
