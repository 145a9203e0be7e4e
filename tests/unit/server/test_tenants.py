"""Tenants: for a caller of one tenant, the runs of another do not exist, on any route."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import httpx2
import pytest
from sse_starlette.sse import AppStatus

from midrun import Actor, Agent, Midrun, Misconfigured, tool
from midrun.cli.main import main
from midrun.core.ids import RunId
from midrun.errors import CheckpointRefused, ControlRefused
from midrun.models import ScriptedModel, Use
from midrun.ports.store import RunQuery
from midrun.server import Limits, Quota, Tokens, app
from midrun.server.app import _ROUTE_TABLE
from midrun.server.routes import Endpoint
from midrun.workers.quotas import parse_quota_rules
from tests.support.store_choice import get_store_url
from tests.unit.server.conftest import (
    KEY,
    TIMEOUT_S,
    RunningServer,
    make_token,
    serve_on_loopback,
)
from tests.unit.server.endpoints import JSON_HEADERS, format_endpoint, make_path
from tests.unit.server.http_calls import expect_status

ON_BOTH_STORES: Final = pytest.mark.parametrize(
    "store_path", ["sqlite", "postgres"], indirect=True
)

PEOPLE: Final = {
    "ann": Actor(name="ann", role="user", tenant="acme"),
    "otto": Actor(name="otto", role="operator", tenant="acme"),
    # A user of the other tenant has the name of the owner.
    "namesake": Actor(name="ann", role="user", tenant="rival", teams=("legal",)),
    "vic": Actor(name="vic", role="viewer", tenant="rival"),
    "ria": Actor(name="ria", role="operator", tenant="rival"),
    "lea": Actor(name="lea", role="user", tenant="acme", teams=("legal",)),
    "plain": Actor(name="plain", role="user"),
    "root": Actor(name="root", role="operator"),
}
STRANGERS: Final = ("namesake", "vic", "ria")
"""The callers of the other tenant, one of each role."""

SECRET: Final = "zebra"
"""A word of the task; no reply to a stranger may have it."""


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@pytest.fixture
async def server(store_path: Path) -> AsyncIterator[RunningServer]:
    """Serve an agent whose run waits for an approval."""
    model = ScriptedModel([Use("pay", amount=3)] * 40)
    agent = Agent("actor", model=model, tools=[pay])
    with anyio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            mid = Midrun(get_store_url(store_path), agents=[agent], key=KEY)
            await stack.enter_async_context(mid)
            tokens = Tokens({make_token(name): actor for name, actor in PEOPLE.items()})
            asgi_app = app(mid, auth=tokens)
            port = await stack.enter_async_context(serve_on_loopback(asgi_app))
            yield RunningServer(mid, asgi_app, port, stack)


async def start_waiting(server: RunningServer, who: str = "ann", team: str = "") -> str:
    """Start a run that waits for an approval; return its id."""
    run = await server.mid.start(
        "actor", f"The {SECRET}.", thread="t", labels=["l"], actor=PEOPLE[who], team=team
    )
    await run.until("waiting")
    return run.id


# ── all routes ───────────────────────────────────────────────────────────────

PROTOCOL_HEADERS: Final = {
    "Accept": "application/json, text/event-stream",
    "MCP-Protocol-Version": "2025-06-18",
    "A2A-Version": "1.0",
}


def _rpc(method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


BODIES: Final[dict[str, list[dict[str, object]]]] = {
    "POST /v1/runs": [],  # starts a run in the caller's own tenant
    "POST /v1/resume": [],  # see the test of checkpoints
    "POST /v1/halt": [{"scope": "all", "reason": "r"}],
    "POST /v1/lift": [{"scope": "run:{run}"}],
    "POST /v1/deletions": [{"runs": {"thread": "t"}}, {"runs": {"older_than": 0}}],
    "POST /v1/deletions/count": [{"runs": {"user": "ann"}}, {"runs": {"older_than": 0}}],
    "POST /v1/session": [],
    "POST /v1/sessions/end": [{"actor": "ann"}],
    "POST /agui/{agent}": [],  # these start or continue a thread of the caller's own tenant:
    "POST /copilotkit/agent/{agent}/run": [],  # see the test of threads
    "POST /copilotkit/agent/{agent}/connect": [
        {"threadId": "t", "runId": "r", "state": {}, "messages": [], "tools": [], "context": []}
    ],
    "POST /copilotkit/agent/{agent}/stop/{thread}": [{}],
    "POST /ai/{agent}": [],
    "POST /ai/{agent}/{chat}/stop": [{}],
    "POST /openai/v1/chat/completions": [],
    "POST /openai/v1/responses": [
        {"model": "actor", "input": "hi", "previous_response_id": "resp_{run}-1"}
    ],
    "POST /openai/v1/responses/{response}/cancel": [{}],
    "POST /a2a/{agent}": [
        _rpc("GetTask", id="{run}"),
        _rpc("CancelTask", id="{run}"),
        _rpc("SubscribeToTask", id="{run}"),
        _rpc("ListTasks"),
        _rpc("ListTasks", contextId="t"),
        _rpc("tasks/get", id="{run}"),
        _rpc("tasks/cancel", id="{run}"),
    ],
    "POST /a2a/{agent}/{rest:path}": [{}],
    "DELETE /a2a/{agent}/{rest:path}": [{}],
    "POST /mcp": [
        _rpc("tools/call", name=name, arguments={"run": "{run}"})
        for name in ("midrun_status", "midrun_pause", "midrun_cancel", "midrun_list_runs")
    ],
}
"""Bodies for the routes that change something and have no run in their path.

