"""Forward one model request to its provider, and read the reply while it arrives.

The stream is closed by leaving its context, at any moment: then the connection to the provider
is closed, too, so that it stops to generate. Errors become `ModelFailed`, and the driver
decides about retries. An error about the request itself is a reply: the process made the
request, and some clients shorten their history and ask again.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final, cast

import anyio
import msgspec
from httpx2 import AsyncClient, HTTPError, Response, Timeout, TimeoutException

from midrun.errors import ModelFailed
from midrun.hosts.upstream import KEY_VARIABLES, Upstream
from midrun.hosts.wire_protocols import (
    DONE_DATA,
    Fields,
    LiveReply,
    ReplyReader,
    WireEvent,
    WireProtocol,
)
from midrun.ports.model import Finished, Piece

CONNECT_TIMEOUT_S: Final = 30.0
STREAM_IDLE_TIMEOUT_S: Final = 120.0
"""Seconds to wait for the next bytes of a streamed reply."""

BODY_TIMEOUT_S: Final = 600.0
"""Seconds to wait for a reply that is not streamed: it comes when all of it is generated."""

CLOSE_TIMEOUT_S: Final = 5.0
"""Seconds to close a connection. A cancellation does not shorten them."""

REPLY_MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a reply on the wire. Its events repeat much that is joined before it is stored."""

ERROR_MAX_CHARS: Final = 500
FORWARDED_HEADER_PREFIXES: Final = ("anthropic-", "openai-", "x-stainless-", "user-agent")

FIRST_ERROR_STATUS: Final = 400
FIRST_SERVER_ERROR: Final = 500
TRANSIENT_STATUS: Final = {408: "timeout", 409: "server_error", 429: "rate_limited"}
CREDENTIAL_STATUS: Final = (401, 403)
"""Statuses about the key of the worker: the process can do nothing about it."""


class ModelRequest:
    """A model request of the hosted process, as it arrived."""

    def __init__(
        self, protocol: WireProtocol, body: Fields, headers: Mapping[str, str], query: str
    ) -> None:
        self.protocol = protocol
        self.body = body
        self.headers = headers
        self.query = query

    @property
    def model(self) -> str:
        """The name of the model."""
        return str(self.body.get("model", ""))

    @property
    def is_repeated(self) -> bool:
        """Whether the client says that it has sent the request before: SDKs count that."""
        return self.headers.get("x-stainless-retry-count", "0") != "0"


class UpstreamClient:
    """Sends model requests to the real providers, with the keys of the worker."""

    def __init__(self, http: AsyncClient, upstreams: Sequence[Upstream]) -> None:
        self._http = http
        self._upstreams = {upstream.provider: upstream for upstream in upstreams}

    def has_provider(self, protocol: WireProtocol) -> bool:
        """Tell whether requests of `protocol` can be forwarded."""
        return protocol.provider in self._upstreams

    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, body: Fields, live: LiveReply
    ) -> AsyncGenerator[AsyncIterator[Piece | Finished], None]:
        """Send `body` in place of the body of `request`; yield the stream of its reply.

        `live` gets its events, for the process.

        Raises:
            ModelFailed: The provider failed. It is also raised while the pieces are read.
        """
        is_stream = bool(body.get("stream"))
        upstream = self._upstreams[request.protocol.provider]
        query = f"?{request.query}" if request.query else ""
        built = self._http.build_request(
            "POST",
            f"{upstream.find_url()}{request.protocol.path}{query}",
            content=msgspec.json.encode(body),
            headers=_make_headers(upstream, request),
            timeout=Timeout(
                CONNECT_TIMEOUT_S, read=STREAM_IDLE_TIMEOUT_S if is_stream else BODY_TIMEOUT_S
            ),
        )
        try:
            response = await self._http.send(built, stream=True)
        except HTTPError as error:
            raise _make_failure(request.model, error, reply_started=False) from error
        try:
            async with aclosing(_read_response(request, response, live)) as pieces:
                yield pieces
        finally:
            # A pause cancels this task to stop the stream. Without the shield the close would
            # be cancelled as well, and the provider would continue.
            with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
                await response.aclose()


def _make_headers(upstream: Upstream, request: ModelRequest) -> dict[str, str]:
    headers = {
        name: value
        for name, value in request.headers.items()
        if name.startswith(FORWARDED_HEADER_PREFIXES)
    }
    headers["content-type"] = "application/json"
    key = upstream.find_key()
    if not key:
        detail = f"{KEY_VARIABLES[upstream.provider]} is not set for the worker"
        raise ModelFailed(request.model, "unauthorized", detail)
    if upstream.provider == "anthropic":
        headers.setdefault("anthropic-version", "2023-06-01")
        return {**headers, "x-api-key": key}
    return {**headers, "authorization": f"Bearer {key}"}


