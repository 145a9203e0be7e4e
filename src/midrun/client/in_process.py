"""`InProcessTransport`: requests of the client to an ASGI app in the same process, streamed.

Each request is a task that calls the app. The transport of httpx2 for ASGI apps waits for the
whole response, and a feed would never arrive; here the body is read chunk by chunk. If the
reader closes a response early, the app's task is cancelled, as at the end of a connection.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self, TypeAlias

import anyio
import httpx2

Message: TypeAlias = MutableMapping[str, Any]  # type: ignore[explicit-any]  # as ASGI defines it
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


class InProcessTransport(httpx2.AsyncBaseTransport):
    """Serves the requests of a client with `app`; `scope` has the facts of the connection."""

    def __init__(self, app: AsgiApp, scope: Message) -> None:
        self._app = app
        self._scope = scope
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._tasks.cancel_scope.cancel()
        # Without the caller's exception: the task group would wrap it.
        await self._tasks.__aexit__(None, None, None)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Start the request, and return the response when its headers have come.

        Raises:
            httpx2.RemoteProtocolError: The app ended without a response.
        """
        exchange = Exchange(await request.aread())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            **self._scope,
            "method": request.method,
            "path": request.url.path,
            "raw_path": request.url.raw_path.partition(b"?")[0],
            "query_string": request.url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
        }
        self._tasks.start_soon(exchange.call_app, self._app, scope)
        try:
            start = await exchange.wait_for_start()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx2.Response(start["status"], headers=start["headers"], stream=exchange)


class Exchange(httpx2.AsyncByteStream):
    """One request and its response; the client reads the body from it."""

    def __init__(self, body: bytes) -> None:
        self.scope = anyio.CancelScope()
        self._incoming: list[Message] = [
            {"type": "http.request", "body": body, "more_body": False}
        ]
        # Without a buffer: an app that writes faster than the client reads has to wait.
        self._outgoing, self._messages = anyio.create_memory_object_stream[Message](0)

    async def call_app(self, app: AsgiApp, scope: Message) -> None:
        """Call the app until it is done, or nothing reads its response any more."""
        with self.scope, self._outgoing:
            await app(scope, self._receive, self._send)

    async def _send(self, message: Message) -> None:
        try:
            await self._outgoing.send(message)
        except anyio.BrokenResourceError:
            # `aclose` has closed the other end, and cancels this task now.
            await anyio.sleep_forever()

    async def _receive(self) -> Message:
        if not self._incoming:
            await anyio.sleep_forever()  # a disconnect is a cancellation here
        return self._incoming.pop()

    async def wait_for_start(self) -> Message:
        """Return the message with the status and the headers."""
        try:
            return await self._messages.receive()
        except anyio.EndOfStream:
            raise httpx2.RemoteProtocolError("the app ended without a response") from None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the chunks of the body."""
        async for message in self._messages:
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    async def aclose(self) -> None:
        """End the request; the app's task is cancelled if it still runs."""
        self._messages.close()
        self.scope.cancel()
