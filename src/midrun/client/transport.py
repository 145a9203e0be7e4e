"""`HttpTransport`: requests to one server, repeated until they are answered.

A request that changes something carries an `Idempotency-Key`, the same in every attempt. The
server applies a key once and answers a repeat with the stored reply. So the transport can
repeat a request after any failure: a refused connection, a timeout, a lost reply, a 503. After
`patience` seconds without an answer it raises `ServerUnreachable` with the request id, with
which the caller can repeat the request later.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from inspect import signature
from math import inf
from re import fullmatch
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Final, get_type_hints
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec

from midrun import errors
from midrun.core.retries import doubled
from midrun.core.values import Actor
from midrun.errors import MidrunError, Misconfigured, ServerRefused, ServerUnreachable
from midrun.ports.environment import Outside
from midrun.runs.validation import Who, actor_of

# Errors: rebuild the exception that the server raised from its problem+json body.

_PREFIX: Final = "urn:midrun:problem:"
_ERRORS: Final[Mapping[str, type[MidrunError]]] = {
    kind.code: kind
    for name in errors.__all__
    for kind in [getattr(errors, name)]
    if "__init__" in vars(kind)  # base classes are never raised
}


def refusal(url: str, status: int, body: bytes) -> MidrunError:
    """Return the exception for an error response; `ServerRefused` if it is not one of ours."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}  # not from our server: a proxy answered
    known = _ERRORS.get(str(problem.get("code")))
    if known is not None:
        try:
            return _made(known, problem.get("args"))
        except (ValueError, msgspec.ValidationError):
            pass  # a newer server, whose error has other fields
    slug = str(problem.get("type", "")).removeprefix(_PREFIX).replace("-", "_")
    return ServerRefused(url, status, slug or "no_problem", str(problem.get("detail", "")))


def _made(kind: type[MidrunError], args: object) -> MidrunError:
    # The server sends `error.args`, which are the arguments of `__init__` by position. JSON has
    # lost their types (a tuple came as a list), so convert each by its annotation.
    values = msgspec.convert(args, list[object])
    hints = get_type_hints(kind.__init__)
    names = list(signature(kind.__init__).parameters)[1:]
    pairs = zip(values, (hints[name] for name in names), strict=True)
    return kind(*(msgspec.convert(value, hint) for value, hint in pairs))


READ_S: Final = 45.0
"""Seconds to wait for data. The server sends a comment on an idle stream every 15 seconds, so a
longer silence means that the connection is dead."""

FIRST_S: Final = 0.05
LONGEST_S: Final = 2.0

NO_TLS: Final = SSLContext(PROTOCOL_TLS_CLIENT)
"""The TLS context for `http://` servers. It is never used; without it, httpx2 would load all
certificate authorities of the system, which takes noticeable time."""

_KEY: Final = r"[!#-~]{1,200}"
"""Request ids that a header can hold unchanged: printable ASCII without space and quotes."""

