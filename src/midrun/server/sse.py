"""Streams: responses that go on for as long as somebody listens.

The journal is the buffer. A stream holds one page of events and no more, and reads on when its
consumer has taken them; one that does not read at all is given up after a while, and finds
everything again by `Last-Event-ID`. Nobody else waits for it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from midrun.server.request_context import Visit

SSE: Final = "text/event-stream"


class Writer:
    """Writes to one consumer; gives up on one that does not read."""

    def __init__(self, send: Send, patience: float, stream: anyio.CancelScope) -> None:
        self._send = send
        self._patience = patience
        self._stream = stream
        self._turn = anyio.Lock()  # events and pings come from two tasks
        self.wrote_at = anyio.current_time()

    async def write(self, data: bytes) -> None:
        """Write, if there is anything, and wait until there is room for more.

        Where a consumer does not read, its stream is cancelled, and this with it.
        """
        if not data:
            return
        async with self._turn:
            with anyio.move_on_after(self._patience) as waiting:
                await self._send(_part(data, more=True))
            if waiting.cancelled_caught:
                self._stream.cancel()
                await checkpoint()
            self.wrote_at = anyio.current_time()

    async def breath(self, gap: float) -> None:
        """Let more come together before the next write: the first of a burst is out at once."""
        await anyio.sleep(max(self.wrote_at + gap - anyio.current_time(), 0))


Source: TypeAlias = Callable[[Writer], Awaitable[None]]
"""Writes what there is to write; the stream ends when it returns."""


class Stream(Response):
    """A response that `source` writes.

    It ends with its source, with the server, with the caller's right to listen, and when the
    caller is gone; the run it tells of does not notice.

    Raises:
        Problem: 429, the caller has too many.
    """

    def __init__(self, context: Visit, source: Source) -> None:
        context.lobby.allowance.check_stream(context.actor.name)
        super().__init__(headers={"X-Accel-Buffering": "no"}, media_type=SSE)
        del self.headers["content-length"]
        self._visit = context
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until it is over."""
        del scope
        server, caller = self._visit.lobby, self._visit.caller
        status, headers = self.status_code, self.raw_headers
        await send({"type": "http.response.start", "status": status, "headers": headers})
        with server.allowance.stream(caller.actor.name):
            async with anyio.create_task_group() as tasks:
                writer = Writer(send, server.limits.patience, tasks.cancel_scope)

                async def until(over: Callable[[], Awaitable[object]]) -> None:
                    await over()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(until, partial(_gone, receive))
                tasks.start_soon(until, self._visit.over)
                if caller.session is not None:
                    tasks.start_soon(until, caller.session.ended.wait)
                tasks.start_soon(until, partial(self._pinged, writer))
                tasks.start_soon(until, partial(self._source, writer))
        with anyio.move_on_after(server.limits.patience):
            await send(_part(b"", more=False))

    async def _pinged(self, writer: Writer) -> None:
        """Show signs of life for as long as the caller may listen."""
        server = self._visit.lobby
        while True:
            await anyio.sleep(server.limits.ping)
            if not await self._visit.caller.holds(server):
                return
            if anyio.current_time() - writer.wrote_at >= server.limits.ping:
                await writer.write(b": ping\n\n")


def _part(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
