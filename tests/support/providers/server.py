"""The fake provider: a small HTTP server in the event loop of the test.

There is one request per connection. So a connection that the client closes early is a request
that it has given up.
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
from tests.support.providers.gemini import GENERATE
from tests.support.providers.openai import CHAT, RESPONSES
from tests.support.providers.script import (
    Answer,
    ConnectionCut,
    EarlyEnd,
    EndlessText,
    Gate,
    HttpError,
    MalformedChunk,
)
from tests.support.providers.wire import Frame, IdSource, Protocol

T = TypeVar("T")

PROTOCOLS: Final[Sequence[Protocol]] = (CHAT, RESPONSES, MESSAGES, GENERATE)
HEAD_MAX_BYTES: Final = 65_536
STREAM_HEADERS: Final = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
CLIENT_GONE_ERRORS: Final = (
    anyio.EndOfStream,
    anyio.IncompleteRead,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)


class Exchange:
    """A request that the provider received, and the progress of its answer."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, object]) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.sent_deltas = 0
        """The number of deltas that were sent."""
        self.has_ended = False
        self.client_disconnected = False
        """Whether the client closed the connection before the end of the answer."""


class Provider:
    """Answers the n-th request with the n-th of `answers`, while the context is open.

    `url` is for Anthropic and Gemini clients; OpenAI clients need `/v1` after it.
    """

    def __init__(self, *answers: Answer | HttpError) -> None:
        self.url = ""
        self.exchanges: list[Exchange] = []
        self._answers = answers
        self._ids = IdSource()
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
        await self._stack.aclose()  # without the test's error: a task group would wrap it

    async def wait_for_request(self, n: int = 0) -> Exchange:
        """Wait for the n-th request, and return it."""
        return await self._wait_for(lambda: next(iter(self.exchanges[n : n + 1]), None))

    async def wait_for_end(self, n: int = 0) -> Exchange:
        """Wait until the answer to the n-th request has ended, also by a fault."""
        exchange = await self.wait_for_request(n)
        return await self._wait_for(lambda: exchange if exchange.has_ended else None)

    async def wait_for_disconnect(self, n: int = 0) -> int:
        """Wait until the client gave up the n-th request; return the number of sent deltas."""
        exchange = await self.wait_for_request(n)
        return await self._wait_for(
            lambda: exchange.sent_deltas if exchange.client_disconnected else None
        )

    async def _wait_for(self, find: Callable[[], T | None]) -> T:
        while (found := find()) is None:
            await self._changed.wait()
        return found

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

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
                exchange.client_disconnected = True
            finally:
                exchange.has_ended = True
                self._notify()

    async def _answer(self, stream: ByteStream, exchange: Exchange, n: int) -> None:
        protocol = next((p for p in PROTOCOLS if exchange.path.endswith(p.path)), CHAT)
        answer = self._answers[n] if n < len(self._answers) else _make_script_error(n)
        if isinstance(answer, HttpError):
            body = msgspec.json.encode(protocol.refusal(answer))
            length = {"content-type": "application/json", "content-length": str(len(body))}
            await stream.send(_encode_head(answer.status, {**length, **answer.headers}) + body)
            return
        in_path = exchange.path.rpartition("/")[2].partition(":")[0]  # as Gemini has it
        model = str(exchange.body.get("model", in_path))
        frames = protocol.frames(answer, model, self._ids)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch_for_disconnect, stream, exchange, tasks.cancel_scope)
            try:
                await _send_frames(stream, exchange, answer, frames)
            except CLIENT_GONE_ERRORS:
                exchange.client_disconnected = True
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
    stream: ByteStream, exchange: Exchange, scope: anyio.CancelScope
) -> None:
    """Cancel the answer when the client disconnects, also while nothing is sent."""
    try:
        await stream.receive()
    except CLIENT_GONE_ERRORS:
        exchange.client_disconnected = True
        scope.cancel()


async def _send_frames(
    stream: ByteStream, exchange: Exchange, answer: Answer, frames: Iterator[Frame]
) -> None:
    fault = answer.fault
    if isinstance(fault, Gate) and fault.after is None:
        await fault.pass_through()
    await stream.send(_encode_head(200, STREAM_HEADERS))
    for frame in frames:
        if (
            isinstance(fault, ConnectionCut | EarlyEnd | MalformedChunk | Gate)
            and fault.after == exchange.sent_deltas
        ):
            if await _inject_fault(stream, fault, frame):
                return
            fault = None
        await _send_frame(stream, exchange, frame)
        while isinstance(fault, EndlessText) and frame.delta:
            await _send_frame(stream, exchange, frame)
    await stream.send(b"0\r\n\r\n")


async def _inject_fault(
    stream: ByteStream, fault: ConnectionCut | EarlyEnd | MalformedChunk | Gate, frame: Frame
) -> bool:
    """Inject the fault before `frame`; return whether it ends the answer."""
    match fault:
        case ConnectionCut():
            return True
        case EarlyEnd():
            await stream.send(b"0\r\n\r\n")
            return True
        case MalformedChunk():
            await stream.send(
                _encode_chunk(Frame(frame.data[: len(frame.data) // 2], frame.name))
            )
            return False
        case Gate():
            await fault.pass_through()
            return False


async def _send_frame(stream: ByteStream, exchange: Exchange, frame: Frame) -> None:
    await stream.send(_encode_chunk(frame))
    exchange.sent_deltas += frame.delta


def _encode_chunk(frame: Frame) -> bytes:
    data = frame.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


def _encode_head(code: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {code} As Scripted", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def _make_script_error(n: int) -> HttpError:
    return HttpError(400, kind="script_ended", message=f"no answer is scripted for request {n}")
