"""`HttpTransport`: requests to one server, repeated until they are answered.

A request that changes something carries an `Idempotency-Key`, the same in every attempt. The
server applies a key once and answers a repeat with the stored reply. So the transport can
repeat a request after any failure: a refused connection, a timeout, a lost reply, a 503. After
`patience` seconds without an answer it raises `ServerUnreachable` with the request id, with
which the caller can repeat the request later.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from inspect import signature
from logging import getLogger
from math import inf
from re import fullmatch
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Final
from urllib.parse import unquote

import anyio
import httpx2
import msgspec

from midrun import errors
from midrun.client.decode import decode_delta, decode_feed_entry
from midrun.core.ids import RunId
from midrun.core.retries import compute_backoff_s
from midrun.core.values import Actor
from midrun.errors import MidrunError, Misconfigured, ServerRefused, ServerUnreachable
from midrun.ports.environment import Environment
from midrun.runs.validation import ActorLike, parse_actor
from midrun.runs.values import FeedItem

# Errors: rebuild the exception that the server raised from its problem+json body.

_PROBLEM_TYPE_PREFIX: Final = "urn:midrun:problem:"
_ERROR_CLASSES: Final[Mapping[str, type[MidrunError]]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MidrunError)
    if signature(kind).parameters  # base classes are never raised
}


def make_error(url: str, status: int, body: bytes) -> MidrunError:
    """Return the exception for an error response; `ServerRefused` if it is not one of ours."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}  # not from our server: a proxy answered
    known = _ERROR_CLASSES.get(str(problem.get("code")))
    if known is not None:
        try:
            # The same class, with the same fields, as in the process of the server: code that
            # handles the errors of `Midrun` works unchanged with `connect`.
            return _rebuild_error(known, problem.get("args"))
        except (ValueError, msgspec.ValidationError):
            pass  # a newer server, whose error has other fields
    slug = str(problem.get("type", "")).removeprefix(_PROBLEM_TYPE_PREFIX).replace("-", "_")
    return ServerRefused(url, status, slug or "no_problem", str(problem.get("detail", "")))


def _rebuild_error(kind: type[MidrunError], args: object) -> MidrunError:
    # The server sends `error.args`, which are the fields of the error by position. JSON has
    # lost their types (a tuple came as a list), so convert each by its annotation.
    values = msgspec.convert(args, list[object])
    pairs = zip(values, signature(kind).parameters.values(), strict=True)
    return kind(*(msgspec.convert(value, field.annotation) for value, field in pairs))


READ_TIMEOUT_S: Final = 45.0
"""Seconds to wait for data. The server sends a comment on an idle stream every 15 seconds, so a
longer silence means that the connection is dead."""

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 2.0

NO_TLS_CONTEXT: Final = SSLContext(PROTOCOL_TLS_CLIENT)
"""The TLS context for `http://` servers. It is never used; without it, httpx2 would load all
certificate authorities of the system, which takes noticeable time."""

_HEADER_SAFE_PATTERN: Final = r"[!#-~]{1,200}"
"""Request ids that a header can hold unchanged: printable ASCII without space and quotes."""

_LOG: Final = getLogger("midrun.client")

_UNAVAILABLE_CODES: Final = frozenset({502, 503, 504})
_RATE_LIMITED: Final = "too_many_requests"


class HttpReply(msgspec.Struct, frozen=True, kw_only=True):
    """A successful response.

    `was_replayed` says that the server had applied the same idempotency key before.
    `reply_was_lost` says that an earlier attempt failed after it was sent, so the server may
    have applied it.
    """

    body: bytes
    was_replayed: bool
    reply_was_lost: bool
    media_type: str = ""
    file_name: str = ""  # of a response that is a file

    def json(self) -> dict[str, object]:
        """Decode the body."""
        return msgspec.json.decode(self.body, type=dict[str, object])


