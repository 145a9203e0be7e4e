"""What operators do, what probes ask, and how browsers sign in."""

from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from midrun.core.ids import Micros, RunId
from midrun.core.values import TERMINAL, Phase, Value
from midrun.errors import MidrunError, RunNotFound
from midrun.ports.store import Halt, Query
from midrun.server.mounting import root_of
from midrun.server.problem_details import Problem
from midrun.server.request_checks import split_host
from midrun.server.request_context import Lobby, Visit, answer, is_stopping
from midrun.server.schemas import Empty, HaltBody, LiftBody
from midrun.server.sessions import SESSION_S

PROOF_HEADER: Final = "midrun-session-proof"
"""The header in which a page sends the proof of its session, besides the cookie."""


class HaltLine(Value, kw_only=True):
    """A latch that holds."""

    scope: str
    by: str
    reason: str
    at: Micros


class Halts(Value, kw_only=True):
    """The latches that hold now."""

    items: tuple[HaltLine, ...]


class Lifted(Value, kw_only=True):
    """Whether there was such a latch."""

    lifted: bool


class Signed(Value, kw_only=True):
    """Who a session is for."""

    name: str
    role: str


class SignedIn(Signed, kw_only=True):
    """The actor of a new session, and the proof that its page sends as `PROOF_HEADER`."""

    proof: str


async def halt(context: Visit) -> Response:
    """Set a latch: nothing of the runs it covers starts until it is lifted."""
    body = await context.body(HaltBody)
    context.audit.target = body.scope
    await context.lobby.mid.halt(body.reason, scope=body.scope, actor=context.actor)
    return answer(await _halts(context), 202)


async def lift(context: Visit) -> Response:
    """Take a latch away."""
    body = await context.body(LiftBody)
    context.audit.target = body.scope
    return answer(
        Lifted(lifted=await context.lobby.mid.lift(scope=body.scope, actor=context.actor))
    )


async def halts(context: Visit) -> Response:
    """List the latches that hold."""
    return answer(await _halts(context))


async def _halts(context: Visit) -> Halts:
    found = [
        halt for halt in await context.lobby.store.halts() if await _is_told(context, halt)
    ]
    return Halts(
        items=tuple(HaltLine(scope=h.scope, by=h.by, reason=h.reason, at=h.at) for h in found)
    )


async def _is_told(context: Visit, halt: Halt) -> bool:
    """Tell whether a latch concerns the caller: a user, if it covers an open run of theirs.

    The reason may say what another user's run is about.
    """
    kind, _, name = halt.scope.partition(":")
    owner = context.own_runs_only
    if not owner or kind == "all":
        return True
    if kind == "run":
        try:
            return await context.sees(RunId(name))
        except RunNotFound:
            return False
    query = Query(
        phases=tuple(phase for phase in Phase if phase not in TERMINAL),
        agent=name if kind == "agent" else "",
        label=name if kind == "label" else "",
        owner=owner,
        limit=1,
    )
    return bool((await context.lobby.store.runs(query)).items)


async def who(context: Visit) -> Response:
    """Say whom the credential is for."""
    return answer(Signed(name=context.actor.name, role=context.actor.role))


async def sign_in(context: Visit) -> Response:
    """Exchange a token, or the code of a one-time link, for a cookie and its proof."""
    if context.caller.session is not None:  # or a session could be made to last for ever
        problem = "Cannot open a session with a session. Send a token or a code."
        raise Problem("unauthorized", 401, problem)
    await context.body(Empty)
    sessions, actor = context.lobby.sessions, context.actor
    secret = sessions.open(actor, token=context.caller.token)
    reply = answer(SignedIn(name=actor.name, role=actor.role, proof=sessions.proof_of(secret)))
    name, path, is_https = cookie_place(context.request.scope)
    reply.set_cookie(
        name,
        secret,
        max_age=SESSION_S,
        path=path,
        httponly=True,
        samesite="strict",
        secure=is_https,
    )
    return reply


async def sign_out(context: Visit) -> Response:
    """End the session of the cookie, and its streams with it."""
    if context.caller.session is None:
        raise Problem("no_session", 404, "the request came with no cookie of a session")
    context.lobby.sessions.end(context.caller.secret)
    reply = Response(status_code=204)
    name, path, is_https = cookie_place(context.request.scope)
    reply.delete_cookie(name, path=path, httponly=True, samesite="strict", secure=is_https)
    return reply


def cookie_place(scope: Scope) -> tuple[str, str, bool]:
    """Return the name and the path of our cookie, and whether it is for https alone.

    Browsers share cookies over all ports of a host, so the name has the port. Over https it has
    the prefix `__Host-`, which keeps subdomains from setting it. That prefix demands the path
    `/`, so the name tells servers of one host apart that are mounted at different paths.
    """
    root, is_https = root_of(scope), scope["scheme"] == "https"
    name = f"midrun_{split_host(Headers(scope=scope).get('host', ''))[1]}"
    if is_https:
        return f"__Host-{name}{quote(root, safe='')}", "/", True
    return name, f"{root}/", False


def session_cookie(request: Request) -> str:
    """Return the cookie of our session; empty if there is none.

    A second cookie of the same name was set for another path or domain, by another server of
    the host: that server would choose which of them counts.

    Raises:
        Problem: 400, the request has several of that name.
    """
    name, *_ = cookie_place(request.scope)
    given = ";".join(request.headers.getlist("cookie")).split(";")
    names = [each.partition("=")[0].strip() for each in given]
    if names.count(name) > 1:
        problem = (
            f"Cannot tell which session is meant: the cookie {name} came more than once. "
            "Delete the cookies of this host, and sign in again."
        )
        raise Problem("duplicate_cookie", 400, problem)
    return request.cookies.get(name, "")


def alive() -> Response:
    """Say that the process answers, and nothing else: anybody may ask."""
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def ready(server: Lobby, scope: Scope) -> Response:
    """Say whether runs can be looked at and controlled here, and nothing else."""
    try:
        await server.store.halts()
    except (MidrunError, Problem):
        return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
    leaves = server.is_draining or server.closing.is_set()
    leaves = leaves or (not server.is_told and is_stopping(scope))
    return Response(
        status_code=HTTPStatus.SERVICE_UNAVAILABLE if leaves else HTTPStatus.NO_CONTENT
    )
