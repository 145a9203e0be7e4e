"""Credentials, roles and owners: which caller may use which route on which run."""

from typing import Final, Literal

import httpx2
import pytest

from midrun import Agent, ask_human, tool
from midrun.core.entries import RunStarted
from midrun.core.ids import RunId
from midrun.core.values import Actor
from midrun.errors import Misconfigured
from midrun.models import ScriptedModel, Use
from midrun.ports.store import RunQuery
from midrun.server import Limits, Tokens, app
from midrun.server.app import _ROUTE_TABLE
from midrun.server.routes import ENDPOINTS, Endpoint
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import (
    ACTORS,
    RunningServer,
    StartServer,
    make_token,
    serve_on_loopback,
)
from tests.unit.server.endpoints import (
    JSON_HEADERS,
    count_entries,
    format_endpoint,
    has_security_headers,
    make_path,
)
from tests.unit.server.http_calls import expect_status


async def test_no_route_answers_without_a_credential(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Unknown paths answer 401, too: the response does not reveal which routes exist."""
    server = await serve(stage.agent("Done."), limits=Limits(failures=1000))
    for name in (None, "mallory"):
        client = await server.client(name)
        for endpoint in ENDPOINTS:
            reply = await client.request(
                endpoint.method, make_path(endpoint), headers=JSON_HEADERS
            )
            assert reply.status_code == 401, format_endpoint(endpoint)
            assert has_security_headers(reply)
        for path in ("/v1/openapi.json", "/nowhere", "/v1/"):
            assert (await client.get(path)).status_code == 401
    assert await count_entries(server) == 0


async def test_probes_need_no_credential_and_have_an_empty_body(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A load balancer has no token, and only needs to know whether the server is ready."""
    server = await serve(stage.agent("Done."))
    client = await server.client(None)
    for path in ("/healthz", "/readyz"):
        for method in ("GET", "HEAD"):
            reply = await client.request(method, path)
            assert (reply.status_code, reply.content) == (204, b"")
    server.app.close()
    assert (await client.get("/readyz")).status_code == 503


@pytest.mark.slow
@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        f"Basic {make_token('olga')}",
        f"Bearer {make_token('olga')}x",
        f"Bearer {make_token('olga')[:-1]}",
        f"Bearer {make_token('olga')},",
        f"Code {make_token('olga')}",
        "Bearer \udcff".encode(errors="surrogateescape").decode("latin-1"),
    ],
)
async def test_a_credential_that_is_almost_right_is_refused(
    serve: StartServer, stage: ControllableTools, header: str
) -> None:
    """The header is not trimmed, and a token is compared as a whole."""
    server = await serve(stage.agent("Done."))
    client = await server.client(None)
    headers = {"Authorization": header.encode("latin-1")}
    assert (await client.get("/v1/runs", headers=headers)).status_code == 401  # type: ignore[arg-type]


