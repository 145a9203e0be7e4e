"""The link to one server: requests that are safe to repeat, and are repeated.

Whatever changes something carries an `Idempotency-Key`, the same for every attempt. A server
that is away, or a reply that got lost, costs time and nothing else: what was asked is applied
once. After `patience` seconds the caller is told.
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

# Refusals: from a server's problem+json back to the very error that it was there.

_PREFIX: Final = "urn:midrun:problem:"
_ERRORS: Final[Mapping[str, type[MidrunError]]] = {
    kind.code: kind
    for name in errors.__all__
    for kind in [getattr(errors, name)]
    if "__init__" in vars(kind)  # the bases are nobody's error
}


def refusal(url: str, status: int, body: bytes) -> MidrunError:
    """Return the error that a response says; one of HTTP's own is `ServerRefused`."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}  # somebody in between answered
    known = _ERRORS.get(str(problem.get("code")))
    if known is not None:
        try:
            return _made(known, problem.get("args"))
        except (ValueError, msgspec.ValidationError):
            pass  # a newer server, whose error says more than ours
    slug = str(problem.get("type", "")).removeprefix(_PREFIX).replace("-", "_")
    return ServerRefused(url, status, slug or "no_problem", str(problem.get("detail", "")))


def _made(kind: type[MidrunError], args: object) -> MidrunError:
    given = msgspec.convert(args, list[object])
    hints = get_type_hints(kind.__init__)
    names = list(signature(kind.__init__).parameters)[1:]
    pairs = zip(given, (hints[name] for name in names), strict=True)
    return kind(*(msgspec.convert(arg, hint) for arg, hint in pairs))


READ_S: Final = 45.0
"""Longer than a server is silent: its streams show signs of life every fifteen seconds."""

FIRST_S: Final = 0.05
LONGEST_S: Final = 2.0

NO_TLS: Final = SSLContext(PROTOCOL_TLS_CLIENT)
"""For servers without TLS: it trusts nobody, and need not read every authority there is."""

_KEY: Final = r"[!#-~]{1,200}"
_AWAY: Final = frozenset({502, 503, 504})
_SLOW_DOWN: Final = "too_many_requests"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a server answered. `lost` says that an earlier attempt may have arrived, too."""

    body: bytes
    replayed: bool
    lost: bool

    def json(self) -> dict[str, object]:
        """Return the body."""
        return msgspec.json.decode(self.body, type=dict[str, object])


class Away:
    """How long to wait for a server that is away, and when to give up.

    Patience begins with the first attempt that fails: who had nothing to tell for an hour, on a
    stream or to a request that waits, was not away.
    """

    def __init__(self, patience: float, outside: Outside) -> None:
        self._patience = patience
        self._chance = outside.chance
        self.back()

    def back(self) -> None:
        """Note that it answers."""
        self._until = inf
        self._tries = 0

    async def waited(self, asked: float = 0.0) -> bool:
        """Wait before the next attempt; False if that is not worth it any more."""
        self._until = min(self._until, anyio.current_time() + self._patience)
        self._tries += 1
        wait = doubled(self._tries, first=FIRST_S, longest=LONGEST_S, chance=self._chance())
        wait = max(wait, asked)
        if anyio.current_time() + wait > self._until:
            return False
        await anyio.sleep(wait)
        return True


class Link:
    """One server, as one caller. Open it with `async with link.opened()`."""

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
        """Connect, and find out who we are there.

        Raises:
            ServerUnreachable: nobody answers.
            ServerRefused: the token is none.
        """
        timeout = httpx2.Timeout(READ_S, connect=max(self._patience, 1.0), pool=None)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32)
        try:
            made = httpx2.AsyncClient(
                base_url=self.url,
                headers=self._headers,
                timeout=timeout,
                limits=limits,
                verify=NO_TLS if urlsplit(self.url).scheme == "http" else True,
            )
        except (httpx2.InvalidURL, ValueError) as error:
            raise Misconfigured(f"url {self.url!r}", str(error)) from None
        async with made:
            self._open = made
            try:
                who = (await self.get("/v1/session")).json()
                self.me = msgspec.convert(who, Actor)
                yield
            finally:
                self._open = None

    @property
    def _http(self) -> httpx2.AsyncClient:
        if self._open is None:
            raise Misconfigured("connect", "open it first: async with connect(…) as midrun")
        return self._open

    def check_actor(self, who: Who) -> None:
        """Refuse to speak for somebody else: whose name it is, the token says.

        Raises:
            Misconfigured: `who` is another than the token's.
        """
        if who is not None and actor_of(who).name != self.me.name:
            problem = f"over HTTP you are who your token says, {self.me.name}; leave actor out"
            raise Misconfigured(f"actor {actor_of(who).name!r}", problem)

    # ── requests ──────────────────────────────────────────────────────────────────────────

    async def get(
        self, path: str, *, params: Mapping[str, str] | None = None, wait: int = 0
    ) -> Reply:
        """Ask for something; with `wait`, the server may take that many seconds."""
        headers = {"Prefer": f"wait={wait}"} if wait else {}
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
        """Ask for a change, once, however many attempts that takes.

        Raises:
            ServerUnreachable: with the id under which it can be repeated.
        """
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
        away, lost = Away(self._patience, self._outside), False
        timeout = httpx2.Timeout(READ_S + wait, connect=max(self._patience, 1.0), pool=None)
        while True:
            request = self._http.build_request(
                method, path, params=params, headers=headers, content=content, timeout=timeout
            )
            try:
                reply = await self._http.send(request)
            except httpx2.TransportError as error:
                problem: MidrunError = self.unreachable(error)
                lost = lost or not isinstance(error, httpx2.ConnectError)
                asked = 0.0
            else:
                if reply.is_success:
                    replayed = reply.headers.get("idempotency-replayed") == "true"
                    return Reply(body=reply.content, replayed=replayed, lost=lost)
                problem = refusal(self.url, reply.status_code, reply.content)
                if not _passes(reply.status_code, problem):
                    raise problem
                asked = _seconds(reply.headers.get("retry-after", ""))
            if not await away.waited(asked):
                raise problem

    def unreachable(self, error: Exception) -> ServerUnreachable:
        """Return what a broken connection means for the caller."""
        return ServerUnreachable(self.url, f"{type(error).__name__} {error}".strip())

    def away(self) -> Away:
        """Return how long somebody who listens waits for the server to come back."""
        return Away(self._patience, self._outside)

    @asynccontextmanager
    async def stream(self, path: str, last: int) -> AsyncIterator[httpx2.Response | None]:
        """Give the response of a feed, to be read as it comes; None if there is no more.

        Raises:
            httpx2.TransportError: the connection broke off, also while it is read.
            MidrunError: the server refused it.
        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        async with self._http.stream("GET", path, headers=headers) as reply:
            if reply.status_code in _AWAY:
                raise httpx2.RemoteProtocolError(f"it answered {reply.status_code}")
            if not reply.is_success:
                raise refusal(self.url, reply.status_code, await reply.aread())
            yield None if reply.status_code == httpx2.codes.NO_CONTENT else reply


def key_of(request_id: str) -> str:
    """Return the `Idempotency-Key` of a request id; one that no header can hold is hashed."""
    if fullmatch(_KEY, request_id):
        return request_id
    return sha256(request_id.encode()).hexdigest()


def _passes(status: int, problem: MidrunError) -> bool:
    """Tell whether a refusal is about the moment, so that the same may be asked again."""
    slow = isinstance(problem, ServerRefused) and problem.problem == _SLOW_DOWN
    return status in _AWAY or slow


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdecimal() else 0.0
