"""Checks of a request before its handler runs: host, origin, method, body and ids."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from midrun import Midrun, Misconfigured
from midrun.models import Use
from midrun.server import Limits, app
from midrun.server.admin import PROOF_HEADER
from midrun.server.routes import ENDPOINTS, Endpoint
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import TIMEOUT_S, StartServer, make_token, serve_on_loopback
from tests.unit.server.endpoints import (
    JSON_HEADERS,
    count_entries,
    format_endpoint,
    has_security_headers,
    make_path,
)
from tests.unit.server.http_calls import expect_status, start_run, wait_for_phase

# ── host and origin ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example", "[::1]", "", "x:y"],
)
async def test_a_request_for_an_unknown_host_is_misdirected(
    serve: StartServer, stage: ControllableTools, host: str
) -> None:
    """DNS rebinding: a page has its host name point to this server."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    for path in ("/v1/runs", "/", "/nowhere"):
        reply = await client.get(path, headers={"Host": host})
        assert reply.status_code == 421
        assert "--allow-host" in reply.json()["detail"]
        assert has_security_headers(reply)
    for path in ("/healthz", "/readyz"):  # they reveal only *ready* or *not ready*
        assert (await client.get(path, headers={"Host": host})).status_code == 204


async def test_loopback_and_allowed_hosts_are_accepted(
    serve: StartServer, stage: ControllableTools
) -> None:
    """An allowed name without a port matches any port, as behind a proxy."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    for name in ("localhost", "LOCALHOST", "[::1]", "127.0.0.1"):
        headers = {"Host": f"{name}:{server.port}"}
        assert (await client.get("/v1/runs", headers=headers)).status_code == 200
    hosts = ["runs.example", "other.example:444"]
    asgi_app = app(server.mid, token=make_token("me"), allow_hosts=hosts)
    async with (
        serve_on_loopback(asgi_app) as port,
        httpx2.AsyncClient(timeout=TIMEOUT_S) as outside,
    ):
        for host, status in (
            ("runs.example", 200),
            ("RUNS.example:8443", 200),
            ("other.example:444", 200),
            ("other.example", 421),
            ("runs.example:8443@evil.example", 421),
            ("runs.example:", 200),
        ):
            url = f"http://127.0.0.1:{port}/"
            assert (await outside.get(url, headers={"Host": host})).status_code == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
async def test_a_page_of_another_origin_changes_nothing(
    serve: StartServer, stage: ControllableTools, headers: dict[str, str]
) -> None:
    """Only our own page may, and clients that are no pages; a valid token does not help."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    headers = {name: value.format(port=server.port) for name, value in headers.items()}
    body = {"agent": "actor", "input": "Go."}
    reply = await client.post("/v1/runs", json=body, headers=headers)
    assert reply.status_code == 403
    assert has_security_headers(reply)
    refused = await client.options("/v1/runs", headers=headers)
    assert refused.status_code in {204, 403}  # following a link is no preflight
    assert has_security_headers(refused)
    assert await count_entries(server) == 0
    own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
    assert (await client.post("/v1/runs", json=body, headers=own)).status_code == 201


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_page_of_another_origin_opens_no_stream(
    serve: StartServer, stage: ControllableTools, site: str
) -> None:
    """An image or an EventSource of another port is same-site: it would send our cookie."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert (await client.get("/v1/events", headers=headers)).status_code == 403


@pytest.mark.parametrize("host", ["runs.example", "midrun:8700"])
async def test_a_browser_behind_a_proxy_needs_the_public_url(
    stage: ControllableTools, host: str
) -> None:
    """The proxy speaks https, says so in no header, and may not pass the host name on."""
    mid = Midrun("memory://", agents=[stage.agent("Done.")])
    page = {"Host": host, "Origin": "https://runs.example", "Sec-Fetch-Site": "same-origin"}
    bearer = {"Authorization": f"Bearer {make_token('me')}"}
    for public_url, status in ((None, 403), ("https://runs.example/", 201)):
        hosts = ["runs.example", "midrun:8700"]
        asgi_app = app(mid, token=make_token("me"), allow_hosts=hosts, public_url=public_url)
        async with (
            serve_on_loopback(asgi_app) as port,
            httpx2.AsyncClient(timeout=TIMEOUT_S) as client,
        ):
            url = f"http://127.0.0.1:{port}/v1"
            body = {"agent": "actor", "input": "Go."}
            reply = await client.post(f"{url}/runs", json=body, headers=page | bearer)
            assert reply.status_code == status
            if status == 403:
                assert "--public-url" in reply.json()["detail"]
                continue
            session = await client.post(f"{url}/session", json={}, headers=page | bearer)
            is_secure = "secure" in session.headers["set-cookie"].lower()
            assert is_secure == (host == "runs.example")


def test_a_public_url_with_a_path_is_refused() -> None:
    """A prefix is declared with `root_path`."""
    with pytest.raises(Misconfigured, match="public_url"):
        app(Midrun("memory://"), token=make_token("me"), public_url="https://a.example/midrun")


OTHER_ORIGIN = "http://localhost:3000"


@asynccontextmanager
async def serve_with_origins(
    stage: ControllableTools, *origins: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client of a server that pages of `origins` may call."""
    mid = Midrun("memory://", agents=[stage.agent("Done.")])
    asgi_app = app(mid, token=make_token("me"), allow_origins=origins)
    async with mid, serve_on_loopback(asgi_app) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
            yield client