A new route has to be added here: with bodies that name a run of another tenant, or none if
its body cannot name one.
"""


def _has_run(endpoint: Endpoint) -> bool:
    return "{run}" in endpoint.path or "{ask}" in endpoint.path


def test_every_route_without_a_run_in_its_path_has_bodies() -> None:
    bare = {
        format_endpoint(endpoint)
        for endpoint, _ in _ROUTE_TABLE
        if endpoint.method != "GET" and not _has_run(endpoint)
    }
    assert bare - {"DELETE /v1/session", "DELETE /v1/sessions/{session}"} == set(BODIES)


async def _send(
    client: httpx2.AsyncClient, endpoint: Endpoint, run: str, body: object
) -> tuple[int, str]:
    """Send a request; return the status and the text."""
    client.cookies.clear()
    is_protocol = endpoint.path.startswith(("/mcp", "/a2a"))
    headers = JSON_HEADERS | (PROTOCOL_HEADERS if is_protocol else {})
    text = httpx2.Request("POST", "http://x", json=body).content.decode() if body else ""
    path = make_path(endpoint, run)
    if "{rest:path}" in endpoint.path:
        path = path.replace("tasks", f"tasks/{run}")
    async with client.stream(
        endpoint.method, path, headers=headers, content=text.replace("{run}", run)
    ) as reply:
        if "event-stream" not in reply.headers.get("content-type", ""):
            await reply.aread()
            return reply.status_code, reply.text
        found = ""
        async for chunk in reply.aiter_text():
            found += chunk
            if "stream.snapshot" in found and found.endswith("\n\n"):
                break  # the stream of all runs does not end
        return reply.status_code, found


@ON_BOTH_STORES
async def test_a_run_of_another_tenant_looks_like_none_on_every_route(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routes are those of the route table, and the callers have each role."""
    # A signal that another test sent to a server of this process would end streams of MCP.
    monkeypatch.setattr(AppStatus, "should_exit", False)
    run, none = await start_waiting(server), "run_00000000000000000000000000000000"
    before = await _read_all(server, run)
    # All roles on SQLite; on Postgres the one that may use all routes.
    names = STRANGERS if "sqlite" in type(server.mid.store).__name__.lower() else ("ria",)
    callers = {name: await server.client(name) for name in names}
    asked = 0
    for endpoint, _ in _ROUTE_TABLE:
        for name, client in callers.items():
            bodies: Sequence[object] = BODIES.get(format_endpoint(endpoint), [None])
            for body in bodies:
                message = f"{name}: {format_endpoint(endpoint)} {body}"
                status, text = await _send(client, endpoint, run, body)
                other_status, other_text = await _send(client, endpoint, none, body)
                assert SECRET not in text, message
                if _has_run(endpoint):
                    assert status in {403, 404}, f"{message}: {status} {text}"
                if endpoint.path != "/v1/audit":  # it has the requests before
                    seen = (status, text.replace(run, none))
                    assert seen == (other_status, other_text), message
                asked += 1
    assert asked > len(names) * len(_ROUTE_TABLE)
    await _check_that_the_owner_is_answered(server, run)
    await server.mid.store.remove_halt("all", "rival")  # of their own tenant
    assert await _read_all(server, run) == before