async def test_a_role_comes_from_the_credential(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Headers and fields that claim another actor or role are ignored or refused."""
    server = await serve(stage.agent("Done."))
    ann = await server.client("ann")
    claims = {"X-Role": "operator", "X-Actor": "olga", "X-Forwarded-User": "olga"}
    body = {"scope": "all", "reason": "x"}
    assert (await ann.post("/v1/halt", json=body, headers=claims)).status_code == 403
    for claim in ({"actor": "olga"}, {"role": "operator"}, {"by": "olga"}):
        start_body = {"agent": "actor", "input": "Go.", **claim}
        assert (await ann.post("/v1/runs", json=start_body)).status_code == 422
    created = await ann.post(
        "/v1/runs", json={"agent": "actor", "input": "Go."}, headers=claims
    )
    assert created.json()["started_by"] == "ann"


async def test_users_see_their_own_runs_in_every_list(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Runs of other users are neither in the pages nor in the counts."""
    server = await serve(stage.agent("Done."))
    own_runs = [await server.mid.start("actor", f"{n}", actor="ann") for n in range(3)]
    for n in range(3):
        await server.mid.start("actor", f"{n}", actor="bob")
    ann, vera = await server.client("ann"), await server.client("vera")
    listed_ids: list[str] = []
    cursor = ""
    while True:
        page = (await ann.get("/v1/runs", params={"limit": 2, "cursor": cursor})).json()
        listed_ids += [row["run_id"] for row in page["items"]]
        assert page["counts"] == {}
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert sorted(listed_ids) == sorted(run.id for run in own_runs)
    all_runs = (await vera.get("/v1/runs")).json()
    assert len(all_runs["items"]) == 6
    assert sum(all_runs["counts"].values()) == 6


async def test_newer_runs_of_others_do_not_push_a_run_out_of_a_users_lists(
    serve: StartServer,
) -> None:
    script = [Use("ask_human", question="Which?")] * 99
    server = await serve(Agent("actor", model=ScriptedModel(script), tools=[ask_human]))
    own_run = await server.mid.start("actor", "hers", actor="ann")
    for n in range(30):
        await server.mid.start("actor", f"{n}", actor="bob")
    for row in (await server.mid.runs(limit=99)).items:
        await (await server.mid.get(row.run_id)).until("waiting")
    ann = await server.client("ann")
    for path in ("/v1/runs", "/v1/asks"):
        page = expect_status(await ann.get(path, params={"limit": 1}), 200).json()
        assert [item["run_id"] for item in page["items"]] == [own_run.id]
        assert page["next_cursor"] == ""


async def test_a_cursor_does_not_reveal_how_many_runs_others_have(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    *_, newest = [
        await server.mid.start("actor", "Go.", actor=name)
        for name in ("ann", "bob", "bob", "ann")
    ]
    ann = await server.client("ann")
    for query in ("limit=1", "limit=1&search=go"):
        page = (await ann.get(f"/v1/runs?{query}")).json()
        assert page["next_cursor"] == newest.id
    await server.mid.start("actor", "A secret plan", actor="bob")
    assert (await ann.get("/v1/runs", params={"search": "secret"})).json()["items"] == []


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/asks", "/a2a/actor/tasks"])
async def test_a_cursor_does_not_reveal_that_a_run_of_another_user_exists(
    serve: StartServer, stage: ControllableTools, path: str
) -> None:
    """The id of a run follows from its `Idempotency-Key`, which others may guess."""
    server = await serve(stage.agent("Done."))
    runs = [await server.mid.start("actor", "Go.", actor=name) for name in ("ann", "bob")]
    version = {"A2A-Version": "1.0"}
    name = "pageToken" if "a2a" in path else "cursor"
    for caller, visible_runs in (("ann", runs[:1]), ("bob", runs[1:]), ("vera", runs)):
        client = await server.client(caller)
        for cursor in (*(run.id for run in runs), "run_of_none"):
            reply = await client.get(path, params={name: cursor}, headers=version)
            is_known = cursor in {run.id for run in visible_runs}
            assert reply.status_code == (200 if is_known else 400), (caller, cursor)


async def test_runs_of_different_users_do_not_share_history_under_one_thread_id(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A user does not even learn that others have runs under the same thread id."""
    server = await serve(stage.agent(*["The password is swordfish."] * 9))
    for name in ("olga", "ann", "olga"):
        run = await server.mid.start("actor", "Tell.", thread="t", actor=ACTORS[name])
        await run.until("terminal")
    body = {"agent": "actor", "input": "What was said?", "thread_id": "t"}
    histories: dict[str, list[str]] = {}
    replies = []
    for name in ("bob", "ann", "olga", "bob"):
        client = await server.client(name)
        replies.append(expect_status(await client.post("/v1/runs", json=body), 201).json())
        await (await server.mid.get(replies[-1]["run_id"])).until("terminal")
        (record,) = await server.mid.store.read(replies[-1]["run_id"], limit=1)
        assert isinstance(record.entry, RunStarted)
        user_texts = [m.text for m in record.entry.history if m.role == "user"]
        histories.setdefault(name, []).append(", ".join(user_texts))
    assert histories["bob"] == ["", "What was said?"]
    assert histories["ann"] == ["Tell."]
    all_texts = ["Tell."] * 3 + ["What was said?"] * 2
    assert histories["olga"] == [", ".join(all_texts)], "operators see the whole thread"
    new_thread = body | {"thread_id": "a new thread"}
    reply = expect_status(
        await (await server.client("bob")).post("/v1/runs", json=new_thread), 201
    ).json()
    assert reply.keys() == replies[0].keys(), "does not reveal which threads exist"


async def test_the_history_of_a_thread_counts_the_newest_runs_per_owner(
    serve: StartServer, stage: ControllableTools
) -> None:
    """51 newer runs of another user do not push out the user's own run."""
    server = await serve(stage.agent(*["Done."] * 60))
    own_run = await server.mid.start("actor", "Hers.", thread="t", actor=ACTORS["ann"])
    await own_run.until("terminal")
    for _ in range(51):
        await server.mid.start("actor", "His.", thread="t", actor=ACTORS["bob"])
    body = {"agent": "actor", "input": "Go on.", "thread_id": "t"}
    created = expect_status(
        await (await server.client("ann")).post("/v1/runs", json=body), 201
    ).json()
    (record,) = await server.mid.store.read(created["run_id"], limit=1)
    assert isinstance(record.entry, RunStarted)
    assert [message.text for message in record.entry.history] == ["Hers.", "Done."]


async def test_the_audience_of_an_ask_may_answer_it_but_not_read_the_run(
    serve: StartServer,
) -> None:
    """The ask is addressed to a user who does not own the run."""

    @tool(approve=True, audience="user:bob")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    model = ScriptedModel([Use("pay", amount=3), "Done."])
    server = await serve(Agent("payer", model=model, tools=[pay]))
    run = await server.mid.start("payer", "Pay.", actor="ann")
    await run.until("waiting")
    ann, bob, vera = [await server.client(name) for name in ("ann", "bob", "vera")]
    (owner_ask,) = (await ann.get("/v1/asks")).json()["items"]
    assert owner_ask["may_decide"] is False
    approval = {"decision": "approve"}
    path = f"/v1/approvals/{owner_ask['ref']}"
    assert (await ann.post(path, json=approval)).status_code == 403
    assert (await vera.post(path, json=approval)).status_code == 403
    (ask,) = (await bob.get("/v1/approvals")).json()["items"]
    assert (ask["may_decide"], ask["args"]) == (True, {"amount": 3})
    assert (await bob.get(f"/v1/runs/{run.id}")).status_code == 404
    response = await bob.post(path, json=approval)
    reply = expect_status(response, 202).json()
    assert (reply["run"], reply["overlay"]) == (None, None)
    assert (await run.until("terminal")).phase == "completed"
    # Bob got this cursor from a list while the ask was open, and may still use it.
    expect_status(await bob.get("/v1/asks", params={"cursor": run.id}), 200)


async def test_a_user_sees_only_the_halts_that_cover_their_runs(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The scope of a halt names runs of others, and its reason may describe them."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."), stage.agent(name="other"))
    labels = ["hers"]
    run = await server.mid.start("actor", "Hers.", actor="ann", labels=labels)
    await stage.start("x").wait()
    for scope in (f"run:{run.id}", "label:hers", "agent:actor", "agent:other", "all"):
        kind = scope.partition(":")[0] if "other" not in scope else "other"
        await server.mid.halt(kind, scope=scope, actor="operator:olga")
    reasons: dict[str, list[str]] = {}
    for name in ("ann", "bob", "vera", "olga"):
        halts = (await (await server.client(name)).get("/v1/halts")).json()["items"]
        reasons[name] = [halt["reason"] for halt in halts]
    assert reasons["olga"] == reasons["vera"] == ["run", "label", "agent", "other", "all"]
    assert reasons["ann"] == ["run", "label", "agent", "all"]
    assert reasons["bob"] == ["all"]


async def test_an_account_cannot_have_the_name_of_the_default_actor(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Runs without an actor have the owner `user`; such an account would own them."""
    namesake = Actor(name="user", role="user")
    with pytest.raises(Misconfigured, match="another name"):
        Tokens({make_token("user"): namesake})
    server = await serve(stage.agent("Done."))
    await server.mid.start("actor", "A run without an owner.")
    with pytest.raises(Misconfigured, match="another name"):
        server.app.code(namesake)

    async def auth(token: str) -> Actor | None:
        return namesake if token == make_token("user") else None

    async with serve_on_loopback(app(server.mid, auth=auth)) as port:
        client = await server.client("user")
        reply = await client.get(f"http://127.0.0.1:{port}/v1/runs")
        assert "another name" in expect_status(reply, 403).json()["detail"]


async def test_a_user_without_a_name_is_refused(
    serve: StartServer, stage: ControllableTools
) -> None:
    """In a query of the store, an empty owner means the runs of all owners."""
    nameless = Actor(name="", role="user")
    with pytest.raises(Misconfigured, match="has no name"):
        Tokens({make_token("nameless"): nameless})
    server = await serve(stage.agent("Done."))
    await server.mid.start("actor", "Ann's.", actor="ann")

    async def auth(token: str) -> Actor | None:
        return nameless if token == make_token("nameless") else None

    async with serve_on_loopback(app(server.mid, auth=auth)) as port:
        client = await server.client("nameless")
        for path in ("/v1/runs", "/v1/asks", "/v1/events"):
            reply = await client.get(f"http://127.0.0.1:{port}{path}")
            assert "has no name" in expect_status(reply, 403).json()["detail"]


# ── routes and roles ───────────────────────────────────────────────────────────


Role = Literal["viewer", "user", "operator"]

LEAST_ROLES: Final[dict[str, Role]] = {
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
    "GET /v1/runs/{run}/overlay": "viewer",
    "GET /v1/runs/{run}/turns": "viewer",
    "GET /v1/runs/{run}/commands": "viewer",
    "GET /v1/runs/{run}/commands/{command}": "viewer",
    "DELETE /v1/runs/{run}/commands/{command}": "user",
    "GET /v1/runs/{run}/frames": "viewer",
    "DELETE /v1/runs/{run}/frames/{frame}": "user",
    "GET /v1/runs/{run}/effects": "viewer",
    "GET /v1/runs/{run}/report": "viewer",
    "GET /v1/runs/{run}/artifacts": "viewer",
    "GET /v1/runs/{run}/files/{hash}": "viewer",
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
    "POST /v1/deletions": "operator",
    "POST /v1/deletions/count": "operator",
    "DELETE /v1/runs/{run}": "operator",
    "GET /v1/halts": "viewer",
    "GET /v1/audit": "operator",
    "GET /metrics": "operator",
    "GET /v1/agents": "viewer",
    "GET /v1/session": "viewer",
    "GET /v1/quotas": "viewer",
    "POST /v1/session": "viewer",
    "DELETE /v1/session": "viewer",
    "GET /v1/sessions": "operator",
    "POST /v1/sessions/end": "operator",
    "DELETE /v1/sessions/{session}": "operator",
    "GET /v1/openapi.json": "viewer",
    "GET /openapi.json": "viewer",
    "POST /agui/{agent}": "user",
    "GET /copilotkit/info": "viewer",
    "POST /copilotkit/agent/{agent}/run": "user",
    "POST /copilotkit/agent/{agent}/connect": "user",
    "POST /copilotkit/agent/{agent}/stop/{thread}": "user",
    "POST /ai/{agent}": "user",
    "GET /ai/{agent}/{chat}": "viewer",
    "GET /ai/{agent}/{chat}/stream": "viewer",
    "POST /ai/{agent}/{chat}/stop": "user",
    "GET /openai/v1/models": "viewer",
    "GET /openai/v1/models/{agent}": "viewer",
    "POST /openai/v1/chat/completions": "user",
    "POST /openai/v1/responses": "user",
    "GET /openai/v1/responses/{response}": "viewer",
    "POST /openai/v1/responses/{response}/cancel": "user",
    "POST /a2a/{agent}": "user",
    "GET /a2a/{agent}/{rest:path}": "viewer",
    "POST /a2a/{agent}/{rest:path}": "user",
    "DELETE /a2a/{agent}/{rest:path}": "user",
    "POST /mcp": "viewer",  # its tools use the routes above
}
"""The least role for each route; by hand, so that a new route fails a test."""

ROLE_RANKS: Final[dict[str, int]] = {"viewer": 0, "user": 1, "operator": 2}

CALLER_RANKS: Final = {None: -1, "vera": 0, "bob": 1, "ann": 1, "olga": 2}
"""The callers; None has no credential. The run belongs to Ann."""

ALL_ROUTES: Final = tuple(endpoint for endpoint, _ in _ROUTE_TABLE)


def test_every_route_has_a_rule_and_no_rule_is_left_over() -> None:
    """A new route has to be added to the table above."""
    assert {format_endpoint(endpoint): endpoint.role for endpoint in ALL_ROUTES} == LEAST_ROLES


async def test_every_route_admits_exactly_the_callers_with_its_role(serve: StartServer) -> None:
    """The run of another user looks like a run that does not exist.

    A refused request changes nothing.
    """
    server = await serve(Agent("actor", model=ScriptedModel(["Done."])))
    run = await server.mid.start("actor", "Go.", actor="ann")
    await run.until("completed")
    callers = {name: await server.client(name) for name in CALLER_RANKS}
    # The deletion comes last: the other routes need the run.
    for endpoint in sorted(ALL_ROUTES, key=lambda e: e.audit_action == "delete"):
        before = await _count_stored(server, run.id)
        run_parameters = {"{run}", "{ask}"} & set(endpoint.path.replace("/", " ").split())
        for name, client in callers.items():
            reply = await _request_route(client, endpoint, run.id)
            message = (
                f"{name}: {format_endpoint(endpoint)}: {reply.status_code} {reply.text[:200]}"
            )
            if name is None:
                assert reply.status_code == 401, message
            elif CALLER_RANKS[name] < ROLE_RANKS[endpoint.role]:
                assert reply.status_code == 403, message
                assert ("run" in reply.json()) == (name != "bob" and bool(run_parameters)), (
                    message
                )
            elif name == "bob" and run_parameters:
                assert (reply.status_code, _problem_type(reply)) == (404, "run-not-found"), (
                    message
                )
                unknown = await _request_route(client, endpoint, "run_none")
                assert unknown.json().keys() == reply.json().keys(), (
                    "does not reveal which runs exist"
                )
            else:
                assert reply.status_code not in {401, 403}, message
                assert _problem_type(reply) != "run-not-found", message
                continue
            assert await _count_stored(server, run.id) == before, message


async def _request_route(
    client: httpx2.AsyncClient, endpoint: Endpoint, run: str
) -> httpx2.Response:
    """Send a request without a body: the role is checked before the body."""
    client.cookies.clear()
    path = make_path(endpoint, run)
    async with client.stream(endpoint.method, path, headers=JSON_HEADERS) as reply:
        if "event-stream" not in reply.headers.get("content-type", ""):
            await reply.aread()
        else:
            reply._content = b""
    return reply


async def _count_stored(server: RunningServer, run: str) -> tuple[int, int, int]:
    """Count everything that a request could change: entries of the run, runs, halts."""
    store = server.mid.store
    seq, runs = (
        (await store.get_row(RunId(run))).seq,
        await store.list_runs(RunQuery(limit=500)),
    )
    return seq, len(runs.items), len(await store.list_halts())


def _problem_type(reply: httpx2.Response) -> str:
    if not reply.headers.get("content-type", "").startswith("application/problem+json"):
        return ""
    return str(reply.json()["type"]).removeprefix("urn:midrun:problem:")
