"""The ASGI app: checks a request, finds its endpoint, and sends the response.

`App._respond` is the path of one request: probe, host, origin, page or card (both public),
credential, rate; then, in `_respond_to_caller`, endpoint, query, body size, role, handler. The
order matters: nothing that costs more than reading headers happens before the caller is known.
"""

import logging
import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, suppress
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
from midrun.ports.log_context import LogContext, set_log_context
from midrun.runs.midrun import Midrun
from midrun.runs.validation import check_text, parse_actor
from midrun.server import admin, pages
from midrun.server.a2a.routes import find_card
from midrun.server.audit_log import AuditRecord, escape_loggers, find_client_address, log_access
from midrun.server.auth import (
    Auth,
    Tokens,
    check_session_key,
    derive_key,
    find_browser_sign_in,
    find_name_problem,
)
from midrun.server.limits import Limits
from midrun.server.openapi import show_openapi
from midrun.server.problem_details import (
    HttpProblem,
    make_openai_error_response,
    make_problem_response,
    to_problem,
)
from midrun.server.request_checks import (
    SAFE_METHODS,
    ServerAddress,
    add_security_headers,
    apply_public_scheme,
    check_body,
    check_host,
    check_origin,
    check_query,
    find_cross_origin,
    make_preflight_headers,
    mount_path,
    parse_address,
    path_below_mount,
    redirect_to_slash,
    restore_mount_path,
)
from midrun.server.request_context import (
    Bridges,
    Caller,
    MetricsSource,
    RequestContext,
    ServerState,
)
from midrun.server.routes import ENDPOINTS, OPENAI_PATH, ROLE_RANKS, Endpoint

_LOG: Final = logging.getLogger("midrun.server")
_PATH_PARAMETER_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

TOKEN_ACTOR: Final = Actor(name="user", role="operator")
"""The actor that the single `token` of a server stands for."""

OPENAPI_PATHS: Final = ("/v1/openapi.json", "/openapi.json")
"""The paths of the OpenAPI document; generic tools look at the second."""