async def _check_that_the_owner_is_answered(server: RunningServer, run: str) -> None:
    """The requests would have found the run if they were those of its own tenant."""
    ann, told = await server.client("ann"), set()
    for endpoint, _ in _ROUTE_TABLE:
        if endpoint.method == "GET" or endpoint.path in {"/mcp", "/a2a/{agent}"}:
            for body in BODIES.get(format_endpoint(endpoint), [None])[:1]:
                _, text = await _send(ann, endpoint, run, body)
                told |= {endpoint.path} if SECRET in text or run in text else set()
    assert told >= {"/v1/runs", "/v1/asks", "/v1/events", "/mcp", "/a2a/{agent}"}
    assert told >= {"/ai/{agent}/{chat}", "/openai/v1/responses/{response}", "/v1/runs/{run}"}


async def _read_all(server: RunningServer, run: str) -> tuple[object, ...]:
    """Return everything that a request could change about a run."""
    store = server.mid.store
    runs = [row.run for row in (await store.list_runs(RunQuery())).items]
    return (await store.get_row(RunId(run))).seq, runs, tuple(await store.list_halts())


# ── lists, searches, counts, streams ─────────────────────────────────────────


async def _list_ids(client: httpx2.AsyncClient, path: str = "/v1/runs") -> list[str]:
    reply = expect_status(await client.get(path), 200).json()
    return [item.get("run_id") or item["id"] for item in reply["items"]]


@ON_BOTH_STORES
async def test_lists_have_the_runs_of_the_callers_tenant(server: RunningServer) -> None:
    own = await start_waiting(server)
    shared = await start_waiting(server, "otto", team="legal")
    other = await start_waiting(server, "namesake")
    default = await start_waiting(server, "root")
    clients = {name: await server.client(name) for name in PEOPLE}
    expected = {
        "ann": [own],
        "lea": [shared],
        "otto": [shared, own],
        "namesake": [other],
        "vic": [other],
        "ria": [other],
        "plain": [],
        "root": [default, other, shared, own],
    }
    for name, runs in expected.items():
        for query in ("", "?label=l", "?thread=t", f"?search={SECRET}", "?phase=waiting"):
            assert await _list_ids(clients[name], f"/v1/runs{query}") == runs, (name, query)
        asks = (await clients[name].get("/v1/asks")).json()["items"]
        assert sorted(ask["run_id"] for ask in asks) == sorted(runs), name
        reply = (await clients[name].get("/v1/runs")).json()
        if PEOPLE[name].role != "user":
            assert sum(reply["counts"].values()) == len(runs), name
        ids = f"/v1/runs?run={own},{shared},{other},{default}"
        assert set(await _list_ids(clients[name], ids)) == set(runs), name
    # An operator of no tenant may choose one; others stay in theirs.
    for name, runs in (("root", [shared, own]), ("ria", [other]), ("plain", [])):
        assert await _list_ids(clients[name], "/v1/runs?tenant=acme") == runs
    for cursor in (own, shared):
        reply = await clients["ria"].get("/v1/runs", params={"cursor": cursor})
        expect_status(reply, 400)


