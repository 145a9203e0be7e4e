"""A proxy between client and server that loses replies, cuts streams, and goes away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import ByteStream, SocketAttribute, SocketStream

GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class Proxy:
    """Passes bytes on, unless it is told not to.

    `lose` is how many replies to drop, each after the server has done what it replies to.
    `cut_after` is after how many bytes of the server's a connection is cut; 0 is never.
    `up` says whether anybody is let through.
    """

    def __init__(self, server: int) -> None:
        self.lose = 0
        self.lost = 0
        self.cut_after = 0
        self.connections = 0
        self.knocked = anyio.Event()
        self.up = True
        self.port = 0
        self._server = server
        self._open: set[SocketStream] = set()

    async def down(self) -> None:
        """Go away: cut every connection, and take no new one."""
        self.up = False
        for stream in list(self._open):
            await stream.aclose()

    async def serve(self, client: SocketStream) -> None:
        """Stand between one client and the server."""
        self.connections += 1
        self.knocked.set()
        async with client:
            if not self.up:
                return
            self._open.add(client)
            try:
                server = await anyio.connect_tcp("127.0.0.1", self._server)
                async with server, anyio.create_task_group() as tasks:
                    tasks.start_soon(self._upwards, client, server)
                    with suppress(*GONE):
                        await self._downwards(server, client)
                    tasks.cancel_scope.cancel()
            finally:
                self._open.discard(client)

    async def _upwards(self, client: ByteStream, server: ByteStream) -> None:
        with suppress(*GONE):
            while True:
                await server.send(await client.receive())

    async def _downwards(self, server: ByteStream, client: ByteStream) -> None:
        passed = 0
        while True:
            data = await server.receive()
            if self.lose:
                self.lose -= 1
                self.lost += 1
                return
            if self.cut_after and passed + len(data) >= self.cut_after:
                await client.send(data[: self.cut_after - passed])
                return
            passed += len(data)
            await client.send(data)


@asynccontextmanager
async def proxied(server: int) -> AsyncIterator[Proxy]:
    """Give a proxy in front of the server at that port."""
    proxy = Proxy(server)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    proxy.port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, proxy.serve)
        try:
            yield proxy
        finally:
            tasks.cancel_scope.cancel()
