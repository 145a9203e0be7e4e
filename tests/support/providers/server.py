"""The fake provider itself: a small HTTP server in the test's own event loop.

One request per connection: a connection that the client closes is then a request that it gave
up, and nothing else.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio
import msgspec
from anyio.abc import AnyByteReceiveStream, ByteStream, SocketAttribute
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.support.providers.anthropic import MESSAGES
from tests.support.providers.chat import CHAT
from tests.support.providers.responses import RESPONSES
from tests.support.providers.script import Answer, Cut, Denied, Ended, Endless, Garbled, Gate
from tests.support.providers.wire import Frame, IdSource, Protocol

T = TypeVar("T")

PROTOCOLS: Final[Sequence[Protocol]] = (CHAT, RESPONSES, MESSAGES)
HEAD_MAX_BYTES: Final = 65_536
STREAM_HEADERS: Final = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
CLIENT_GONE_ERRORS: Final = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)


class Exchange:
    """A request as the provider saw it, and how its answer went."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, object]) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.sent = 0
        """How many deltas have been sent."""
        self.ended = False
        self.closed_midway = False
        """The client closed the connection before the answer was whole."""


class Provider:
    """Answers the n-th request with the n-th of `answers`, as long as the context is open.

    `url` is for Anthropic clients; those of OpenAI want `/v1` after it.
    """

    def __init__(self, *answers: Answer | Denied) -> None:
        self.url = ""
        self.exchanges: list[Exchange] = []
        self._answers = answers
        self._numbers = IdSource()
        self._stack = AsyncExitStack()
        self._changed = anyio.Event()

    async def __aenter__(self) -> Self:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - of anyio, not Django
        self.url = f"http://127.0.0.1:{port}"
        await self._stack.enter_async_context(listener)
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(tasks.cancel_scope.cancel)
        tasks.start_soon(listener.serve, self._serve)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        await self._stack.aclose()  # what went wrong in the test is not the server's to wrap

    async def request(self, n: int = 0) -> Exchange:
        """Wait for the n-th request, and return it."""
        return await self._wait_for(lambda: next(iter(self.exchanges[n : n + 1]), None))

    async def ended(self, n: int = 0) -> Exchange:
        """Wait until the answer to the n-th request has ended, in whichever way."""
        exchange = await self.request(n)
        return await self._wait_for(lambda: exchange if exchange.ended else None)

    async def closed_midway(self, n: int = 0) -> int:
        """Wait until the client gave up the n-th request; return how many deltas were sent."""
        exchange = await self.request(n)
        return await self._wait_for(lambda: exchange.sent if exchange.closed_midway else None)

    async def _wait_for(self, look: Callable[[], T | None]) -> T:
        while (found := look()) is None:
            await self._changed.wait()
        return found

    def _notify(self) -> None:
        news, self._changed = self._changed, anyio.Event()
        news.set()

    async def _serve(self, stream: ByteStream) -> None:
        async with stream:
            try:
                exchange = await _read_request(stream)
            except CLIENT_GONE_ERRORS:
                return
            self.exchanges.append(exchange)
            self._notify()
            try:
                await self._answer(stream, exchange, len(self.exchanges) - 1)
            except CLIENT_GONE_ERRORS:
                exchange.closed_midway = True
            finally:
                exchange.ended = True
                self._notify()

    async def _answer(self, stream: ByteStream, exchange: Exchange, n: int) -> None:
        protocol = next((p for p in PROTOCOLS if exchange.path.endswith(p.path)), CHAT)
        answer = self._answers[n] if n < len(self._answers) else _make_script_error(n)
        if isinstance(answer, Denied):
            body = msgspec.json.encode(protocol.refusal(answer))
            length = {"content-type": "application/json", "content-length": str(len(body))}
            await stream.send(_encode_head(answer.code, {**length, **answer.headers}) + body)
            return
        frames = protocol.frames(answer, str(exchange.body.get("model")), self._numbers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch_for_disconnect, stream, exchange, tasks.cancel_scope)
            try:
                await _send_frames(stream, exchange, answer, frames)
            except CLIENT_GONE_ERRORS:
                exchange.closed_midway = True
            tasks.cancel_scope.cancel()


async def _read_request(stream: AnyByteReceiveStream) -> Exchange:
    reader = BufferedByteReceiveStream(stream)
    head = (await reader.receive_until(b"\r\n\r\n", HEAD_MAX_BYTES)).decode()
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.receive_exactly(int(headers.get("content-length", "0")))
    path = first.split(" ")[1].partition("?")[0]
    return Exchange(path, headers, msgspec.json.decode(body, type=dict[str, object]))


async def _watch_for_disconnect(
    stream: ByteStream, exchange: Exchange, answering: anyio.CancelScope
) -> None:
    """Notice that the client has gone, also while there is nothing to send."""
    try:
        await stream.receive()
    except CLIENT_GONE_ERRORS:
        exchange.closed_midway = True
        answering.cancel()


async def _send_frames(
    stream: ByteStream, exchange: Exchange, answer: Answer, frames: Iterator[Frame]
) -> None:
    fault = answer.fault
    if isinstance(fault, Gate) and fault.after is None:
        await fault.pass_through()
    await stream.send(_encode_head(200, STREAM_HEADERS))
    for frame in frames:
        if isinstance(fault, Cut | Ended | Garbled | Gate) and fault.after == exchange.sent:
            if await _inject_fault(stream, fault, frame):
                return
            fault = None
        await _send_frame(stream, exchange, frame)
        while isinstance(fault, Endless) and frame.delta:
            await _send_frame(stream, exchange, frame)
    await stream.send(b"0\r\n\r\n")


async def _inject_fault(
    stream: ByteStream, fault: Cut | Ended | Garbled | Gate, frame: Frame
) -> bool:
    """Let the fault happen before `frame`, and tell whether the answer is over with it."""
    match fault:
        case Cut():
            return True
        case Ended():
            await stream.send(b"0\r\n\r\n")
            return True
        case Garbled():
            await stream.send(
                _encode_chunk(Frame(frame.data[: len(frame.data) // 2], frame.name))
            )
            return False
        case Gate():
            await fault.pass_through()
            return False


async def _send_frame(stream: ByteStream, exchange: Exchange, frame: Frame) -> None:
    await stream.send(_encode_chunk(frame))
    exchange.sent += frame.delta


def _encode_chunk(frame: Frame) -> bytes:
    data = frame.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _encode_head(code: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} As Scripted", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _make_script_error(n: int) -> Denied:
    return Denied(400, kind="script_ended", message=f"no answer is scripted for request {n}")