_AWAY: Final = frozenset({502, 503, 504})
_SLOW_DOWN: Final = "too_many_requests"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A successful response.

    `replayed` says that the server had applied the same idempotency key before. `lost` says
    that an earlier attempt failed after it was sent, so the server may have applied it.
    """

    body: bytes
    replayed: bool
    lost: bool

    def json(self) -> dict[str, object]:
        """Decode the body."""
        return msgspec.json.decode(self.body, type=dict[str, object])


class Away:
    """Exponential backoff for a server that does not answer, with a total limit.

    The limit counts from the first failed attempt, not from the start of the request: a stream
    or a long poll may be silent for an hour before it fails.
    """

    def __init__(self, patience: float, outside: Outside) -> None:
        self._patience = patience
        self._chance = outside.chance
        self.back()

    def back(self) -> None:
        """Start again with the shortest delay and the whole patience: the server answered."""
        self._until = inf
        self._tries = 0

    async def waited(self, asked: float = 0.0) -> bool:
        """Sleep before the next attempt; return False at once if patience has run out.

        `retry_after` is the delay in seconds that the server asked for.
        """
        # The first failure after `reset` sets the deadline; later ones keep it.
        self._until = min(self._until, anyio.current_time() + self._patience)
        self._tries += 1
        delay = doubled(self._tries, first=FIRST_S, longest=LONGEST_S, chance=self._chance())
        delay = max(delay, asked)
        if anyio.current_time() + delay > self._until:
            return False
        await anyio.sleep(delay)
        return True


class Link:
    """HTTP requests to one server with one token.

    `actor` is the owner of the token; the server tells it when the transport is opened.
    """

    def __init__(self, url: str, token: str | None, patience: float, outside: Outside) -> None:
        self.url = url.rstrip("/")
        self.me = Actor()
        self.new_id = outside.ids
        self.now = outside.clock
        self._outside = outside
        self._patience = patience
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._open: httpx2.AsyncClient | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the HTTP client while the context is open, and ask for the token's owner.

        Raises:
            ServerUnreachable: The server does not answer.
            ServerRefused: The token is not valid.
            Misconfigured: The URL is not valid.
        """
        # No limit of connections: each feed that is followed holds one for as long as its run
        # takes, and with a limit many feeds would block every control.
        timeout = httpx2.Timeout(READ_S, connect=max(self._patience, 1.0), pool=None)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
        try:
            client = httpx2.AsyncClient(
                base_url=self.url,
                headers=self._headers,
                timeout=timeout,
                limits=limits,
                verify=NO_TLS if urlsplit(self.url).scheme == "http" else True,
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise Misconfigured(f"url {self.url!r}", str(error)) from None
        async with client:
            self._open = client
            try:
                session = (await self.get("/v1/session")).json()
                self.me = msgspec.convert(session, Actor)
                yield
            finally:
                self._open = None

    @property
    def _http(self) -> httpx2.AsyncClient:
        if self._open is None:
            problem = "Cannot use it: it is not open. Write `async with connect(…) as midrun:`."
            raise Misconfigured("connect", problem)
        return self._open

    def check_actor(self, who: Who) -> None:
        """Check that `actor` is the owner of the token, or None.

        Raises:
            Misconfigured: It is another actor.
        """
        if who is not None and actor_of(who).name != self.me.name:
            problem = (
                f"must be the owner of the token, {self.me.name!r}, got "
                f"{actor_of(who).name!r}; leave it out"
            )
            raise Misconfigured("actor", problem)

    # ── requests ──────────────────────────────────────────────────────────────────────────

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, wait: int = 0
    ) -> Reply:
        """Send a GET request; the server may hold its answer for `wait_s` seconds.

        Raises:
            ServerUnreachable: The server did not answer in time.
            MidrunError: The error that the server responded with.
        """
        headers = {"Prefer": f"wait={wait}"} if wait else {}  # a long poll, RFC 7240
        return await self._asked("GET", path, params=params, headers=headers, wait=wait)

    async def change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        request_id: str | None = None,
        seen: str = "",
        params: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request that changes something; the server applies it at most once.

        Raises:
            ServerUnreachable: The server did not answer in time. Whether it applied the request
                is not known; the error has the request id to repeat it with.
            MidrunError: The error that the server responded with; nothing was applied.
        """
        # One id for all attempts, made before the first one.
        request_id = request_id or self.new_id()
        headers = {"Idempotency-Key": key_of(request_id)}
        if seen:
            headers["If-Match"] = seen
        content = None
        if method != "DELETE":
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode({} if body is None else body)
        try:
            return await self._asked(
                method, path, params=params, headers=headers, content=content
            )
        except ServerUnreachable as error:
            # Raised again with the request id, with which the caller can repeat it safely.
            raise ServerUnreachable(error.url, error.problem, request_id) from error

    async def _asked(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str],
        content: bytes | None = None,
        wait: int = 0,
    ) -> Reply:
        """Send a request until it is answered; raise the last problem if patience runs out."""
        backoff, lost = Away(self._patience, self._outside), False
        timeout = httpx2.Timeout(READ_S + wait, connect=max(self._patience, 1.0), pool=None)
        while True:
            request = self._http.build_request(
                method, path, params=params, headers=headers, content=content, timeout=timeout
            )
            try:
                reply = await self._http.send(request)
            except httpx2.TransportError as error:
                problem: MidrunError = self.unreachable(error)
                # Without a connection nothing was sent. After any other failure the request
                # may have reached the server.
                lost = lost or not isinstance(error, httpx2.ConnectError)
                retry_after = 0.0
            else:
                if reply.is_success:
                    replayed = reply.headers.get("idempotency-replayed") == "true"
                    return Reply(body=reply.content, replayed=replayed, lost=lost)
                problem = refusal(self.url, reply.status_code, reply.content)
                if not _passes(reply.status_code, problem):
                    raise problem  # repeating the request would give the same answer
                retry_after = _seconds(reply.headers.get("retry-after", ""))
            if not await backoff.waited(retry_after):
                raise problem

    def unreachable(self, error: Exception) -> ServerUnreachable:
        """Return the error to raise for a broken connection."""
        return ServerUnreachable(self.url, f"{type(error).__name__} {error}".strip())

    def away(self) -> Away:
        """Return a backoff with this transport's patience, for a reader of a stream."""
        return Away(self._patience, self._outside)

    @asynccontextmanager
    async def stream(self, path: str, last: int) -> AsyncIterator[httpx2.Response | None]:
        """Open a feed after a seq; give the response, or None if there is no more.

        Raises:
            httpx2.TransportError: The connection broke, possibly while it was read.
            MidrunError: The error that the server responded with.
        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        async with self._http.stream("GET", path, headers=headers) as reply:
            if reply.status_code in _AWAY:
                # The caller retries transport errors, so make it look like one.
                raise httpx2.RemoteProtocolError(f"it answered {reply.status_code}")
            if not reply.is_success:
                raise refusal(self.url, reply.status_code, await reply.aread())
            yield None if reply.status_code == httpx2.codes.NO_CONTENT else reply


def key_of(request_id: str) -> str:
    """Return the `Idempotency-Key` for a request id; hash one that a header cannot hold."""
    if fullmatch(_KEY, request_id):
        return request_id
    return sha256(request_id.encode()).hexdigest()


def _passes(status: int, problem: MidrunError) -> bool:
    """Tell whether an error response is temporary, so that the request may be repeated."""
    slow = isinstance(problem, ServerRefused) and problem.problem == _SLOW_DOWN
    return status in _AWAY or slow


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdecimal() else 0.0