@ON_BOTH_STORES
async def test_a_user_of_the_team_controls_a_shared_run(server: RunningServer) -> None:
    """Owner or team: both see the run and control it by their role."""
    shared = await start_waiting(server, "ann", team="legal")
    lea, namesake = await server.client("lea"), await server.client("namesake")
    expect_status(await lea.post(f"/v1/runs/{shared}/pause", json={}), 202)
    expect_status(await namesake.post(f"/v1/runs/{shared}/pause", json={}), 404)
    body = {"agent": "actor", "input": "Go.", "team": "legal"}
    created = expect_status(await lea.post("/v1/runs", json=body), 201).json()
    assert (await server.mid.store.get_row(created["run_id"])).head.team == "legal"
    ann = await server.client("ann")
    refused = expect_status(await ann.post("/v1/runs", json=body), 403).json()
    assert "none of your teams" in refused["detail"]


@ON_BOTH_STORES
async def test_the_stream_of_all_runs_has_one_tenant(server: RunningServer) -> None:
    ria = await server.client("ria")
    own = await start_waiting(server, "namesake")
    async with ria.stream("GET", "/v1/events") as reply:
        other = await start_waiting(server)
        last = await start_waiting(server, "namesake")
        text = ""
        async for chunk in reply.aiter_text():
            text += chunk
            if last in text:
                break
    assert own in text
    assert other not in text


async def test_each_tenant_has_threads_of_its_own(server: RunningServer) -> None:
    """Two users with the same name and the same thread do not share a history."""
    texts: dict[str, list[str]] = {}
    for name in ("ann", "namesake", "root", "otto"):
        client = await server.client(name)
        body = {"agent": "actor", "input": f"I am {name}.", "thread_id": "t"}
        run = expect_status(await client.post("/v1/runs", json=body), 201).json()["run_id"]
        (record, *_) = await server.mid.store.read(RunId(run), limit=1)
        history = getattr(record.entry, "history", ())
        texts[name] = [message.text for message in history if message.role == "user"]
    assert texts == {"ann": [], "namesake": [], "root": [], "otto": ["I am ann."]}


async def test_the_request_ids_of_two_tenants_do_not_collide(server: RunningServer) -> None:
    runs = set()
    for name in ("ann", "namesake"):
        client = await server.client(name)
        body, key = {"agent": "actor", "input": "Go."}, {"Idempotency-Key": "same"}
        reply = await client.post("/v1/runs", json=body, headers=key)
        runs.add(expect_status(reply, 201).json()["run_id"])
    assert len(runs) == 2


# ── quotas ───────────────────────────────────────────────────────────────────


@asynccontextmanager
async def serve_with_limits(server: RunningServer, limits: Limits) -> AsyncIterator[str]:
    """Serve the same store with limits, as a second server would; give its URL."""
    tokens = Tokens({make_token(name): actor for name, actor in PEOPLE.items()})
    async with serve_on_loopback(app(server.mid, auth=tokens, limits=limits)) as port:
        yield f"http://127.0.0.1:{port}"


@ON_BOTH_STORES
async def test_a_tenant_whose_quota_is_used_up_starts_nothing_on_any_server(
    server: RunningServer,
) -> None:
    """The store counts: a run that one server started counts at the others."""
    quota = Quota(runs_per_day=1, open_runs=5, stored_bytes=10**9)
    limits = Limits(tenant_quota=quota, tenant_quotas={"rival": Quota(open_runs=1)})
    body = {"agent": "actor", "input": "Go."}
    ann, otto, namesake = [await server.client(name) for name in ("ann", "otto", "namesake")]
    async with (
        serve_with_limits(server, limits) as one,
        serve_with_limits(server, limits) as two,
    ):
        expect_status(await ann.post(f"{one}/v1/runs", json=body), 201)
        for client in (ann, otto):  # also its operators
            refused = expect_status(await client.post(f"{two}/v1/runs", json=body), 429)
            problem = refused.json()
            assert problem["type"] == "urn:midrun:problem:quota-used-up"
            assert "quota of tenant acme is used up" in problem["detail"]
            assert "a day old" in problem["detail"]
            facts = [problem[name] for name in ("scope", "quota", "limit", "used")]
            assert facts == ["tenant", "runs_per_day", 1, 1]
            assert 86_000 < int(refused.headers["retry-after"]) <= 86_400
        # Another tenant, and an operator of no tenant, are not concerned.
        expect_status(await namesake.post(f"{two}/v1/runs", json=body), 201)
        refused = expect_status(await namesake.post(f"{one}/v1/runs", json=body), 429)
        assert (refused.json()["quota"], "retry-after" in refused.headers) == (
            "open_runs",
            False,
        )
        root = await server.client("root")
        expect_status(await root.post(f"{one}/v1/runs", json=body | {"tenant": "acme"}), 201)
        used = (await ann.get(f"{one}/v1/quotas")).json()["items"]
        assert {item["quota"]: item["used"] for item in used} | {"stored_bytes": 0} == {
            "open_runs": 2,
            "runs_per_day": 2,
            "stored_bytes": 0,
        }
        assert {(item["scope"], item["name"]) for item in used} == {("tenant", "acme")}
        assert (await root.get(f"{one}/v1/quotas")).json() == {"items": []}