class Backoff:
    """Exponential backoff for a server that does not answer, with a total limit.

    The limit counts from the first failed attempt, not from the start of the request: a stream
    or a long poll may be silent for an hour before it fails.
    """

    def __init__(self, patience: float, environment: Environment) -> None:
        self._patience = patience
        self._random = environment.random_unit
        self.reset()

    def reset(self) -> None:
        """Start again with the shortest delay and the whole patience: the server answered."""
        self._deadline = inf
        self._attempts = 0

    async def wait(self, retry_after: float = 0.0) -> bool:
        """Sleep before the next attempt; return False at once if patience has run out.

        `retry_after` is the delay in seconds that the server asked for.
        """
        # The first failure after `reset` sets the deadline; later ones keep it.
        self._deadline = min(self._deadline, anyio.current_time() + self._patience)
        self._attempts += 1
        delay = compute_backoff_s(
            self._attempts, first_s=RETRY_FIRST_S, longest_s=RETRY_MAX_S, chance=self._random()
        )
        delay = max(delay, retry_after)
        # Do not sleep if the next attempt would come too late: the caller learns of it at once.
        if anyio.current_time() + delay > self._deadline:
            return False
        await anyio.sleep(delay)
        return True


class HttpTransport:
    """HTTP requests to one server with one token.

    `actor` is the owner of the token; the server tells it when the transport is opened. `http`
    sends the requests; None for a connection over the network.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        patience: float,
        environment: Environment,
        http: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        if not fullmatch(r"https?://[^/].*", self.url):
            raise Misconfigured("url", f"must be like http://host:8700, got {url!r}")
        self.actor = Actor()
        self.new_id = environment.make_id
        self.now = environment.clock
        self._environment = environment
        self._patience = patience
        self._http = http
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client_or_none: httpx2.AsyncClient | None = None
        self._is_outage_logged = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[None]:
        """Open the HTTP client while the context is open, and ask for the token's owner.

        Raises:
            ServerUnreachable: The server does not answer.
            ServerRefused: The token is not valid.
            Misconfigured: The URL is not valid.
        """
        # No limit of connections: each feed that is followed holds one for as long as its run
        # takes, and with a limit many feeds would block every control.
        timeout = httpx2.Timeout(READ_TIMEOUT_S, connect=max(self._patience, 1.0), pool=None)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
        try:
            client = httpx2.AsyncClient(
                base_url=self.url,
                headers=self._headers,
                timeout=timeout,
                limits=limits,
                transport=self._http,
                verify=NO_TLS_CONTEXT if self.url.startswith("http:") else True,
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise Misconfigured(f"url {self.url!r}", str(error)) from None
        async with client:
            self._client_or_none = client
            try:
                session = (await self.get("/v1/session")).json()
                self.actor = msgspec.convert(session, Actor)
                yield
            finally:
                self._client_or_none = None

    @property
    def _client(self) -> httpx2.AsyncClient:
        if self._client_or_none is None:
            problem = "Cannot use it: it is not open. Write `async with connect(…) as midrun:`."
            raise Misconfigured("connect", problem)
        return self._client_or_none

    def check_actor(self, actor: ActorLike) -> None:
        """Check that `actor` is the owner of the token, or None.

        Raises:
            Misconfigured: It is another actor.
        """
        if actor is not None and parse_actor(actor).name != self.actor.name:
            problem = (
                f"must be the owner of the token, {self.actor.name!r}, got "
                f"{parse_actor(actor).name!r}; leave it out"
            )
            raise Misconfigured("actor", problem)

    # ── requests ──────────────────────────────────────────────────────────────────────────

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, wait_s: int = 0
    ) -> HttpReply:
        """Send a GET request; the server may hold its answer for `wait_s` seconds.

        Raises:
            ServerUnreachable: The server did not answer in time.
            MidrunError: The error that the server responded with.
        """
        headers = {"Prefer": f"wait={wait_s}"} if wait_s else {}  # a long poll, RFC 7240
        return await self._send_with_retries(
            "GET", path, params=params, headers=headers, wait_s=wait_s
        )

    async def send_change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        request_id: str | None = None,
        if_match: str = "",
        params: Mapping[str, str] | None = None,
    ) -> HttpReply:
        """Send a request that changes something; the server applies it at most once.

        Raises:
            ServerUnreachable: The server did not answer in time. Whether it applied the request
                is not known; the error has the request id to repeat it with.
            MidrunError: The error that the server responded with; nothing was applied.
        """
        # One id for all attempts, made before the first one.
        request_id = request_id or self.new_id()
        headers = {"Idempotency-Key": make_idempotency_key(request_id)}
        if if_match:
            headers["If-Match"] = if_match
        content = None
        if method != "DELETE":
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode({} if body is None else body)
        try:
            return await self._send_with_retries(
                method, path, params=params, headers=headers, content=content
            )
        except ServerUnreachable as error:
            # Raised again with the request id, with which the caller can repeat it safely.
            raise ServerUnreachable(error.url, error.problem, request_id) from error

    async def _send_with_retries(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        content: bytes | None = None,
        wait_s: int = 0,
    ) -> HttpReply:
        """Send a request until it is answered; raise the last problem if patience runs out."""
        backoff, lost = Backoff(self._patience, self._environment), False
        timeout = httpx2.Timeout(
            READ_TIMEOUT_S + wait_s, connect=max(self._patience, 1.0), pool=None
        )
        while True:
            request = self._client.build_request(
                method, path, params=params, headers=headers, content=content, timeout=timeout
            )
            try:
                reply = await self._client.send(request)
            except httpx2.TransportError as error:
                problem: MidrunError = self.make_unreachable_error(error)
                # Without a connection nothing was sent. After any other failure the request
                # may have reached the server.
                lost = lost or not isinstance(error, httpx2.ConnectError)
                retry_after = 0.0
            else:
                # The server has answered, whatever the answer is: the next outage is a new one.
                self._is_outage_logged = False
                if reply.is_success:
                    replayed = reply.headers.get("idempotency-replayed") == "true"
                    disposition = reply.headers.get("content-disposition", "")
                    return HttpReply(
                        body=reply.content,
                        was_replayed=replayed,
                        reply_was_lost=lost,
                        media_type=reply.headers.get("content-type", ""),
                        file_name=unquote(disposition.partition("filename*=UTF-8''")[2]),
                    )
                problem = make_error(self.url, reply.status_code, reply.content)
                if not _is_temporary(reply.status_code, problem):
                    raise problem  # repeating the request would give the same answer
                retry_after = _parse_seconds(reply.headers.get("retry-after", ""))
            self.log_outage(problem)
            if not await backoff.wait(retry_after):
                raise problem

    def log_outage(self, problem: MidrunError) -> None:
        """Log the first failure since the server answered; the request is repeated."""
        if self._is_outage_logged or not isinstance(problem, ServerUnreachable):
            return
        self._is_outage_logged = True
        if self._patience:
            text = "Cannot reach server %s: %s. Trying again for %g s."
            _LOG.warning(text, problem.url, problem.problem, self._patience)

    def make_unreachable_error(self, error: Exception) -> ServerUnreachable:
        """Return the error to raise for a broken connection."""
        return ServerUnreachable(self.url, f"{type(error).__name__} {error}".strip())

    def make_backoff(self) -> Backoff:
        """Return a backoff with this transport's patience, for a reader of a stream."""
        return Backoff(self._patience, self._environment)

    @asynccontextmanager
    async def open_stream(self, path: str, after: int) -> AsyncIterator[httpx2.Response | None]:
        """Open a feed after a seq; give the response, or None if there is no more.

        Raises:
            httpx2.TransportError: The connection broke, possibly while it was read.
            MidrunError: The error that the server responded with.
        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        async with self._client.stream("GET", path, headers=headers) as reply:
            if reply.status_code in _UNAVAILABLE_CODES:
                # The caller retries transport errors, so make it look like one.
                raise httpx2.RemoteProtocolError(f"it answered {reply.status_code}")
            if not reply.is_success:
                raise make_error(self.url, reply.status_code, await reply.aread())
            self._is_outage_logged = False
            yield None if reply.status_code == httpx2.codes.NO_CONTENT else reply


def make_idempotency_key(request_id: str) -> str:
    """Return the `Idempotency-Key` for a request id; hash one that a header cannot hold."""
    if fullmatch(_HEADER_SAFE_PATTERN, request_id):
        return request_id
    return sha256(request_id.encode()).hexdigest()


def _is_temporary(status: int, problem: MidrunError) -> bool:
    """Tell whether an error response is temporary, so that the request may be repeated."""
    slow = isinstance(problem, ServerRefused) and problem.problem == _RATE_LIMITED
    return status in _UNAVAILABLE_CODES or slow


def _parse_seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdecimal() else 0.0


# Follow the feed of a run over HTTP, with server-sent events.
#
# When a connection breaks, the next one starts with the seq of the last entry received as
# `Last-Event-ID`, so that no entry is missed and none comes twice. If that seq is beyond the
# end of the journal (the server's store was restored from a backup), the server sends
# `stream.reset`, and then the whole journal from its first entry.

END_EVENT = "stream.end"
RESET_EVENT = "stream.reset"
DELTA_EVENTS = frozenset({"model.delta", "call.note", "call.not_responding"})


class SseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event. Only events that are journal entries have an `id`."""

    name: str
    id: str
    data: str


