"""The app: what a web server calls. It lets a request in, finds its route, and answers."""

import logging
import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import anyio
from anyio.lowlevel import checkpoint
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from midrun.core.ids import RunId
from midrun.core.values import Actor
from midrun.errors import Misconfigured, StoreClosed
from midrun.runs.midrun import Midrun
from midrun.runs.validation import actor_of, text
from midrun.server import admin, pages
from midrun.server.a2a.routes import find_card
from midrun.server.audit_log import AuditRecord, client_address, escape_loggers
from midrun.server.auth import Auth, Tokens, find_name_problem
from midrun.server.limits import Limits
from midrun.server.mounting import path_in, placed, root_of, with_slash
from midrun.server.openapi import described
from midrun.server.problem_details import Problem, problem_of, reply
from midrun.server.request_checks import (
    SAFE,
    Address,
    address_of,
    check_body,
    check_host,
    check_page,
    check_query,
    cross_origin,
    guarded,
    preflight_headers,
    with_public_scheme,
)
from midrun.server.request_context import Bridges, Caller, Lobby, Visit
from midrun.server.routes import ENDPOINTS, RANKS, Endpoint
from midrun.server.sessions import KEY_MIN, key_of

_LOG: Final = logging.getLogger("midrun.server")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

OWNER: Final = Actor(name="user", role="operator")
"""Whoever has the one token of a server: the person whose machine it is."""

DESCRIBED: Final = ("/v1/openapi.json", "/openapi.json")
"""Where the description is; the second is where people look who know the protocol only."""

_TABLE: Final = tuple(
    (endpoint, endpoint.route())
    for endpoint in (
        *ENDPOINTS,
        *(Endpoint(method="GET", path=path, handler=described) for path in DESCRIBED),
    )
)


def app(  # noqa: PLR0913 - all of them are settings
    mid: Midrun,
    *,
    token: str | None = None,
    auth: Auth | None = None,
    allow_hosts: Collection[str] = (),
    allow_origins: Collection[str] = (),
    public_url: str | None = None,
    limits: Limits | None = None,
    bridges: Bridges | None = None,
    session_key: bytes | None = None,
    unsigned_checkpoints: bool = False,
) -> "App":
    """Return an ASGI app that shows and controls the runs of `mid`.

    Either `token`, which makes its bearer an operator, or `auth`, which says who shows a
    token. `allow_hosts` are the names that the server goes by besides loopback; whatever else
    a request was sent to is refused. `bridges` says how other protocols are served.

    `allow_origins` are the origins (`https://app.example`) whose pages may call with a bearer
    token; their cookies never count. `public_url` is the origin of the server as browsers see
    it where a proxy stands before it: its own pages come from there.

    Browsers that are signed in stay so when the server starts again with the same `token`. With
    `auth` those stay that came with a `code`, if there is a `session_key`: 32 random bytes or
    more, kept for this alone. Whoever has it can sign in as anybody.

    `POST /v1/resume` takes only checkpoints that the key of `mid` has signed, unless
    `unsigned_checkpoints` is True: then an operator can bring any text as a run's journal.

    `mid` is opened by the app's lifespan unless it is open. Mounted in another application,
    whose lifespan is the only one that runs, it must be opened there.

    Raises:
        Misconfigured: neither a token nor `auth`, or both; no key that would do; or an
            address that is not an origin.
    """
    if (token is None) == (auth is None):
        raise Misconfigured("server", "needs a token, or auth; it never runs without")
    if session_key is not None and (token is not None or len(session_key) < KEY_MIN):
        problem = f"it has {KEY_MIN} bytes or more, and goes with auth; a token makes its own"
        raise Misconfigured("session_key", problem)
    who = Tokens({token: OWNER}) if token is not None else auth
    assert who is not None  # one of the two is given
    key = key_of(token) if token is not None else session_key
    escape_loggers("midrun", "uvicorn")
    server = Lobby(mid, who, limits or Limits(), bridges or Bridges(), key)
    server.unsigned_checkpoints = unsigned_checkpoints
    return App(server, address_of(allow_hosts, allow_origins, public_url))