_ROUTE_TABLE: Final = tuple(
    (endpoint, endpoint.to_route())
    for endpoint in (
        *ENDPOINTS,
        *(Endpoint(method="GET", path=path, handler=show_openapi) for path in OPENAPI_PATHS),
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
    metrics: MetricsSource | None = None,
) -> "App":
    """Return an ASGI app that shows and controls the runs of `mid`.

    Pass either `token`, which makes its bearer an operator, or `auth`, which maps a token to an
    actor. `allow_hosts` are the names of the server besides loopback; a request to another name
    is refused. `bridges` sets how other protocols are served.

    `allow_origins` are the origins (`https://app.example`) whose pages may call with a bearer
    token; their cookies never count. `public_url` is the origin of the server as browsers see
    it behind a proxy: the server's own pages come from there.

    Browsers stay signed in across a restart with the same `token`. With `auth`, the sessions
    that were opened by a `code` survive if there is a `session_key`: 32 or more random bytes,
    used for nothing else. Keep it secret: its holder can sign in as any actor.

    `POST /v1/resume` takes only checkpoints that the key of `mid` has signed, unless
    `unsigned_checkpoints` is True: then an operator can import any text as a run's journal.

    With `metrics` (a `midrun.followers.metrics.Metrics` that follows `mid`), operators can read
    `GET /metrics`, and the open streams of this server are measured.

    The app's lifespan opens `mid` unless it is open. Where the app is mounted in another
    application, only the outer lifespan runs, and `mid` must be opened there.

    Raises:
        Misconfigured: neither `token` nor `auth` is given, or both are; `session_key` is too
            short or comes with `token`; or an address is not an origin.
    """
    if (token is None) == (auth is None):
        problem = "Cannot run without authentication. Pass either token= or auth="
        raise Misconfigured("server", problem)
    check_session_key(session_key, has_token=token is not None)
    token_auth = Tokens({token: TOKEN_ACTOR}) if token is not None else auth
    assert token_auth is not None  # one of the two is given
    key = derive_key(token) if token is not None else session_key
    escape_loggers("midrun", "uvicorn")
    server = ServerState(mid, token_auth, limits or Limits(), bridges or Bridges(), key)
    server.unsigned_checkpoints = unsigned_checkpoints
    if metrics is not None:
        server.metrics = metrics
        metrics.add_gauge("midrun.feed_watchers", lambda: server.allowance.streams)
        metrics.add_gauge("midrun.quota_refusals", lambda: server.allowance.quota_refusals)
    return App(server, parse_address(allow_hosts, allow_origins, public_url))


class App:
    """The ASGI app. Call `close` before the web server waits for connections to end."""

    def __init__(self, server: ServerState, address: ServerAddress) -> None:
        self._server = server
        self._address = address
        server.serve_caller = self._serve_caller

    def drain(self) -> None:
        """Answer `/readyz` with 503, and keep serving all other requests.

        `serve` calls this itself. Under another web server, call it when that server receives
        its signal to stop.
        """
        self._server.is_draining = True

    def close(self) -> None:
        """End every stream; clients reconnect to the server that answers then.

        Under uvicorn the app notices the stop by itself, also when it is mounted. Under a web
        server that waits for open connections without a limit, call this when it is to stop.
        """
        self._server.closing.set()

    def promise_close(self) -> None:
        """Rely on a call of `close`; streams need not poll whether the server stops."""
        self._server.is_close_promised = True

    def code(self, actor: str | Actor = TOKEN_ACTOR) -> str:
        """Return a code that signs one browser in, once, within ten minutes.

        A str may name a role (`operator:olga`). Put a name that a user chose into an `Actor`:
        there a colon in the name has no meaning.

        Raises:
            Misconfigured: `actor` is neither a str nor an `Actor`, or its name is reserved.
        """
        who = actor if isinstance(actor, Actor) else parse_actor(check_text("actor", actor))
        if problem := find_name_problem(who):
            raise Misconfigured("actor", problem)
        return self._server.sessions.issue_code(who)

    def end_sessions(self, actor: str | Actor) -> None:
        """Sign out every browser of this actor and void its unused codes.

        The streams of those sessions end at once. The name decides, and of an `Actor` also the
        tenant, not the role. Tokens stay valid: an actor with a token can sign in again. The
        end is known only to this process: other processes, and this one after a restart, accept
        a signed cookie again.

        Raises:
            Misconfigured: `actor` is neither a str nor an `Actor`.
        """
        who = actor if isinstance(actor, Actor) else parse_actor(check_text("actor", actor))
        tenant = who.tenant if isinstance(actor, Actor) else None
        self._server.sessions.end_all(who.name, tenant)
        AuditRecord(address="", action="end_sessions", target=who.name).write("done")

    @property
    def limits(self) -> Limits:
        """The bounds of this server."""
        return self._server.limits

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self._server.allowance.streams

    @property
    def heavy_reads(self) -> int:
        """The number of reads of whole journals that run or wait for their turn."""
        return self._server.allowance.heavy_reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan, as ASGI defines it."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # "policy violation"
        else:
            scope = apply_public_scheme(restore_mount_path(scope), self._address)
            set_log_context(LogContext())  # a connection has one task for all its requests
            send = log_access(scope, send)
            request = Request(scope, receive)
            response = await self._respond(request)
            origin = find_cross_origin(scope, request.headers, self._address)
            send = add_security_headers(send, self._address, origin)
            if scope["method"] == "HEAD":
                await _send_headers_only(response, scope, receive, send)
            else:
                await response(scope, receive, send)

    # ── one request ───────────────────────────────────────────────────────────────────────

    async def _respond(self, request: Request) -> Response:
        scope, headers = request.scope, request.headers
        audit = _start_audit(request)
        try:
            # The order of the checks is a part of the security. Host and origin come first: a
            # foreign page, or a name that an attacker points at this address, learns nothing.
            # Then everything that is public. Then the credential; without one, neither paths
            # nor runs can be told apart. The role and the body are checked last, in
            # `_respond_to_caller`, where a refusal may show the run.
            if (probe := await self._answer_probe(request)) is not None:
                return probe
            check_host(scope, headers, self._address.hosts)
            check_origin(scope, headers, self._address)
            if request.method == "OPTIONS":
                return self._answer_options(request)
            # Pages and cards are public: they hold no data of any run.
            if (page := _find_page(request)) is not None:
                return page
            if (card := find_card(request, self._server)) is not None:
                return card
            signed_in = await admin.answer_browser_sign_in(request, self._server, audit)
            if signed_in is not None:
                return signed_in
            caller = await self._authenticate(request, audit)
            audit.set_actor(caller.actor)
            set_log_context(LogContext(actor=caller.actor.name))
            if request.method not in SAFE_METHODS:
                self._server.allowance.count_change(caller.key)
        except Exception as error:  # noqa: BLE001 - every error becomes a problem response
            return await self._refuse(error, None, audit, path_below_mount(scope))
        return await self._respond_to_caller(request, caller, audit)

    async def _respond_to_caller(
        self, request: Request, caller: Caller, audit: AuditRecord
    ) -> Response:
        """Call the endpoint of a request whose caller is known."""
        context: RequestContext | None = None
        scope, headers = request.scope, request.headers
        try:
            # After authentication: a caller without a credential learns no paths.
            endpoint, path = _find_endpoint(scope)
            if endpoint.audit_action:
                audit.action, audit.is_due = endpoint.audit_action, True
                audit.target = path.get("run", "")
            limits = self._server.limits
            body_max_bytes = limits.upload if endpoint.takes_files else limits.body
            if endpoint.has_large_body:
                body_max_bytes = limits.checkpoint
            check_query(scope)
            check_body(scope, headers, body_max_bytes)
            context = RequestContext(
                server=self._server,
                request=request,
                caller=caller,
                path=path,
                body_max_bytes=body_max_bytes,
                audit=audit,
            )
            # The role is checked once there is a context, so that the refusal shows the run.
            _check_role(caller.actor, endpoint)
            self._server.store  # noqa: B018 - raises a 503 if the Midrun is not open
            response = await _call_endpoint(endpoint, context)
        except ClientDisconnect:
            return Response(status_code=400)  # not read: the client has gone
        except Exception as error:  # noqa: BLE001 - every error becomes a problem response
            return await self._refuse(error, context, audit, path_below_mount(scope))
        if audit.is_due:
            await self._record_audit(audit, "done")
        return response

    async def _serve_caller(
        self, caller: Caller, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request that another endpoint makes for its caller, in this process."""
        request = Request(scope, receive)
        audit = _start_audit(request)
        audit.set_actor(caller.actor)
        response = await self._respond_to_caller(request, caller, audit)
        await response(scope, receive, send)

    async def _record_audit(self, audit: AuditRecord, outcome: str) -> None:
        """Write the audit record of a request to the log and to the store."""
        audit.write(outcome)
        # The runs layer stores halts and deletions itself, from whatever interface they came.
        # A `Midrun` that is not open has no store.
        if outcome != "done" or audit.action not in {"halt", "lift", "delete"}:
            with suppress(Misconfigured):
                await self._server.mid.record_audit(audit.to_entry(outcome))

    async def _answer_probe(self, request: Request) -> Response | None:
        """Answer a probe of `/healthz` or `/readyz`, whatever host name it was sent to.

        An orchestrator probes by IP address, which need not be in `allow_hosts`. The answer is
        one bit and holds no data, so DNS rebinding gains nothing.
        """
        path = path_below_mount(request.scope)
        if request.method not in {"GET", "HEAD"} or path not in {"/healthz", "/readyz"}:
            return None
        if path == "/healthz":
            return admin.make_liveness_response()
        return await admin.make_readiness_response(self._server, request.scope)

    def _answer_options(self, request: Request) -> Response:
        """List the methods of a path; add CORS headers for an allowed origin."""
        scope, headers = request.scope, request.headers
        is_page = pages.find_page("GET", path_below_mount(scope), "") is not None
        methods = {"GET", "HEAD", "OPTIONS"} if is_page else _list_allowed_methods(scope)
        answer = {"Allow": ", ".join(sorted(methods))}
        if find_cross_origin(scope, headers, self._address):
            answer |= make_preflight_headers(headers, methods)
        return Response(status_code=204, headers=answer)

    async def _authenticate(self, request: Request, audit: AuditRecord) -> Caller:
        """Authenticate the caller by token, by the code of a link, or by cookie.

        A page of another origin may use only a token.

        Raises:
            HttpProblem: 401, no valid credential; 403, the origin or the name may not sign in;
                429, too many wrong credentials came from this address.
        """
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        scheme, shown, caller = scheme.lower(), shown.strip(), None
        if find_cross_origin(request.scope, request.headers, self._address):
            if path_below_mount(request.scope) == "/v1/session" and request.method != "GET":
                problem = (
                    "Cannot open or end a session: the page is of another origin. Send the "
                    "bearer token with each request instead."
                )
                raise HttpProblem("foreign_origin", 403, problem)
            # "none" matches no branch below: neither a code nor the cookie is used, so the
            # credentials that the browser holds are of no use to a foreign page.
            scheme = scheme if scheme == "bearer" else "none"
        if scheme == "bearer" or (scheme == "code" and _is_sign_in(request)):
            caller = await self._find_by_credential(scheme, shown, audit)
        elif not scheme:
            caller = await self._find_by_cookie(request)
        if caller is None:
            header = {"WWW-Authenticate": 'Bearer realm="midrun"'}
            why = "The token or code is not valid" if shown else "Authentication required"
            problem = f"{why}: send `Authorization: Bearer <token>` or sign in."
            raise HttpProblem(
                "unauthorized", 401, problem, headers=header, fields=self._sign_in_fields()
            )
        if problem := find_name_problem(caller.actor):
            raise HttpProblem("not_allowed", 403, problem)
        return caller

    def _sign_in_fields(self) -> dict[str, str]:
        """Return the path at which a browser signs in, if an identity provider is used."""
        has_way = find_browser_sign_in(self._server.auth) is not None
        return {"sign_in": admin.SIGN_IN_PATH} if has_way else {}

    async def _find_by_credential(
        self, scheme: str, credential: str, audit: AuditRecord
    ) -> Caller | None:
        """Return the caller with this token or code; refuse an address that failed often."""
        failures = self._server.failures
        failures.check(audit.address, credential)  # before `auth`, which may be slow or remote
        if scheme == "bearer":
            actor = await self._server.auth(credential)
        else:
            actor = self._server.sessions.redeem_code(credential)
        if actor is None:
            failures.count_failure(audit.address)
            audit.action, audit.is_due = "sign_in", True
            return None
        failures.remember_valid(credential)
        return Caller(actor=actor, token=credential if scheme == "bearer" else "")

    async def _find_by_cookie(self, request: Request) -> Caller | None:
        """Return the caller of this session, if both its cookie and its proof are right."""
        sessions, secret = self._server.sessions, admin.read_session_cookie(request)
        proof = request.headers.get(admin.PROOF_HEADER, "")
        if not secret or not sessions.is_proven(secret, proof):
            return None
        session = sessions.find(secret)
        if session is None:
            return None
        # A session that was opened with a token of `auth` carries it: `auth` is asked again.
        caller = Caller(
            actor=session.actor, token=session.token, session=session, secret=secret
        )
        return caller if await caller.has_valid_credential(self._server) else None

    async def _refuse(
        self, error: Exception, context: RequestContext | None, audit: AuditRecord, path: str
    ) -> Response:
        problem = to_problem(error)
        if problem is None:
            _LOG.error("Request failed with an unexpected error.", exc_info=error)
            problem = HttpProblem(
                "internal",
                500,
                "Cannot complete the request: the server failed. See the server's log.",
            )
        if audit.is_due or (problem.status == HTTPStatus.FORBIDDEN and self._may_log(audit)):
            await self._record_audit(audit, problem.slug)
        if path.startswith(OPENAI_PATH):
            return make_openai_error_response(problem)
        return make_problem_response(problem, await self._find_visible_run(context))

    def _may_log(self, audit: AuditRecord) -> bool:
        """Return whether to log a refusal, and count it for its address.

        A refusal of an unknown caller is logged within a rate limit per address: a page of
        another origin could otherwise fill the log by sending requests.
        """
        if audit.actor:
            return True
        unknown = self._server.unknown_callers
        may = not unknown.wait_s(audit.address)
        unknown.count_event(audit.address)
        return may

    async def _find_visible_run(self, context: RequestContext | None) -> object:
        """Return the run of a refused request, if the caller may see it.

        The client repaints from it: a refusal often means that its view was out of date.
        """
        if context is None:
            return None
        path = context.path
        # The ref of an ask is "<run id>-<ask id>".
        run = RunId(path.get("run") or path.get("ask", "").rpartition("-")[0])
        try:
            if await context.can_see(run):
                return await self._server.views.show_run(run)
        except Exception:  # noqa: BLE001 - a second error must not replace the refusal
            return None
        return None

    # ── lifespan ──────────────────────────────────────────────────────────────────────────

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        """Keep the `Midrun` open while the web server runs, unless it is open already."""
        await receive()  # "lifespan.startup"
        stage = "startup"
        try:
            async with self._open_midrun():
                await send({"type": "lifespan.startup.complete"})
                stage = "shutdown"
                await receive()  # "lifespan.shutdown"
                self.close()  # before the Midrun closes: streams must not meet a closed store
        except Exception as error:
            await send({"type": f"lifespan.{stage}.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    @asynccontextmanager
    async def _open_midrun(self) -> AsyncIterator[None]:
        if await self._is_open():
            yield
        else:
            async with self._server.mid:
                yield

    async def _is_open(self) -> bool:
        try:
            await (
                self._server.store.list_halts()
            )  # a cheap read, which fails if the store is closed
        except (HttpProblem, StoreClosed):
            return False
        return True


def _start_audit(request: Request) -> AuditRecord:
    """Return the audit record of a request.

    It is filled in step by step, so that a refusal at any step logs the facts known so far.
    """
    target = f"{request.method} {path_below_mount(request.scope)}"
    return AuditRecord(address=find_client_address(request.scope), target=target)


async def _call_endpoint(endpoint: Endpoint, context: RequestContext) -> Response:
    """Call the endpoint; wait for a turn first if it reads a whole journal."""
    if not endpoint.reads_whole_journal:
        return await endpoint.handler(context)
    async with context.hold_heavy_read_slot():
        return await endpoint.handler(context)


def _find_page(request: Request) -> Response | None:
    """Return a page or a static file, which need no credential; None for other paths."""
    path, is_read = path_below_mount(request.scope), request.method in {"GET", "HEAD"}
    if is_read and not path and mount_path(request.scope):
        return redirect_to_slash(request.scope)
    return pages.find_page(request.method, path, request.headers.get("if-none-match", ""))


async def _send_headers_only(
    response: Response, scope: Scope, receive: Receive, send: Send
) -> None:
    """Send the status and headers of `response` to a HEAD request, without a body.

    The response sends its start message to a function that cancels the response there. So a
    stream sends its headers and never starts its source.
    """
    started: list[Message] = []
    with anyio.CancelScope() as rest:

        async def capture_start(message: Message) -> None:
            started.append(message)
            rest.cancel()
            await checkpoint()  # raises the cancellation here, before the response continues

        await response(scope, receive, capture_start)
    await send(started[0])
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_sign_in(request: Request) -> bool:
    return request.method == "POST" and path_below_mount(request.scope) == "/v1/session"


def _find_endpoint(scope: Scope) -> tuple[Endpoint, dict[str, str]]:
    """Return the endpoint of a request and its path parameters.

    HEAD is served by the endpoint for GET.

    Raises:
        HttpProblem: 404, no endpoint has this path; 405, none has this method.
    """
    # Several endpoints may share a path, and differ in their method.
    wanted = "GET" if scope["method"] == "HEAD" else scope["method"]
    for endpoint, path in _iter_matching_endpoints(scope):
        if wanted == endpoint.method:
            return endpoint, path
    allow = ", ".join(sorted(_list_allowed_methods(scope)))
    problem = f"Cannot {scope['method']} this path. Allowed: {allow}."
    raise HttpProblem("method_not_allowed", 405, problem, headers={"Allow": allow})


def _list_allowed_methods(scope: Scope) -> set[str]:
    """Return the methods of a path, with HEAD and OPTIONS.

    Raises:
        HttpProblem: 404, no endpoint has this path.
    """
    methods = {endpoint.method for endpoint, _ in _iter_matching_endpoints(scope)}
    if not methods:
        raise HttpProblem(
            "not_found", 404, "Cannot find this path. See /v1/openapi.json for all paths."
        )
    return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())


def _iter_matching_endpoints(scope: Scope) -> Iterator[tuple[Endpoint, dict[str, str]]]:
    """Yield the endpoints of a path, each with its path parameters."""
    for endpoint, route in _ROUTE_TABLE:
        match, child = route.matches(scope)
        if match is Match.NONE:
            continue
        path = {name: str(child["path_params"][name]) for name in route.param_convertors}
        # Ids are checked here once, so that no handler and no store sees an odd one. "rest"
        # is the remainder of a path, which the A2A SDK matches itself.
        if not all(
            _PATH_PARAMETER_PATTERN.fullmatch(part)
            for name, part in path.items()
            if name != "rest"
        ):
            return
        yield endpoint, path


def _check_role(actor: Actor, endpoint: Endpoint) -> None:
    if ROLE_RANKS.get(actor.role, -1) < ROLE_RANKS[endpoint.role]:
        needed = f"it needs at least the role {endpoint.role}"
        raise HttpProblem("not_allowed", 403, f"Cannot do this as {actor.role}: {needed}.")
