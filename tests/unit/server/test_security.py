"""What a page in somebody's browser, or a malformed request, can do: nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from midrun import Midrun, Misconfigured
from midrun.server import Limits, app
from midrun.server.admin import PROOF_HEADER
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import PATIENCE, Serve, listening, token_of
from tests.unit.server.defences import JSON, entries_of, is_guarded

# ── from where ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example", "[::1]", "", "x:y"],
)
async def test_a_name_that_is_not_ours_is_misdirected(
    serve: Serve, stage: ControllableTools, host: str
) -> None:
    """DNS rebinding: the page's own name points here, and its token would be good."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    for path in ("/v1/runs", "/", "/nowhere"):
        reply = await client.get(path, headers={"Host": host})
        assert reply.status_code == 421
        assert "--allow-host" in reply.json()["detail"]
        assert is_guarded(reply)
    for path in ("/healthz", "/readyz"):  # a probe calls by address, and learns one bit
        assert (await client.get(path, headers={"Host": host})).status_code == 204


async def test_loopback_has_three_names_and_others_are_allowed_byname_of(
    serve: Serve, stage: ControllableTools
) -> None:
    """A name without a port stands for any port, as behind a proxy."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    for name in ("localhost", "LOCALHOST", "[::1]", "127.0.0.1"):
        headers = {"Host": f"{name}:{served.port}"}
        assert (await client.get("/v1/runs", headers=headers)).status_code == 200
    hosts = ["runs.example", "other.example:444"]
    made = app(served.mid, token=token_of("me"), allow_hosts=hosts)
    async with listening(made) as port, httpx2.AsyncClient(timeout=PATIENCE) as outside:
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
async def test_other_pages_change_nothing(
    serve: Serve, stage: ControllableTools, headers: dict[str, str]
) -> None:
    """Even one that somehow has the token: only our own page, or no page at all."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    headers = {name: value.format(port=served.port) for name, value in headers.items()}
    body = {"agent": "actor", "input": "Go."}
    reply = await client.post("/v1/runs", json=body, headers=headers)
    assert reply.status_code == 403
    assert is_guarded(reply)
    refused = await client.options("/v1/runs", headers=headers)
    assert refused.status_code in {204, 403}  # going there by a link is no preflight
    assert is_guarded(refused)
    assert await entries_of(served) == 0
    own = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    assert (await client.post("/v1/runs", json=body, headers=own)).status_code == 201


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_other_pages_open_no_streams(
    serve: Serve, stage: ControllableTools, site: str
) -> None:
    """An image or an EventSource of another port is same-site: it would bring our cookie."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}
    assert (await client.get("/v1/events", headers=headers)).status_code == 403


@pytest.mark.parametrize("host", ["runs.example", "midrun:8700"])
async def test_a_browser_behind_a_proxy_changes_things_if_the_public_url_is_known(
    stage: ControllableTools, host: str
) -> None:
    """The proxy speaks https, says so in no header, and may not even pass the name on."""
    mid = Midrun("memory://", agents=[stage.agent("Done.")])
    page = {"Host": host, "Origin": "https://runs.example", "Sec-Fetch-Site": "same-origin"}
    shown = {"Authorization": f"Bearer {token_of('me')}"}
    for public_url, status in ((None, 403), ("https://runs.example/", 201)):
        hosts = ["runs.example", "midrun:8700"]
        made = app(mid, token=token_of("me"), allow_hosts=hosts, public_url=public_url)
        async with listening(made) as port, httpx2.AsyncClient(timeout=PATIENCE) as client:
            url = f"http://127.0.0.1:{port}/v1"
            body = {"agent": "actor", "input": "Go."}
            reply = await client.post(f"{url}/runs", json=body, headers=page | shown)
            assert reply.status_code == status
            if status == 403:
                assert "--public-url" in reply.json()["detail"]
                continue
            signed = await client.post(f"{url}/session", json={}, headers=page | shown)
            is_secure = "secure" in signed.headers["set-cookie"].lower()
            assert is_secure == (host == "runs.example")


def test_a_public_url_that_is_no_origin_is_refused_by_name() -> None:
    """A prefix is root_path's to say."""
    with pytest.raises(Misconfigured, match="public_url"):
        app(Midrun("memory://"), token=token_of("me"), public_url="https://a.example/midrun")