class App:
    """The ASGI app. Call `close` before its web server waits for connections to end."""

    def __init__(self, server: Lobby, address: Address) -> None:
        self._lobby = server
        self._address = address

    def drain(self) -> None:
        """Say on `/readyz` that this server goes away, and go on answering.

        `serve` does so by itself. Under another web server, call it when that is told to stop.
        """
        self._lobby.is_draining = True

    def close(self) -> None:
        """End every stream: their consumers come back, to whoever answers then.

        Uvicorn is seen to stop, also with an application that this is mounted in. Where another
        server waits for its connections for ever, call this when it is told to stop.
        """
        self._lobby.closing.set()

    def will_be_closed(self) -> None:
        """Trust that `close` is called in time: nobody need look whether the server stops."""
        self._lobby.is_told = True

    def code(self, actor: str | Actor = OWNER) -> str:
        """Return a code for a link that signs one browser in, once, within ten minutes.

        A text may name a role (`operator:olga`). A name that its owner chose goes into an
        `Actor`, where it is nothing but a name.

        Raises:
            Misconfigured: `actor` is neither, or has a name that stands for no account.
        """
        who = actor if isinstance(actor, Actor) else actor_of(text("actor", actor))
        if problem := find_name_problem(who):
            raise Misconfigured("actor", problem)
        return self._lobby.sessions.code(who)

    def end_sessions(self, actor: str | Actor) -> None:
        """Sign every browser of this actor out, and void the codes that it has not used.

        Streams of those sessions end at once. The name decides, not the role. Tokens are not
        touched: with one that is still good, the actor can sign in again. Other processes, and
        this one after a restart, do not know of it.

        Raises:
            Misconfigured: `actor` is neither a text nor an `Actor`.
        """
        who = actor if isinstance(actor, Actor) else actor_of(text("actor", actor))
        self._lobby.sessions.end_all(who.name)
        AuditRecord(address="", action="end_sessions", target=who.name).write("done")

    @property
    def limits(self) -> Limits:
        """What bounds it."""
        return self._lobby.limits

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._lobby.allowance.streams

    @property
    def heavy_reads(self) -> int:
        """How many reads of whole journals are under way, or wait for their turn."""
        return self._lobby.allowance.heavy_reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            scope = with_public_scheme(placed(scope), self._address)
            request = Request(scope, receive)
            response = await self._answer(request)
            origin = cross_origin(scope, request.headers, self._address)
            send = guarded(send, self._address, origin)
            if scope["method"] == "HEAD":
                await _say_head(response, scope, receive, send)
            else:
                await response(scope, receive, send)

    # ── one request ───────────────────────────────────────────────────────────────────────

    async def _answer(self, request: Request) -> Response:
        context: Visit | None = None
        scope, headers = request.scope, request.headers
        target = f"{request.method} {path_in(scope)}"
        audit = AuditRecord(address=client_address(scope), target=target)
        try:
            if (probe := await self._probe(request)) is not None:
                return probe
            check_host(scope, headers, self._address.hosts)
            check_page(scope, headers, self._address)
            if request.method == "OPTIONS":
                return self._options(request)
            if (page := _page(request)) is not None:
                return page
            if (card := find_card(request, self._lobby.mid.agents)) is not None:
                return card
            caller = await self._caller(request, audit)
            audit.actor = caller.actor.name
            if request.method not in SAFE:
                self._lobby.allowance.spend(caller.actor.name)
            endpoint, path = _found(scope)
            if endpoint.audit:
                audit.action, audit.is_due = endpoint.audit, True
                audit.target = path.get("run", "")
            limits = self._lobby.limits
            room = limits.checkpoint if endpoint.large else limits.body
            check_query(scope)
            check_body(scope, headers, room)
            context = Visit(
                lobby=self._lobby,
                request=request,
                caller=caller,
                path=path,
                room=room,
                audit=audit,
            )
            _check_role(caller.actor, endpoint)
            self._lobby.store  # noqa: B018 - refuses where nobody has opened it
            response = await _call_endpoint(endpoint, context)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told what they may know
            return await self._refusal(error, context, audit)
        if audit.is_due:
            audit.write("done")
        return response

    async def _probe(self, request: Request) -> Response | None:
        """Answer a probe under every host name.

        An orchestrator probes by address, and the answer is one bit that holds no data.
        """
        path = path_in(request.scope)
        if request.method not in {"GET", "HEAD"} or path not in {"/healthz", "/readyz"}:
            return None
        if path == "/healthz":
            return admin.alive()
        return await admin.ready(self._lobby, request.scope)

    def _options(self, request: Request) -> Response:
        """List the methods of a path; add CORS headers for an allowed origin."""
        scope, headers = request.scope, request.headers
        is_page = pages.found("GET", path_in(scope), "") is not None
        methods = {"GET", "HEAD", "OPTIONS"} if is_page else _methods(scope)
        said = {"Allow": ", ".join(sorted(methods))}
        if cross_origin(scope, headers, self._address):
            said |= preflight_headers(headers, methods)
        return Response(status_code=204, headers=said)

    async def _caller(self, request: Request, audit: AuditRecord) -> Caller:
        """Authenticate the caller by token, by the code of a link, or by cookie.

        A page of another origin may use only a token.
        """
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        scheme, shown, caller = scheme.lower(), shown.strip(), None
        if cross_origin(request.scope, request.headers, self._address):
            if path_in(request.scope) == "/v1/session" and request.method != "GET":
                problem = "Cannot open or end a session from another origin. Send the token."
                raise Problem("foreign_origin", 403, problem)
            scheme = scheme if scheme == "bearer" else "none"
        if scheme == "bearer" or (scheme == "code" and _signs_in(request)):
            caller = await self._find_by_credential(scheme, shown, audit)
        elif not scheme:
            caller = await self._find_by_cookie(request)
        if caller is None:
            header = {"WWW-Authenticate": 'Bearer realm="midrun"'}
            problem = (
                "Authentication required: send `Authorization: Bearer <token>`, or sign in."
            )
            raise Problem("unauthorized", 401, problem, headers=header)
        if problem := find_name_problem(caller.actor):
            raise Problem("not_allowed", 403, problem)
        return caller

    async def _find_by_credential(
        self, scheme: str, shown: str, audit: AuditRecord
    ) -> Caller | None:
        """Return the caller with this token or code; refuse an address that failed often."""
        failures = self._lobby.failures
        failures.check(audit.address, shown)
        if scheme == "bearer":
            actor = await self._lobby.auth(shown)
        else:
            actor = self._lobby.sessions.redeem(shown)
        if actor is None:
            failures.count_failure(audit.address)
            audit.action, audit.is_due = "sign_in", True
            return None
        failures.remember_good(shown)
        return Caller(actor=actor, token=shown if scheme == "bearer" else "")

    async def _find_by_cookie(self, request: Request) -> Caller | None:
        """Return the caller of this session, if both its cookie and its proof are right."""
        sessions, secret = self._lobby.sessions, admin.session_cookie(request)
        proof = request.headers.get(admin.PROOF_HEADER, "")
        if not secret or not sessions.is_proven(secret, proof):
            return None
        session = sessions.find(secret)
        if session is None:
            return None
        caller = Caller(
            actor=session.actor, token=session.token, session=session, secret=secret
        )
        return caller if await caller.holds(self._lobby) else None

    async def _refusal(
        self, error: Exception, context: Visit | None, audit: AuditRecord
    ) -> Response:
        problem = problem_of(error)
        if problem is None:
            _LOG.error("a request failed", exc_info=error)
            problem = Problem("internal", 500, "the server's log says more")
        if audit.is_due or (problem.status == HTTPStatus.FORBIDDEN and self._may_log(audit)):
            audit.write(problem.slug)
        return reply(problem, await self._run(context))

    def _may_log(self, audit: AuditRecord) -> bool:
        """Tell whether a refusal is logged: a page of another origin must not fill the log."""
        if audit.actor:
            return True
        unknown = self._lobby.unknown_callers
        may = not unknown.wait_s(audit.address)
        unknown.count(audit.address)
        return may

    async def _run(self, context: Visit | None) -> object:
        """Return the run that a refused request was about, if the caller may see it."""
        if context is None:
            return None
        path = context.path
        run = RunId(path.get("run") or path.get("ask", "").rpartition("-")[0])
        try:
            if await self._lobby.views.sees(context.actor, run):
                return await self._lobby.views.shown(run)
        except Exception:  # noqa: BLE001 - the refusal itself is what must be told
            return None
        return None

    # ── the whole ─────────────────────────────────────────────────────────────────────────

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open the `Midrun` for as long as the web server runs, unless somebody else did."""
        await receive()
        stage = "startup"
        try:
            async with self._opened():
                await send({"type": "lifespan.startup.complete"})
                stage = "shutdown"
                await receive()
                self.close()
        except Exception as error:
            await send({"type": f"lifespan.{stage}.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        if await self._is_open():
            yield
        else:
            async with self._lobby.mid:
                yield

    async def _is_open(self) -> bool:
        try:
            await self._lobby.store.halts()
        except (Problem, StoreClosed):
            return False
        return True


async def _call_endpoint(endpoint: Endpoint, context: Visit) -> Response:
    """Call the endpoint; one that reads a whole journal waits for its turn."""
    if not endpoint.heavy:
        return await endpoint.handler(context)
    async with context.heavy_read():
        return await endpoint.handler(context)


def _page(request: Request) -> Response | None:
    """Return a page or a static file, which need no credential, or None."""
    path, looks = path_in(request.scope), request.method in {"GET", "HEAD"}
    if looks and not path and root_of(request.scope):
        return with_slash(request.scope)
    return pages.found(request.method, path, request.headers.get("if-none-match", ""))


async def _say_head(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Say what a response begins with, and nothing else: a stream is not even opened."""
    begun: list[Message] = []
    with anyio.CancelScope() as rest:

        async def begin(message: Message) -> None:
            begun.append(message)
            rest.cancel()
            await checkpoint()

        await response(scope, receive, begin)
    await send(begun[0])
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _signs_in(request: Request) -> bool:
    return request.method == "POST" and path_in(request.scope) == "/v1/session"


