"""Server-sent events: a response that a source writes until the stream ends.

The journal is the buffer. A stream holds at most one page of events and reads the next page
when the client has taken the first. A client that does not read for `Limits.patience` seconds
is disconnected; it resumes by `Last-Event-ID`. No other stream waits for it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import anyio
from anyio.lowlevel import checkpoint
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from midrun.server.request_context import RequestContext

SSE_MEDIA: Final = "text/event-stream"


class SseWriter:
    """Writes to one client; ends the stream of a client that does not read."""

    def __init__(self, send: Send, timeout_s: float, stream_scope: anyio.CancelScope) -> None:
        self._send = send
        self._timeout_s = timeout_s
        self._stream_scope = stream_scope
        self._write_lock = anyio.Lock()  # the source and the pings write from two tasks
        self.wrote_at = anyio.current_time()

    async def write(self, data: bytes) -> None:
        """Write `data` unless it is empty; wait until the client can take more.

        If the client does not read in time, the stream is cancelled, this call included.
        """
        if not data:
            return
        async with self._write_lock:
            with anyio.move_on_after(self._timeout_s) as waiting:
                await self._send(_body_message(data, more=True))
            if waiting.cancelled_caught:
                self._stream_scope.cancel()
                await checkpoint()  # raises the cancellation here: nothing more is written
            self.wrote_at = anyio.current_time()

    async def wait_gap(self, gap_s: float) -> None:
        """Sleep until `gap_s` seconds after the last write: a burst is then sent together."""
        await anyio.sleep(max(self.wrote_at + gap_s - anyio.current_time(), 0))


StreamSource: TypeAlias = Callable[[SseWriter], Awaitable[None]]
"""Writes the body of a stream; the stream ends when it returns."""


class SseResponse(Response):
    """A response of server-sent events that `source` writes.

    It ends when the source returns, the client disconnects, the server stops, or the caller's
    credential is no longer valid. The run is not affected.

    Raises:
        HttpProblem: 429, the caller has too many streams.
    """

    def __init__(self, context: RequestContext, source: StreamSource) -> None:
        # Checked here and not in `__call__`: a refusal must come before the headers are sent.
        context.server.allowance.check_stream(context.actor.name)
        # The header keeps nginx from buffering the stream.
        super().__init__(headers={"X-Accel-Buffering": "no"}, media_type=SSE_MEDIA)
        del self.headers["content-length"]  # Starlette sets it to the length of an empty body
        self._context = context
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the headers, then run the source beside the tasks that can end the stream."""
        del scope
        server, caller = self._context.server, self._context.caller
        status, headers = self.status_code, self.raw_headers
        await send({"type": "http.response.start", "status": status, "headers": headers})
        with server.allowance.count_stream(caller.actor.name):
            async with anyio.create_task_group() as tasks:
                writer = SseWriter(send, server.limits.patience, tasks.cancel_scope)

                # The first of these functions to return ends the stream for all.
                async def cancel_after(wait: Callable[[], Awaitable[object]]) -> None:
                    await wait()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(cancel_after, partial(_wait_for_disconnect, receive))
                tasks.start_soon(cancel_after, self._context.wait_until_stopping)
                if caller.session is not None:
                    tasks.start_soon(cancel_after, caller.session.ended.wait)
                tasks.start_soon(cancel_after, partial(self._send_pings, writer))
                tasks.start_soon(cancel_after, partial(self._source, writer))
        # The last chunk ends the response in order. A client that does not read must not hold
        # this task, so the write has a bound, too.
        with anyio.move_on_after(server.limits.patience):
            await send(_body_message(b"", more=False))

    async def _send_pings(self, writer: SseWriter) -> None:
        """Ping an idle stream; return when the caller's credential is no longer valid."""
        server = self._context.server
        # The comment line keeps proxies from closing an idle connection, and lets a client
        # notice a dead one. The credential is checked at the same interval.
        while True:
            await anyio.sleep(server.limits.ping)
            if not await self._context.caller.has_valid_credential(server):
                return
            if anyio.current_time() - writer.wrote_at >= server.limits.ping:
                await writer.write(b": ping\n\n")


def _body_message(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _wait_for_disconnect(receive: Receive) -> None:
    # A request body that was not read comes first, and is skipped.
    while (await receive())["type"] != "http.disconnect":
        pass
