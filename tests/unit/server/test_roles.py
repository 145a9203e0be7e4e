"""Who may take which route: every route of the app, for every kind of caller."""

from typing import Final, Literal

import httpx2

from midrun import Agent
from midrun.core.ids import RunId
from midrun.models import ScriptedModel
from midrun.ports.store import RunQuery
from midrun.server.app import _ROUTE_TABLE
from midrun.server.routes import Endpoint
from tests.unit.server.conftest import Serve, Served
from tests.unit.server.defences import JSON, name_of, path_of

Least = Literal["viewer", "user", "operator"]

RULES: Final[dict[str, Least]] = {
    "POST /v1/runs": "user",
    "GET /v1/runs": "viewer",
    "GET /v1/runs/{run}": "viewer",
    "PATCH /v1/runs/{run}": "operator",
    "POST /v1/runs/{run}/pause": "user",
    "POST /v1/runs/{run}/resume": "user",
    "POST /v1/runs/{run}/redirect": "user",
    "POST /v1/runs/{run}/messages": "user",
    "POST /v1/runs/{run}/cancel": "user",
    "POST /v1/runs/{run}/force_pause": "user",
    "POST /v1/runs/{run}/retry_undo": "operator",
    "POST /v1/runs/{run}/accept_residue": "operator",
    "POST /v1/runs/{run}/take_over": "user",
    "POST /v1/runs/{run}/write": "user",
    "POST /v1/runs/{run}/use_tool": "user",
    "POST /v1/runs/{run}/hand_back": "user",
    "POST /v1/runs/{run}/frames/{frame}/resume": "user",
    "GET /v1/runs/{run}/seen": "viewer",
    "GET /v1/runs/{run}/turns": "viewer",
    "GET /v1/runs/{run}/commands": "viewer",
    "GET /v1/runs/{run}/commands/{command}": "viewer",
    "DELETE /v1/runs/{run}/commands/{command}": "user",
    "GET /v1/runs/{run}/frames": "viewer",
    "DELETE /v1/runs/{run}/frames/{frame}": "user",
    "GET /v1/runs/{run}/effects": "viewer",
    "GET /v1/runs/{run}/report": "viewer",
    "GET /v1/runs/{run}/events": "viewer",
    "GET /v1/events": "viewer",
    "GET /v1/runs/{run}/boundaries": "viewer",
    "POST /v1/runs/{run}/fork": "user",
    "POST /v1/resume": "operator",
    "GET /v1/runs/{run}/verify": "viewer",
    "GET /v1/runs/{run}/checkpoint": "viewer",
    "GET /v1/runs/{run}/export": "viewer",
    "GET /v1/asks": "viewer",
    "GET /v1/approvals": "viewer",
    "POST /v1/asks/{ask}": "user",
    "POST /v1/approvals/{ask}": "user",
    "POST /v1/halt": "operator",
    "POST /v1/lift": "operator",
    "GET /v1/halts": "viewer",
    "GET /v1/agents": "viewer",
    "GET /v1/session": "viewer",
    "POST /v1/session": "viewer",
    "DELETE /v1/session": "viewer",
    "GET /v1/openapi.json": "viewer",
    "GET /openapi.json": "viewer",
    "POST /agui/{agent}": "user",
    "GET /copilotkit/info": "viewer",
    "POST /copilotkit/agent/{agent}/run": "user",
    "POST /copilotkit/agent/{agent}/connect": "user",
    "POST /copilotkit/agent/{agent}/stop/{thread}": "user",
    "POST /a2a/{agent}": "user",
    "GET /a2a/{agent}/{rest:path}": "viewer",
    "POST /a2a/{agent}/{rest:path}": "user",
}
"""The least that one must be; by hand, so that nobody decides it by leaving it out."""

RANK: Final[dict[str, int]] = {"viewer": 0, "user": 1, "operator": 2}
PEOPLE: Final = {None: -1, "vera": 0, "bob": 1, "ann": 1, "olga": 2}
"""Those who call, and what they are: nobody, a viewer, users, an operator. Runs are Ann's."""

ROUTES: Final = tuple(endpoint for endpoint, _ in _ROUTE_TABLE)


def test_every_route_has_a_rule_and_no_rule_is_left_over() -> None:
    """A new route is not open to whoever the code happens to let in."""
    assert {name_of(endpoint): endpoint.role for endpoint in ROUTES} == RULES


async def test_every_caller_may_take_their_routes_and_no_others(serve: Serve) -> None:
    """Nobody without a credential; users what is theirs; and who is refused changes nothing."""
    served = await serve(Agent("actor", model=ScriptedModel(["Done."])))
    run = await served.mid.start("actor", "Go.", actor="ann")
    await run.until("completed")
    callers = {name: await served.client(name) for name in PEOPLE}
    for endpoint in ROUTES:
        before = await _told(served, run.id)
        about = {"{run}", "{ask}"} & set(endpoint.path.replace("/", " ").split())
        for name, client in callers.items():
            reply = await _called(client, endpoint, run.id)
            where = f"{name}: {name_of(endpoint)}: {reply.status_code} {reply.text[:200]}"
            if name is None:
                assert reply.status_code == 401, where
            elif PEOPLE[name] < RANK[endpoint.role]:
                assert reply.status_code == 403, where
                assert ("run" in reply.json()) == (name != "bob" and bool(about)), where
            elif name == "bob" and about:
                assert (reply.status_code, _type(reply)) == (404, "run-not-found"), where
                none = await _called(client, endpoint, "run_none")
                assert none.json().keys() == reply.json().keys(), "nobody learns which exist"
            else:
                assert reply.status_code not in {401, 403}, where
                assert _type(reply) != "run-not-found", where
                continue
            assert await _told(served, run.id) == before, where


async def _called(client: httpx2.AsyncClient, endpoint: Endpoint, run: str) -> httpx2.Response:
    """Take a route with nothing in hand: a role is looked at before what is asked."""
    client.cookies.clear()
    path = path_of(endpoint, run)
    async with client.stream(endpoint.method, path, headers=JSON) as reply:
        if "event-stream" not in reply.headers.get("content-type", ""):
            await reply.aread()
        else:
            reply._content = b""
    return reply


async def _told(served: Served, run: str) -> tuple[int, int, int]:
    """Return what there is to change: entries of the run, other runs, latches."""
    store = served.mid.store
    seq, runs = (
        (await store.get_row(RunId(run))).seq,
        await store.list_runs(RunQuery(limit=500)),
    )
    return seq, len(runs.items), len(await store.list_halts())


def _type(reply: httpx2.Response) -> str:
    if not reply.headers.get("content-type", "").startswith("application/problem+json"):
        return ""
    return str(reply.json()["type"]).removeprefix("urn:midrun:problem:")
