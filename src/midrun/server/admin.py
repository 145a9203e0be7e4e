"""Handlers for halts, sign-in and probes, and the session cookie."""

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from midrun.core.ids import MICROS_PER_SECOND, Micros, RunId
from midrun.core.values import TERMINAL_PHASES, Phase, Value
from midrun.errors import MidrunError, RunNotFound
from midrun.ports.store import HaltRecord, RunQuery
from midrun.runs import deletion
from midrun.runs.audit import read_audit_page
from midrun.runs.control_bodies import Empty
from midrun.runs.validation import check_selection
from midrun.runs.wire import (
    AuditPage,
    DeletedCount,
    EndedSessions,
    SessionActor,
    SessionItem,
    SessionList,
)
from midrun.server.audit_log import AuditRecord
from midrun.server.auth import SESSION_LIFETIME_S, find_browser_sign_in, find_name_problem
from midrun.server.problem_details import HttpProblem
from midrun.server.request_checks import mount_path, path_below_mount, split_host
from midrun.server.request_context import (
    RequestContext,
    ServerState,
    is_stopping,
    json_response,
)
from midrun.server.schemas import DeletionBody, EndSessionsBody, HaltBody, LiftBody, encode_wire
from midrun.workers.quotas import UsedQuota

DELETE_MAX_RUNS: Final = 200
"""About the most runs that one request deletes, so that it is answered in time."""

PROOF_HEADER: Final = "midrun-session-proof"
"""The header in which a page sends the proof of its session, in addition to the cookie."""


SIGN_IN_LIFETIME_S: Final = 600
"""Seconds in which a browser must return from the identity provider."""


class Halts(Value, kw_only=True):
    """The halts in force."""

    items: tuple[HaltRecord, ...]


class LiftReply(Value, kw_only=True):
    """Whether there was a halt with this scope."""

    lifted: bool


class NewSession(SessionActor, kw_only=True):
    """The actor of a new session, and the proof that its page sends as `PROOF_HEADER`."""

    proof: str


class QuotaList(Value, kw_only=True):
    """The quotas of the caller and of its tenant."""

    items: tuple[UsedQuota, ...]


async def set_halt(context: RequestContext) -> Response:
    """Set a halt: no call of the runs that it covers starts until it is lifted."""
    body = await context.decode_body(HaltBody)
    context.audit.target = body.scope
    await context.server.mid.halt(
        body.reason, scope=body.scope, tenant=body.tenant, actor=context.actor
    )
    return json_response(await _list_visible_halts(context), 202)


async def lift_halt(context: RequestContext) -> Response:
    """Lift a halt."""
    body = await context.decode_body(LiftBody)
    context.audit.target = body.scope
    lifted = await context.server.mid.lift(
        scope=body.scope, tenant=body.tenant, actor=context.actor
    )
    return json_response(LiftReply(lifted=lifted))


async def list_halts(context: RequestContext) -> Response:
    """List the halts in force that concern the caller."""
    return json_response(await _list_visible_halts(context))


async def _list_visible_halts(context: RequestContext) -> Halts:
    found = [
        halt
        for halt in await context.server.store.list_halts(context.visibility.tenant)
        if await _may_see_halt(context, halt)
    ]
    return Halts(items=tuple(found))


async def _may_see_halt(context: RequestContext, halt: HaltRecord) -> bool:
    """Return whether the caller may see `halt`.

    A user must see an open run that the halt covers: its reason may describe another user's
    run. So must a caller of a tenant, if the halt covers all tenants.
    """
    kind, _, name = halt.scope.partition(":")
    tenant = context.visibility.tenant
    is_own = not context.owner_filter and tenant in {None, halt.tenant}
    if is_own or kind == "all":
        return True
    if kind == "run":
        try:
            return await context.can_see(RunId(name))
        except RunNotFound:
            return False
    # A halt of an agent or a label: one open run of the caller that it covers is enough.
    query = RunQuery(
        phases=tuple(phase for phase in Phase if phase not in TERMINAL_PHASES),
        agent=name if kind == "agent" else "",
        label=name if kind == "label" else "",
        limit=1,
    )
    return bool((await context.server.store.list_runs(context.restrict_query(query))).items)


async def list_audit(context: RequestContext) -> Response:
    """List the actions of people in all runs, and on this server, in a time range.

    `since` and `until` are microseconds since 1970.
    """
    since = context.read_number("since", 0, minimum=0, maximum=2**53 - 1)
    until = context.read_number("until", 2**53 - 1, minimum=0, maximum=2**53 - 1)
    cursor = context.request.query_params.get("cursor", "")
    context.audit.is_due = not cursor  # one record for an export, not one for each page
    page = await read_audit_page(
        context.server.store,
        since=Micros(since),
        until=Micros(until),
        cursor=cursor,
        tenant=context.visibility.tenant,
    )
    return json_response(AuditPage(items=page.items, next_cursor=page.cursor))