async def _read_response(
    request: ModelRequest, response: Response, live: LiveReply
) -> AsyncGenerator[Piece | Finished]:
    reader = ReplyReader()
    earlier = live.begin_attempt()
    try:
        if response.status_code >= FIRST_ERROR_STATUS:
            body = _decode(await _read_all(request.model, response))
            _raise_failure(request.model, response, body)
            reader.text.append(_find_message(body))
            yield Finished(reply=reader.make_reply(response.status_code, body))
            return
        if not response.is_success:  # a redirect, to a place that the worker does not know
            detail = f"status {response.status_code} is not a reply"
            raise ModelFailed(request.model, "server_error", detail)
        kind = response.headers.get("content-type", "")
        if not kind.startswith("text/event-stream"):
            body = msgspec.json.decode(await _read_all(request.model, response))
            request.protocol.read_body(cast("Fields", body), reader)
            yield Finished(
                reply=reader.make_reply(body=body), spent=reader.make_spend(request.model)
            )
            return
        reader.events = earlier
        async for event in _iterate_events(request.model, response):
            for piece in _read_event(request.protocol, event, live, reader):
                yield piece
            # An error inside of a stream that began well. The text so far stays with the failed
            # attempt.
            if reader.problem:
                raise ModelFailed(request.model, "server_error", reader.problem, transient=True)
    except HTTPError as error:
        raise _make_failure(request.model, error, reply_started=True) from error
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError) as error:
        detail = f"the provider sent something that is not in its protocol: {error!r}"
        raise ModelFailed(request.model, "broken_stream", detail, transient=True) from error
    if not reader.is_complete:
        detail = "the reply ended before it was complete"
        raise ModelFailed(request.model, "broken_stream", detail, transient=True)
    yield Finished(reply=reader.make_reply(), spent=reader.make_spend(request.model))


def _read_event(
    protocol: WireProtocol, event: WireEvent, live: LiveReply, reader: ReplyReader
) -> list[Piece]:
    """Give an event to the process and to the reader; return its pieces for watchers."""
    continued, count = live.add(event), len(reader.events)
    pieces = list(protocol.read_event(continued or event, reader))
    if continued is None:  # only its usage counts
        # It is the second beginning of a reply that continues an earlier attempt. Stored twice,
        # it would give the process two messages after a restart.
        del reader.events[count:]
    return pieces


async def _iterate_events(model: str, response: Response) -> AsyncGenerator[WireEvent]:
    """Yield the server-sent events of a response."""
    name, data = "", list[bytes]()
    async for line in _iterate_lines(model, response):
        if line.startswith(b"event:"):
            name = line.removeprefix(b"event:").strip().decode()
        elif line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").strip())
        elif not line and data:
            text = b"\n".join(data)
            is_end = text == DONE_DATA.encode()
            yield WireEvent(name, DONE_DATA if is_end else msgspec.json.decode(text))
            name, data = "", []


async def _iterate_lines(model: str, response: Response) -> AsyncGenerator[bytes]:
    # Not `aiter_lines`, which also splits at characters that JSON may contain as they are.
    rest, size = b"", 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > REPLY_MAX_BYTES:
            _refuse_size(model)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")


async def _read_all(model: str, response: Response) -> bytes:
    parts, size = list[bytes](), 0
    async for chunk in response.aiter_bytes():
        size += len(chunk)
        if size > REPLY_MAX_BYTES:
            _refuse_size(model)
        parts.append(chunk)
    return b"".join(parts)


def _refuse_size(model: str) -> None:
    detail = f"the reply is larger than {REPLY_MAX_BYTES} bytes; given up"
    raise ModelFailed(model, "broken_stream", detail)


def _decode(raw: bytes) -> object:
    try:
        return cast("object", msgspec.json.decode(raw))
    except msgspec.DecodeError:  # a proxy answers with HTML
        return {"error": {"message": raw[:ERROR_MAX_CHARS].decode(errors="replace")}}


def _find_message(body: object) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or body)[:ERROR_MAX_CHARS]


def _raise_failure(model: str, response: Response, body: object) -> None:
    """Raise `ModelFailed`, unless the error is about the request of the process."""
    status = response.status_code
    detail = f"status {status}: {_find_message(body)}"
    if status in CREDENTIAL_STATUS:
        raise ModelFailed(model, "unauthorized", detail)
    reason = "server_error" if status >= FIRST_SERVER_ERROR else TRANSIENT_STATUS.get(status)
    if reason is not None:
        wait = response.headers.get("retry-after", "")
        retry_after = float(wait) if wait.isdecimal() else None
        raise ModelFailed(model, reason, detail, transient=True, retry_after=retry_after)


def _make_failure(model: str, error: HTTPError, *, reply_started: bool) -> ModelFailed:
    detail = f"{type(error).__name__}: {error}"[:ERROR_MAX_CHARS]
    reason = "broken_stream" if reply_started else "connection"
    if isinstance(error, TimeoutException):
        reason = "timeout"
    return ModelFailed(model, reason, detail, transient=True)