ELSEWHERE = "http://localhost:3000"


@asynccontextmanager
async def allowing(
    stage: ControllableTools, *origins: str
) -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client of a server that lets pages of `origins` call it."""
    mid = Midrun("memory://", agents=[stage.agent("Done.")])
    made = app(mid, token=token_of("me"), allow_origins=origins)
    async with mid, listening(made) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            yield client


async def test_a_page_of_an_allowed_origin_calls_with_a_bearer_token(
    stage: ControllableTools,
) -> None:
    """The preflight names the headers, and the reply may be read by that origin alone."""
    shown = {"Authorization": f"Bearer {token_of('me')}"}
    page = {"Origin": ELSEWHERE, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}
    async with allowing(stage, "http://LocalHost:3000/") as client:
        asked = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-copilotkit",
        }
        preflight = await client.options("/agui/actor", headers=page | asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == ELSEWHERE
        assert preflight.headers["access-control-allow-methods"] == "OPTIONS, POST"
        assert "authorization,content-type" in preflight.headers["access-control-allow-headers"]
        body = {"agent": "actor", "input": "Go."}
        made = await client.post("/v1/runs", json=body, headers=page | shown)
        assert made.status_code == 201
        look = await client.get(made.headers["location"], headers=page | shown)
        for reply in (preflight, made, look, await client.get("/v1/runs", headers=page)):
            assert reply.headers["access-control-allow-origin"] == ELSEWHERE
            assert "ETag" in reply.headers["access-control-expose-headers"]
            assert reply.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in reply.headers
        other = {**page, "Origin": "http://localhost:3001"}
        for refused in (
            await client.options("/v1/runs", headers=other | asked),
            await client.get("/v1/runs", headers=other | shown),
            await client.get("/v1/runs", headers=[*other.items(), *page.items()]),
        ):
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
            assert "--allow-origin" in refused.json()["detail"]


async def test_a_cookie_never_counts_for_a_page_of_another_origin(
    stage: ControllableTools,
) -> None:
    """Nor is there a session to be opened or ended from there."""
    page = {"Origin": ELSEWHERE, "Sec-Fetch-Site": "same-site"}
    shown = {"Authorization": f"Bearer {token_of('me')}"}
    async with allowing(stage, ELSEWHERE) as client:
        signed = await client.post("/v1/session", json={}, headers=shown)
        client.headers[PROOF_HEADER] = signed.json()["proof"]
        assert (await client.get("/v1/runs")).status_code == 200  # the session is good
        assert (await client.get("/v1/runs", headers=page)).status_code == 401
        signing_in = await client.post("/v1/session", json={}, headers=page | shown)
        assert signing_in.status_code == 403
        assert (await client.delete("/v1/session", headers=page | shown)).status_code == 403
        assert (await client.get("/v1/runs")).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["*", "null", "localhost:3000", "http://*.example", "http://a.example/b", "ftp://a"],
)
def test_an_origin_that_is_not_exact_is_refused_by_name(origin: str) -> None:
    """A wildcard would let every page in that has a token to try."""
    with pytest.raises(Misconfigured, match="allow_origins"):
        app(Midrun("memory://"), token=token_of("me"), allow_origins=[origin])
    with pytest.raises(Misconfigured, match="allow_origins"):
        app(Midrun("memory://"), token=token_of("me"), allow_origins="http://a.example")


async def test_options_names_the_methods_and_lets_no_page_in(
    serve: Serve, stage: ControllableTools
) -> None:
    """Clients ask; without allow_origins there is nothing about other origins in the answer."""
    client = await (await serve(stage.agent("Done."))).client(None)
    for path, allow in (
        ("/v1/runs", "GET, HEAD, OPTIONS, POST"),
        ("/v1/runs/run_1/pause", "OPTIONS, POST"),
        ("/", "GET, HEAD, OPTIONS"),
    ):
        reply = await client.options(path)
        assert (reply.status_code, reply.headers["allow"]) == (204, allow)
        assert is_guarded(reply)
    assert (await client.options("/nowhere")).status_code == 404


# ── what ─────────────────────────────────────────────────────────────────────


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
    serve: Serve, stage: ControllableTools, media: str, body: bytes
) -> None:
    """JSON is what a page cannot send elsewhere without asking first."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    headers = {"Content-Type": media} if media else {}
    reply = await client.post("/v1/runs", content=body, headers=headers)
    assert reply.status_code == 415
    assert await entries_of(served) == 0