async def test_streams_are_bounded_by_user_and_by_tenant(server: RunningServer) -> None:
    limits = Limits(quota=Quota(streams=1), tenant_quota=Quota(streams=2))
    ann, otto, lea = [await server.client(name) for name in ("ann", "otto", "lea")]
    async with serve_with_limits(server, limits) as url, AsyncExitStack() as streams:
        for client in (ann, otto):
            stream = client.stream("GET", f"{url}/v1/events")
            assert (await streams.enter_async_context(stream)).status_code == 200
        for client, scope in ((ann, "user"), (lea, "tenant")):
            problem = expect_status(await client.get(f"{url}/v1/events"), 429).json()
            assert (problem["scope"], problem["quota"]) == (scope, "streams")
        assert (await otto.get(f"{url}/v1/quotas")).json()["items"][-1]["used"] == 2


def test_quotas_are_read_from_settings() -> None:
    rules = parse_quota_rules(
        ["user.open_runs=20", "tenant.cost_per_day=2.5", "tenant:a.b.streams=3"]
    )
    assert rules.user == Quota(open_runs=20)
    assert rules.tenant == Quota(cost_per_day=2.5)
    assert rules.tenants == {"a.b": Quota(streams=3)}
    words = (
        "open_runs=1",
        "user.runs=1",
        "user.open_runs",
        "user.open_runs=x",
        "team.streams=1",
    )
    for word in (*words, "user:ann.streams=1", "tenant:.streams=1", "user.streams=-1", ""):
        with pytest.raises(Misconfigured, match=r"tenant:TENANT\.NAME=N"):
            parse_quota_rules([word])


# ── operators ────────────────────────────────────────────────────────────────


@ON_BOTH_STORES
async def test_an_operator_halts_and_deletes_within_the_tenant(server: RunningServer) -> None:
    acme, rival = await start_waiting(server), await start_waiting(server, "namesake")
    ria, otto, root = [await server.client(name) for name in ("ria", "otto", "root")]
    body = {"scope": "all", "reason": "rivals"}
    halts = expect_status(await ria.post("/v1/halt", json=body), 202).json()["items"]
    assert [halt["tenant"] for halt in halts] == ["rival"]
    assert not (await otto.get("/v1/halts")).json()["items"]
    refused = await otto.post("/v1/halt", json=body | {"tenant": "rival"})
    assert "the tenant of otto" in expect_status(refused, 422).json()["detail"]
    assert (await otto.post("/v1/lift", json={"scope": "all"})).json() == {"lifted": False}
    lift = {"scope": "all", "tenant": "rival"}
    assert (await root.post("/v1/lift", json=lift)).json() == {"lifted": True}
    await server.mid.halt("everything", actor="operator:root")
    for client in (ria, otto):
        assert (await client.get("/v1/halts")).json()["items"][0]["reason"] == "everything"
        assert (await client.post("/v1/lift", json={"scope": "all"})).json()["lifted"] is False
    await server.mid.lift(actor="operator:root")
    for run in (acme, rival):
        handle = await server.mid.get(run)
        await handle.cancel(actor="operator:root")
        await handle.until("cancelled")
    older = {"runs": {"older_than": 0}}
    assert (await ria.post("/v1/deletions/count", json=older)).json()["runs"] == 1
    assert (await ria.post("/v1/deletions", json=older)).json()["deleted"] == 1
    assert await _list_ids(root) == [acme]
    expect_status(await ria.get(f"/v1/runs/{rival}"), 410)
    expect_status(await otto.get(f"/v1/runs/{rival}"), 404)
    expect_status(await ria.delete(f"/v1/runs/{acme}"), 404)
    expect_status(await otto.delete(f"/v1/runs/{acme}"), 200)
    expect_status(await ria.delete(f"/v1/runs/{acme}"), 404)