async def follow_feed(
    transport: HttpTransport, run: RunId, after: int
) -> AsyncGenerator[FeedItem, None]:
    """Yield the entries of `run` after `after`, and live deltas, until the run has ended.

    Raises:
        RunNotFound: The server has no such run.
        ServerUnreachable: The connection broke, and the server did not answer in time.
    """
    path, last, backoff = f"/v1/runs/{run}/events", after, transport.make_backoff()
    while True:
        problem: httpx2.TransportError | None = None
        try:
            async with transport.open_stream(path, last) as reply:
                if reply is None:  # the run has ended, and `last` is its last entry
                    return
                async for event in _parse_events(reply.aiter_bytes()):
                    backoff.reset()  # the server answers: the next break starts a new wait
                    if event.name == END_EVENT:
                        return
                    if event.name == RESET_EVENT:
                        last = 0
                    elif event.name in DELTA_EVENTS:
                        yield decode_delta(msgspec.json.decode(event.data))
                    elif event.id and int(event.id) > last:  # else it was received before
                        item = decode_feed_entry(msgspec.json.decode(event.data))
                        last = item.seq
                        yield item
        except httpx2.TransportError as error:
            problem = error
            transport.log_outage(transport.make_unreachable_error(error))
        # A stream that ends without `stream.end` was cut by the server or a proxy: reconnect.
        if not await backoff.wait():
            raise transport.make_unreachable_error(
                problem or EOFError("the stream ended before the run")
            )


async def _parse_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[SseEvent]:
    """Yield each complete event. An incomplete one at the end is dropped.

    It has not moved `last`, so the next connection gets it again.
    """
    buffer = b""
    async for chunk in chunks:
        *blocks, buffer = (buffer + chunk).split(b"\n\n")
        for block in blocks:
            fields = dict(_parse_fields(block.decode()))
            if "data" in fields:
                yield SseEvent(
                    name=fields.get("event", ""), id=fields.get("id", ""), data=fields["data"]
                )


def _parse_fields(block: str) -> Iterator[tuple[str, str]]:
    for line in block.split("\n"):
        name, colon, value = line.partition(":")
        if name and colon:
            yield name, value.removeprefix(" ")