async def test_a_page_of_an_allowed_origin_calls_with_a_bearer_token(
    stage: ControllableTools,
) -> None:
    """The preflight names the headers, and only that origin may read the reply."""
    bearer = {"Authorization": f"Bearer {make_token('me')}"}
    page = {"Origin": OTHER_ORIGIN, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
    async with serve_with_origins(stage, "http://LocalHost:3000/") as client:
        preflight_headers = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-copilotkit",
        }
        preflight = await client.options("/agui/actor", headers=page | preflight_headers)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == OTHER_ORIGIN
        assert preflight.headers["access-control-allow-methods"] == "OPTIONS, POST"
        assert "authorization,content-type" in preflight.headers["access-control-allow-headers"]
        body = {"agent": "actor", "input": "Go."}
        created = await client.post("/v1/runs", json=body, headers=page | bearer)
        assert created.status_code == 201
        read = await client.get(created.headers["location"], headers=page | bearer)
        for reply in (preflight, created, read, await client.get("/v1/runs", headers=page)):
            assert reply.headers["access-control-allow-origin"] == OTHER_ORIGIN
            assert "ETag" in reply.headers["access-control-expose-headers"]
            assert reply.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in reply.headers
        other = {**page, "Origin": "http://localhost:3001"}
        for refused in (
            await client.options("/v1/runs", headers=other | preflight_headers),
            await client.get("/v1/runs", headers=other | bearer),
            await client.get("/v1/runs", headers=[*other.items(), *page.items()]),
        ):
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
            assert "--allow-origin" in refused.json()["detail"]


async def test_a_cookie_is_ignored_for_a_page_of_another_origin(
    stage: ControllableTools,
) -> None:
    """Such a page cannot open or end a session, either."""
    page = {"Origin": OTHER_ORIGIN, "Sec-Fetch-Site": "same-site"}
    bearer = {"Authorization": f"Bearer {make_token('me')}"}
    async with serve_with_origins(stage, OTHER_ORIGIN) as client:
        session = await client.post("/v1/session", json={}, headers=bearer)
        client.headers[PROOF_HEADER] = session.json()["proof"]
        assert (await client.get("/v1/runs")).status_code == 200  # the session is valid
        assert (await client.get("/v1/runs", headers=page)).status_code == 401
        signing_in = await client.post("/v1/session", json={}, headers=page | bearer)
        assert signing_in.status_code == 403
        assert (await client.delete("/v1/session", headers=page | bearer)).status_code == 403
        assert (await client.get("/v1/runs")).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "localhost:3000", "http://*.example", "http://a.example/b", "ftp://a"],
)
def test_an_allowed_origin_must_be_exact(origin: str) -> None:
    """A wildcard would admit every page that has a token to try."""
    with pytest.raises(Misconfigured, match="allow_origins"):
        app(Midrun("memory://"), token=make_token("me"), allow_origins=[origin])
    with pytest.raises(Misconfigured, match="allow_origins"):
        app(Midrun("memory://"), token=make_token("me"), allow_origins="http://a.example")