async def show_metrics(context: RequestContext) -> Response:
    """Show the metrics of this process, for Prometheus."""
    if context.visibility.tenant is not None:
        problem = (
            "Cannot show the metrics to an operator of one tenant: they count the runs of all "
            "tenants. Use the token of an operator without a tenant."
        )
        raise HttpProblem("not_allowed", 403, problem)
    metrics = context.server.metrics
    if metrics is None or (rendered := metrics.render()) is None:
        problem = "Cannot show metrics: this server has none. Start it with --metrics."
        raise HttpProblem("not_found", 404, problem)
    body, content_type = rendered
    return Response(body, media_type=content_type)


async def delete_run(context: RequestContext) -> Response:
    """Delete a run that has ended, and its child runs; only a tombstone is left."""
    run = context.audit.target = context.path["run"]
    reason = context.request.query_params.get("reason", "")
    store = context.server.store
    return json_response(await deletion.delete_one(store, RunId(run), context.actor, reason))


async def delete_runs(context: RequestContext) -> Response:
    """Delete some of the runs that match and have ended; repeat it while there are more."""
    body = await context.decode_body(DeletionBody)
    check_selection(body.runs)
    context.audit.target = encode_wire(body.runs).decode()
    server = context.server
    deleted = await deletion.delete_selected(
        server.store,
        deletion.restrict_selection(body.runs, context.actor),
        server.mid.now(),
        by=context.actor,
        reason=body.reason,
        max_runs=DELETE_MAX_RUNS,
    )
    return json_response(DeletedCount(deleted=deleted, more=deleted > 0))


async def count_deletable(context: RequestContext) -> Response:
    """Count the runs that a deletion would delete, and those that have not ended."""
    body = await context.decode_body(DeletionBody)
    check_selection(body.runs)
    server, runs = context.server, deletion.restrict_selection(body.runs, context.actor)
    return json_response(await deletion.count_deletable(server.store, runs, server.mid.now()))


async def show_actor(context: RequestContext) -> Response:
    """Show the actor of the credential."""
    return json_response(msgspec.convert(context.actor, SessionActor, from_attributes=True))


async def list_quotas(context: RequestContext) -> Response:
    """List the quotas of the caller and of its tenant, with how much of each is used."""
    return json_response(QuotaList(items=await context.list_used_quotas()))


async def sign_in(context: RequestContext) -> Response:
    """Exchange a token, or the code of a one-time link, for a cookie and its proof."""
    # A session must not open the next one: it could then be extended without end.
    if context.caller.session is not None:
        problem = "Cannot open a session: the request has one already. Send a token or a code."
        raise HttpProblem("unauthorized", 401, problem)
    await context.decode_body(Empty)
    sessions, actor = context.server.sessions, context.actor
    secret = sessions.open(actor, token=context.caller.token)
    reply = json_response(
        NewSession(
            name=actor.name,
            role=actor.role,
            tenant=actor.tenant,
            teams=actor.teams,
            proof=sessions.make_proof(secret),
        )
    )
    name, path, is_https = get_cookie_attributes(context.request.scope)
    reply.set_cookie(
        name,
        secret,
        max_age=SESSION_LIFETIME_S,
        path=path,
        httponly=True,
        samesite="strict",
        secure=is_https,
    )
    return reply


SIGN_IN_PATH: Final = "/sign-in"
CALLBACK_PATH: Final = "/sign-in/callback"


async def answer_browser_sign_in(
    request: Request, server: ServerState, audit: AuditRecord
) -> Response | None:
    """Send a browser to the identity provider, or sign it in when it returns; else None.

    Both paths need no credential. The second ends with a one-time code, as in a sign-in link:
    the page exchanges it for the cookie and its proof.

    Raises:
        HttpProblem: 401, the provider did not sign the browser in; 503, it does not answer.
    """
    path, way = path_below_mount(request.scope), find_browser_sign_in(server.auth)
    if way is None or request.method != "GET" or path not in {SIGN_IN_PATH, CALLBACK_PATH}:
        return None
    name, cookie_path, is_https = get_cookie_attributes(request.scope)
    name = f"{name}_sign_in"
    root = f"{request.scope['scheme']}://{request.headers['host']}{mount_path(request.scope)}"
    if path == SIGN_IN_PATH:
        address, secret = await way.begin(f"{root}{CALLBACK_PATH}")
        reply = Response(status_code=303, headers={"Location": address})
        # Lax, not Strict: the provider's page sends the browser back.
        reply.set_cookie(
            name,
            secret,
            max_age=SIGN_IN_LIFETIME_S,
            path=cookie_path,
            httponly=True,
            samesite="lax",
            secure=is_https,
        )
        return reply
    audit.action, audit.is_due = "sign_in", True
    secret = request.cookies.get(name, "")
    actor = await way.finish(secret, dict(request.query_params), f"{root}{CALLBACK_PATH}")
    if actor is None or find_name_problem(actor):
        problem = (
            "Cannot sign in: the identity provider did not confirm an account with a role "
            "here. Open the page and try again, or ask its operator for a role."
        )
        raise HttpProblem("unauthorized", 401, problem)
    audit.set_actor(actor)
    audit.write("done")
    code = server.sessions.issue_code(actor)
    reply = Response(status_code=303, headers={"Location": f"{root}/#code={code}"})
    reply.delete_cookie(name, path=cookie_path, httponly=True, samesite="lax", secure=is_https)
    return reply


