"""What operators do, what probes ask, and how browsers sign in."""

from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Scope

from midrun.core.ids import Micros, RunId
from midrun.core.values import Value
from midrun.errors import MidrunError, RunNotFound
from midrun.ports.store import Halt
from midrun.server.bodies import Empty, HaltBody, LiftBody
from midrun.server.guard import split_host
from midrun.server.placing import root_of
from midrun.server.problems import Problem
from midrun.server.sessions import SESSION_S
from midrun.server.stopping import is_stopping
from midrun.server.visit import Lobby, Visit, answer


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


async def halt(visit: Visit) -> Response:
    """Set a latch: nothing of the runs it covers starts until it is lifted."""
    body = await visit.body(HaltBody)
    await visit.lobby.mid.halt(body.reason, scope=body.scope, actor=visit.actor)
    return answer(await _halts(visit), 202)


async def lift(visit: Visit) -> Response:
    """Take a latch away."""
    body = await visit.body(LiftBody)
    return answer(
        Lifted(lifted=await visit.lobby.mid.lift(scope=body.scope, actor=visit.actor))
    )


async def halts(visit: Visit) -> Response:
    """List the latches that hold."""
    return answer(await _halts(visit))


async def _halts(visit: Visit) -> Halts:
    found = [halt for halt in await visit.lobby.store.halts() if await _is_told(visit, halt)]
    return Halts(
        items=tuple(HaltLine(scope=h.scope, by=h.by, reason=h.reason, at=h.at) for h in found)
    )


async def _is_told(visit: Visit, halt: Halt) -> bool:
    """Tell whether the caller may know of a latch: one of a single run is for who sees that."""
    kind, _, run = halt.scope.partition(":")
    try:
        return kind != "run" or await visit.lobby.views.sees(visit.actor, RunId(run))
    except RunNotFound:
        return False


async def who(visit: Visit) -> Response:
    """Say whom the credential is for."""
    return answer(Signed(name=visit.actor.name, role=visit.actor.role))


async def sign_in(visit: Visit) -> Response:
    """Exchange a token, or the code of a one-time link, for a cookie."""
    await visit.body(Empty)
    sessions = visit.lobby.sessions
    secret = sessions.open(visit.actor, token=visit.caller.token)
    reply = await who(visit)
    reply.set_cookie(
        cookie_name(visit.request.headers.get("host", "")),
        secret,
        max_age=SESSION_S,
        path=root_of(visit.request.scope) + "/",
        httponly=True,
        samesite="strict",
        secure=visit.request.url.scheme == "https",
    )
    return reply


async def sign_out(visit: Visit) -> Response:
    """End the session of the cookie, and its streams with it."""
    if visit.caller.session is None:
        raise Problem("no_session", 404, "the request came with no cookie of a session")
    visit.lobby.sessions.end(visit.caller.secret)
    reply = Response(status_code=204)
    reply.delete_cookie(
        cookie_name(visit.request.headers.get("host", "")),
        path=root_of(visit.request.scope) + "/",
        httponly=True,
        samesite="strict",
    )
    return reply


def cookie_name(host: str) -> str:
    """Return the name of our cookie: browsers share cookies over all ports of a host."""
    return f"midrun_{split_host(host)[1]}"


def alive() -> Response:
    """Say that the process answers, and nothing else: anybody may ask."""
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def ready(lobby: Lobby, scope: Scope) -> Response:
    """Say whether runs can be looked at and controlled here, and nothing else."""
    try:
        await lobby.store.halts()
    except (MidrunError, Problem):
        return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
    leaves = lobby.is_draining or lobby.closing.is_set()
    leaves = leaves or (not lobby.is_told and is_stopping(scope))
    return Response(
        status_code=HTTPStatus.SERVICE_UNAVAILABLE if leaves else HTTPStatus.NO_CONTENT
    )