async def test_options_lists_the_methods_without_cors_headers(
    serve: StartServer, stage: ControllableTools
) -> None:
    client = await (await serve(stage.agent("Done."))).client(None)
    for path, allow in (
        ("/v1/runs", "GET, HEAD, OPTIONS, POST"),
        ("/v1/runs/run_1/pause", "OPTIONS, POST"),
        ("/", "GET, HEAD, OPTIONS"),
    ):
        reply = await client.options(path)
        assert (reply.status_code, reply.headers["allow"]) == (204, allow)
        assert has_security_headers(reply)
    assert (await client.options("/nowhere")).status_code == 404


# ── bodies, ids and methods ──────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("media", "body"),
    [
        ("text/plain", b'{"agent":"actor","input":"Go."}'),
        ("application/x-www-form-urlencoded", b"agent=actor&task=Go."),
        ("multipart/form-data; boundary=x", b"--x--"),
        ("application/jsonp", b"{}"),
        ("", b'{"agent":"actor","input":"Go."}'),
    ],
)
async def test_a_body_that_a_form_could_send_is_refused(
    serve: StartServer, stage: ControllableTools, media: str, body: bytes
) -> None:
    """A page cannot send JSON to another origin without a preflight."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    headers = {"Content-Type": media} if media else {}
    reply = await client.post("/v1/runs", content=body, headers=headers)
    assert reply.status_code == 415
    assert await count_entries(server) == 0


async def test_the_size_of_a_body_is_limited_with_and_without_a_declared_length(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Bytes are counted as they arrive, before they are parsed."""
    server = await serve(stage.agent("Done."), limits=Limits(upload=1000))
    client = await server.client("olga")
    body = b'{"agent":"actor","input":"' + b"x" * 2000 + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        yield body[:900]
        yield body[900:]

    declared = await client.post("/v1/runs", content=body, headers=JSON_HEADERS)
    undeclared = await client.post("/v1/runs", content=pieces(), headers=JSON_HEADERS)
    assert (declared.status_code, undeclared.status_code) == (413, 413)
    assert await count_entries(server) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"null",
        b'{"agent":"actor","input":"a","input":"b"}',
        b'{"agent":"actor","input":"\\ud800"}',
        b'{"agent":"actor","input":"\xff"}',
        b'{"agent":"actor","input":1}',
        b'{"agent":"actor","input":"a","nonsense":1}',
        b'{"agent":"actor","input":"a","caps":{"steps":NaN}}',
        b'{"agent":"actor","input":"a","caps":{"steps":1e999}}',
        b'{"agent":"actor","input":"a","caps":{"unheard":1}}',
        b'{"agent":"actor","input":"a","labels":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"agent":"actor","input":"a","labels":' + b"[" * 100_000 + b"}",
        b'{"agent":"missing","input":"a"}',
    ],
)
async def test_an_invalid_or_ambiguous_body_is_refused(
    serve: StartServer, stage: ControllableTools, body: bytes
) -> None:
    """Nothing is applied, and the response is a problem document."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    reply = await client.post("/v1/runs", content=body, headers=JSON_HEADERS)
    assert 400 <= reply.status_code < 500
    assert reply.headers["content-type"] == "application/problem+json"
    assert await count_entries(server) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a" * 65, "..%2f..%2fetc", "run.1", "run%00", "run%0a", "ü", "%20", "a;b", "a'--"]
)
async def test_an_id_with_other_characters_is_not_found(
    serve: StartServer, stage: ControllableTools, name: str
) -> None:
    """An id has letters, digits, dashes and underscores; nothing else reaches a store."""
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    assert (await client.get(f"/v1/runs/{name}")).status_code == 404


async def test_a_get_on_a_control_is_refused_with_the_allowed_methods(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client("olga")
    run = await server.mid.start("actor", "Go.", actor="olga")
    reply = await client.get(f"/v1/runs/{run.id}/cancel")
    assert (reply.status_code, reply.headers["allow"]) == (405, "OPTIONS, POST")
    assert (await client.get("/nowhere")).status_code == 404


async def test_web_sockets_are_refused(serve: StartServer, stage: ControllableTools) -> None:
    """They are not bound by the same-origin rule, and no route needs them."""
    server = await serve(stage.agent("Done."))
    sent: list[object] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        sent.append(message)

    await server.app({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_a_preflight_gets_no_cors_headers_without_allow_origins(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    for client in (await server.client(None), await server.client("olga")):
        for origin in ("http://evil.example", server.url):
            preflight_headers = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, content-type",
            }
            reply = await client.options("/v1/runs", headers=preflight_headers)
            assert reply.status_code == (204 if origin == server.url else 403)
            assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_the_nul_character_is_refused_in_queries_and_bodies(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Postgres cannot store it, and would answer with an internal error."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    for parameter in ("agent", "label", "thread", "parent", "cursor", "phase"):
        problem = expect_status(
            await client.get("/v1/runs", params={parameter: "a\0b"}), 400
        ).json()
        assert problem["type"] == "urn:midrun:problem:bad-query"
    # These are three ordinary characters.
    expect_status(await client.get("/v1/runs", params={"label": "%00"}), 200)
    start = {"agent": "actor", "input": "Go."}
    for path, body in (
        ("/v1/runs", start | {"thread_id": "a\0b"}),
        ("/v1/runs", start | {"labels": ["fine", "a\0b"]}),
        ("/v1/halt", {"scope": "label:a\0b", "reason": "fire"}),
        ("/v1/halt", {"scope": "all", "reason": "a\0b"}),
        ("/v1/lift", {"scope": "label:a\0b"}),
        ("/agui/actor", {"threadId": "a\0b", "runId": "r", "messages": []}),
    ):
        problem = expect_status(await client.post(path, json=body), 422).json()
        assert "the character NUL" in problem["detail"], path
    assert (await client.get("/v1/runs")).json()["items"] == []
    assert await server.mid.store.list_halts() == ()


# ── HEAD and other methods ───────────────────────────────────────────────────


VOLATILE_HEADERS = frozenset({"date", "etag"})
"""Headers that may differ between two responses to one request."""

STREAM_PATHS = frozenset({"/v1/events"})


def list_get_endpoints() -> Iterator[Endpoint]:
    """Yield every GET endpoint whose response ends."""
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" and endpoint.path not in STREAM_PATHS:
            yield endpoint


async def test_head_has_the_status_and_headers_of_get_without_its_body(
    serve: StartServer, stage: ControllableTools
) -> None:
    """This holds for every GET route, also for refusals."""
    server = await serve(stage.agent("Done."))
    client, anonymous = await server.client(), await server.client(None)
    run_path = await start_run(client)
    await wait_for_phase(client, run_path, "terminal")
    for endpoint in list_get_endpoints():
        path = make_path(endpoint, run_path.rpartition("/")[2])
        full, head = await client.get(path), await client.head(path)
        assert head.content == b"", format_endpoint(endpoint)
        assert head.status_code == full.status_code, format_endpoint(endpoint)
        names = head.headers.keys() - VOLATILE_HEADERS
        if endpoint.audit_action == "audit":
            names -= {"content-length"}  # the first request is in the trail of the second
        assert {n: head.headers[n] for n in names} == {n: full.headers[n] for n in names}
        assert has_security_headers(head)
        expect_status(await anonymous.head(path), 401)
    cached = {"If-None-Match": (await client.get(run_path)).headers["etag"]}
    expect_status(await client.head(run_path, headers=cached), 304)


async def test_a_method_that_a_path_does_not_have_is_refused_with_the_allowed_ones(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    client = await server.client()
    run_path = await start_run(client)
    refused = await client.head(f"{run_path}/cancel")
    assert (refused.status_code, refused.headers["allow"]) == (405, "OPTIONS, POST")
    refused = await client.delete("/v1/runs")
    assert (refused.status_code, refused.headers["allow"]) == (
        405,
        "GET, HEAD, OPTIONS, POST",
    )


@pytest.mark.parametrize("path", ["/v1/events", "{run_path}/events"])
async def test_head_opens_no_stream(
    serve: StartServer, stage: ControllableTools, path: str
) -> None:
    """The stream would stay open as long as the run."""
    server = await serve(stage.agent(Use("slow", name="x"), "."), limits=Limits(streams=1))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    for _ in range(3):  # each could open one more stream
        head = await client.head(
            path.format(run_path=run_path), headers={"Accept": "text/event-stream"}
        )
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
        assert head.headers["x-accel-buffering"] == "no"
        assert server.app.streams == 0