@ON_BOTH_STORES
async def test_the_audit_trail_is_that_of_the_tenant(server: RunningServer) -> None:
    run = await start_waiting(server)
    root, otto, ria = [await server.client(name) for name in ("root", "otto", "ria")]
    expect_status(await otto.get(f"/v1/runs/{run}/export"), 200)
    expect_status(await root.get(f"/v1/runs/{run}/export"), 200)
    expect_status(await ria.get(f"/v1/runs/{run}/export"), 404)

    async def list_actions(client: httpx2.AsyncClient) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        cursor = ""
        while True:
            page = (await client.get("/v1/audit", params={"cursor": cursor})).json()
            found += [(entry["actor"], entry["action"]) for entry in page["items"]]
            if not (cursor := page["next_cursor"]):
                return [each for each in found if each[1] != "audit"]

    expected = [("otto", "export"), ("root", "export"), ("ann", "start")]
    assert await list_actions(otto) == expected
    assert await list_actions(ria) == [("ria", "export")]
    assert len(await list_actions(root)) == 4
    expect_status(await otto.get("/metrics"), 403)


async def test_sessions_are_administered_per_tenant(server: RunningServer) -> None:
    for name in ("ann", "namesake"):
        expect_status(await (await server.client(name)).post("/v1/session", json={}), 200)
    ria, root = await server.client("ria"), await server.client("root")
    (session,) = (await ria.get("/v1/sessions")).json()["items"]
    assert (session["name"], session["tenant"]) == ("ann", "rival")
    everything = (await root.get("/v1/sessions")).json()["items"]
    (other,) = [each["id"] for each in everything if each["tenant"] == "acme"]
    expect_status(await ria.delete(f"/v1/sessions/{other}"), 404)
    assert (await ria.post("/v1/sessions/end", json={"actor": "ann"})).json() == {"ended": 1}
    left = (await root.get("/v1/sessions")).json()["items"]
    assert [each["id"] for each in left] == [other]


async def test_the_command_lists_and_ends_sessions(
    server: RunningServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ann", "namesake", "namesake"):
        expect_status(await (await server.client(name)).post("/v1/session", json={}), 200)

    async def command(who: str, *words: str) -> list[str]:
        monkeypatch.setenv("MIDRUN_TOKEN", make_token(who))
        line = ["sessions", *words, "--url", server.url]
        assert await anyio.to_thread.run_sync(main, line) == 0
        return capsys.readouterr().out.splitlines()

    assert len(await command("root", "list")) == 3
    first, second = await command("ria", "list")
    assert "ann  user  tenant rival  for 12.0 h" in first
    assert await command("ria", "end", "--id", second.split()[0])
    assert await command("ria", "end", "ann") == ["ended 1 sessions of ann"]
    assert len(await command("root", "list")) == 1


async def test_a_checkpoint_of_another_tenant_is_refused(server: RunningServer) -> None:
    run = await server.mid.get(await start_waiting(server))
    checkpoint = await run.checkpoint()
    with pytest.raises(CheckpointRefused, match="tenant_mismatch"):
        await server.mid.resume(checkpoint, actor=PEOPLE["ria"])
    with pytest.raises(ControlRefused, match="answer_needed"):
        await server.mid.resume(checkpoint, actor=PEOPLE["otto"])
