"""A proxy between client and server that drops replies, cuts connections, and goes down."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

CONNECTION_ENDED = (
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    OSError,
)


class Proxy:
    """Forwards bytes in both directions.

    `replies_to_drop` is the number of replies to drop, each after the server has handled the
    request. A connection is cut after `cut_after_bytes` bytes from the server, unless it is 0.
    While `is_up` is False, new connections are closed.
    """

    def __init__(self, server_port: int) -> None:
        self.replies_to_drop = 0
        self.dropped_replies = 0
        self.cut_after_bytes = 0
        self.connections = 0
        self.has_connection = anyio.Event()
        self.is_up = True
        self.port = 0
        self._server_port = server_port
        self._clients: set[SocketStream] = set()

    async def go_down(self) -> None:
        """Cut every connection, and accept no new one."""
        self.is_up = False
        for client in list(self._clients):
            await client.aclose()

    async def serve(self, client: SocketStream) -> None:
        """Forward one connection of a client."""
        self.connections += 1
        self.has_connection.set()
        async with client:
            if not self.is_up:
                return
            self._clients.add(client)
            try:
                server = await anyio.connect_tcp("127.0.0.1", self._server_port)
                async with server, anyio.create_task_group() as tasks:
                    tasks.start_soon(self._forward_requests, client, server)
                    with suppress(*CONNECTION_ENDED):
                        await self._forward_replies(server, client)
                    tasks.cancel_scope.cancel()
            finally:
                self._clients.discard(client)

    async def _forward_requests(self, client: ByteStream, server: ByteStream) -> None:
        with suppress(*CONNECTION_ENDED):
            while True:
                await server.send(await client.receive())

    async def _forward_replies(self, server: ByteStream, client: ByteStream) -> None:
        forwarded = 0
        while True:
            data = await server.receive()
            if self.replies_to_drop:
                self.replies_to_drop -= 1
                self.dropped_replies += 1
                return
            if self.cut_after_bytes and forwarded + len(data) >= self.cut_after_bytes:
                await client.send(data[: self.cut_after_bytes - forwarded])
                return
            forwarded += len(data)
            await client.send(data)


@asynccontextmanager
async def run_proxy(server_port: int) -> AsyncIterator[Proxy]:
    """Give a proxy in front of the server at that port."""
    proxy = Proxy(server_port)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    proxy.port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.serve)
        try:
            yield proxy
        finally:
            tasks.cancel_scope.cancel()