def _found(scope: Scope) -> tuple[Endpoint, dict[str, str]]:
    """Return the endpoint that a request is for, and what its path names.

    A HEAD is a GET that wants no body.

    Raises:
        Problem: 404 or 405.
    """
    wanted = "GET" if scope["method"] == "HEAD" else scope["method"]
    for endpoint, path in _matches(scope):
        if wanted == endpoint.method:
            return endpoint, path
    allow = ", ".join(sorted(_methods(scope)))
    raise Problem("method_not_allowed", 405, headers={"Allow": allow})


def _methods(scope: Scope) -> set[str]:
    """Return the methods of a path.

    Raises:
        Problem: 404, no endpoint has this path.
    """
    methods = {endpoint.method for endpoint, _ in _matches(scope)}
    if not methods:
        raise Problem(
            "not_found", 404, "Cannot find this path. See /v1/openapi.json for all paths."
        )
    return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())


def _matches(scope: Scope) -> Iterator[tuple[Endpoint, dict[str, str]]]:
    """Yield the endpoints of a path, each with the parts that the path names."""
    for endpoint, route in _TABLE:
        match, child = route.matches(scope)
        if match is Match.NONE:
            continue
        path = {name: str(child["path_params"][name]) for name in route.param_convertors}
        if not all(_ID.fullmatch(part) for name, part in path.items() if name != "rest"):
            return
        yield endpoint, path


def _check_role(actor: Actor, endpoint: Endpoint) -> None:
    if RANKS.get(actor.role, -1) < RANKS[endpoint.role]:
        raise Problem("not_allowed", 403, f"this is for {endpoint.role}s")