async def test_a_body_is_bounded_whatever_it_says_of_its_length(
    serve: Serve, stage: ControllableTools
) -> None:
    """Bytes are counted as they come, and before they are parsed."""
    served = await serve(stage.agent("Done."), limits=Limits(body=1000))
    client = await served.client("olga")
    long = b'{"agent":"actor","input":"' + b"x" * 2000 + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        yield long[:900]
        yield long[900:]

    said = await client.post("/v1/runs", content=long, headers=JSON)
    unsaid = await client.post("/v1/runs", content=pieces(), headers=JSON)
    assert (said.status_code, unsaid.status_code) == (413, 413)
    assert await entries_of(served) == 0


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
        b'{"agent":"nobody","input":"a"}',
    ],
)
async def test_a_body_that_is_not_exactly_right_is_refused(
    serve: Serve, stage: ControllableTools, body: bytes
) -> None:
    """Ambiguous input fails closed: nothing is applied, and the answer is a problem."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    reply = await client.post("/v1/runs", content=body, headers=JSON)
    assert 400 <= reply.status_code < 500
    assert reply.headers["content-type"] == "application/problem+json"
    assert await entries_of(served) == 0


@pytest.mark.parametrize(
    "name", ["a" * 65, "..%2f..%2fetc", "run.1", "run%00", "run%0a", "ü", "%20", "a;b", "a'--"]
)
async def test_an_id_is_letters_digits_and_dashes(
    serve: Serve, stage: ControllableTools, name: str
) -> None:
    """What else there is in a path does not reach a store."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    assert (await client.get(f"/v1/runs/{name}")).status_code == 404


async def test_changes_are_counted_per_caller(serve: Serve, stage: ControllableTools) -> None:
    """One caller's haste is not another's refusal."""
    limits = Limits(rate=0.001, burst=2)
    served = await serve(stage.agent("Done."), limits=limits)
    ann, bob = await served.client("ann"), await served.client("bob")
    body = {"agent": "actor", "input": "Go."}
    codes = [(await ann.post("/v1/runs", json=body)).status_code for _ in range(3)]
    assert codes == [201, 201, 429]
    assert (await bob.post("/v1/runs", json=body)).status_code == 201
    assert (await ann.get("/v1/runs")).status_code == 200


async def test_methods_that_are_not_there_say_which_are(
    serve: Serve, stage: ControllableTools
) -> None:
    """A GET changes nothing, on any route that changes something."""
    served = await serve(stage.agent("Done."))
    client = await served.client("olga")
    run = await served.mid.start("actor", "Go.", actor="olga")
    reply = await client.get(f"/v1/runs/{run.id}/cancel")
    assert (reply.status_code, reply.headers["allow"]) == (405, "OPTIONS, POST")
    assert (await client.get("/nowhere")).status_code == 404


async def test_web_sockets_are_not_accepted(serve: Serve, stage: ControllableTools) -> None:
    """They are not bound by the same-origin rule, and we need none."""
    served = await serve(stage.agent("Done."))
    said: list[object] = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: object) -> None:
        said.append(message)

    await served.app({"type": "websocket"}, receive, send)
    assert said == [{"type": "websocket.close", "code": 1008}]