async def sign_out(context: RequestContext) -> Response:
    """End the session of the cookie, and its streams."""
    if context.caller.session is None:
        problem = "Cannot sign out: the request has no session cookie. Discard the token."
        raise HttpProblem("no_session", 404, problem)
    context.server.sessions.end(context.caller.secret)
    reply = Response(status_code=204)
    name, path, is_https = get_cookie_attributes(context.request.scope)
    reply.delete_cookie(name, path=path, httponly=True, samesite="strict", secure=is_https)
    return reply


async def list_sessions(context: RequestContext) -> Response:
    """List the signed-in browsers, newest first."""
    own, sessions = context.caller.secret, context.server.sessions
    items = [
        SessionItem(
            id=session_id,
            name=session.actor.name,
            role=session.actor.role,
            tenant=session.actor.tenant,
            teams=session.actor.teams,
            opened_at=Micros(session.expires_at - SESSION_LIFETIME_S * MICROS_PER_SECOND),
            expires_at=session.expires_at,
            is_own=bool(own) and session_id == sessions.make_id(own),
        )
        for session_id, session in sessions.list_open(context.visibility.tenant)
    ]
    items.sort(key=lambda item: item.opened_at, reverse=True)
    return json_response(SessionList(items=tuple(items)))


async def end_session(context: RequestContext) -> Response:
    """Sign one browser out; its streams end at once."""
    context.audit.target = context.path["session"]
    tenant, sessions = context.visibility.tenant, context.server.sessions
    if not sessions.end_by_id(context.path["session"], tenant):
        problem = (
            "Cannot end the session: this process knows no such session. See /v1/sessions."
        )
        raise HttpProblem("no_session", 404, problem)
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def end_sessions(context: RequestContext) -> Response:
    """Sign out every browser of an actor, and void its unused codes."""
    body = await context.decode_body(EndSessionsBody)
    context.audit.target = body.actor
    sessions = context.server.sessions
    tenant = context.visibility.tenant
    names = [session.actor.name for _, session in sessions.list_open(tenant)]
    sessions.end_all(body.actor, tenant)
    return json_response(EndedSessions(ended=names.count(body.actor)))


def get_cookie_attributes(scope: Scope) -> tuple[str, str, bool]:
    """Return the name and the path of the session cookie, and whether it is `Secure`.

    Browsers share cookies over all ports of a host, so the name contains the port. Over https
    it has the prefix `__Host-`, which keeps subdomains from setting it. That prefix requires
    the path `/`, so the name also contains the mount path: it distinguishes servers that are
    mounted at different paths of one host.
    """
    root, is_https = mount_path(scope), scope["scheme"] == "https"
    name = f"midrun_{split_host(Headers(scope=scope).get('host', ''))[1]}"
    if is_https:
        return f"__Host-{name}{quote(root, safe='')}", "/", True
    return name, f"{root}/", False


def read_session_cookie(request: Request) -> str:
    """Return the session cookie; "" if there is none.

    A second cookie of the same name can only come from another server of the host, which set
    it for another path or domain. That server could choose which of the two counts, so the
    request is refused.

    Raises:
        HttpProblem: 400, the request has several cookies of that name.
    """
    name, *_ = get_cookie_attributes(request.scope)
    # Counted in the raw header: the parsed cookies are a dict, which keeps one of each name.
    cookies = ";".join(request.headers.getlist("cookie")).split(";")
    names = [each.partition("=")[0].strip() for each in cookies]
    if names.count(name) > 1:
        problem = (
            f"Cannot identify the session: the request has several cookies {name}. Delete the "
            "cookies of this host and sign in again."
        )
        raise HttpProblem("duplicate_cookie", 400, problem)
    return request.cookies.get(name, "")


def make_liveness_response() -> Response:
    """Return 204: the process answers. It needs no credential and holds no data."""
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def make_readiness_response(server: ServerState, scope: Scope) -> Response:
    """Return 204 if the store answers and the server is not about to stop, else 503."""
    try:
        await server.store.list_halts()
    except (MidrunError, HttpProblem):
        return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
    stops = server.is_draining or server.closing.is_set()
    stops = stops or (not server.is_close_promised and is_stopping(scope))
    return Response(
        status_code=HTTPStatus.SERVICE_UNAVAILABLE if stops else HTTPStatus.NO_CONTENT
    )
