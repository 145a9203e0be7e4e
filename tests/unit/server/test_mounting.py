"""The app on its own, and mounted in Starlette, FastAPI and Litestar applications."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import httpx2
import pytest
import uvicorn
from anyio.lowlevel import checkpoint
from msgspec import Struct
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Scope

from midrun import Midrun, connect
from midrun.errors import StoreClosed
from midrun.models import Use
from midrun.server import App, app, request_context
from midrun.server.admin import PROOF_HEADER
from midrun.server.pages import read_static_files
from midrun.server.request_checks import mount_path, path_below_mount, restore_mount_path
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import TIMEOUT_S, make_token, serve_on_loopback
from tests.unit.server.host_apps import (
    HOST_APPS,
    HOST_HEADER,
    HOST_ROUTE,
    MOUNT_PATH,
    serve_host,
)
from tests.unit.server.http_calls import expect_status, make_in_process_client, start_run

TOKEN = make_token("me")
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class MountedApp(Struct, frozen=True, kw_only=True):
    """A host application that is served, with the app mounted in it."""

    mid: Midrun
    asgi_app: App
    stage: ControllableTools
    server: uvicorn.Server
    url: str  # of the host
    client: httpx2.AsyncClient  # for the mounted app, with its token


@pytest.fixture(params=HOST_APPS)
async def host(request: pytest.FixtureRequest) -> AsyncIterator[MountedApp]:
    """Serve each host application; at the end its lifespan has closed the store."""
    stage = ControllableTools()
    mid = Midrun("memory://", agents=[stage.agent(Use("slow", name="a"), "Done.")])
    asgi_app = app(mid, token=TOKEN)
    with anyio.fail_after(TIMEOUT_S):
        async with serve_host(HOST_APPS[request.param](mid, asgi_app)) as (server, url):
            # Paths of requests are appended to the base URL.
            async with httpx2.AsyncClient(
                base_url=url + MOUNT_PATH, headers=BEARER, timeout=TIMEOUT_S
            ) as client:
                yield MountedApp(
                    mid=mid,
                    asgi_app=asgi_app,
                    stage=stage,
                    server=server,
                    url=url,
                    client=client,
                )
            stage.open_all_gates()
    with pytest.raises(StoreClosed):
        await mid.store.list_halts()


async def test_the_page_and_its_files_are_served_below_the_mount_path(host: MountedApp) -> None:
    """Without the last slash there is a redirect: the page names its files relative to it."""
    async with httpx2.AsyncClient(
        base_url=host.url, follow_redirects=True, timeout=TIMEOUT_S
    ) as browser:
        page = expect_status(await browser.get(MOUNT_PATH), 200)
        assert page.url.path == f"{MOUNT_PATH}/"
        assert page.content == read_static_files()["index.html"].body
        assert expect_status(await browser.get(f"{MOUNT_PATH}/runs/x"), 200).text.startswith(
            "<!doctype"
        )
        for name, file in read_static_files().items():
            reply = await browser.get(f"{MOUNT_PATH}/static/{name}")
            assert (reply.status_code, reply.content) == (200, file.body), name
        cached = {"If-None-Match": page.headers["etag"]}
        expect_status(await browser.get(f"{MOUNT_PATH}/", headers=cached), 304)
        expect_status(await browser.get(f"{MOUNT_PATH}/static/nothing.js"), 404)


async def test_paths_and_urls_in_responses_contain_the_mount_path(host: MountedApp) -> None:
    client, path_prefix = host.client, f"{MOUNT_PATH}/v1/runs/run_"
    expect_status(await client.get("/readyz"), 204)
    created = expect_status(
        await client.post("/v1/runs", json={"agent": "actor", "input": "Go."}), 201
    )
    run_path = created.headers["location"]
    assert run_path.startswith(path_prefix)
    assert (await client.get(host.url + run_path)).json()["run_id"] == created.json()["run_id"]
    expect_status(await client.get("/v1/runs/"), 404)  # paths end without a slash
    expect_status(await client.get("/v1/runs/x/cancel"), 405)
    expect_status(await client.delete("/v1/runs"), 405)
    openapi = expect_status(await client.get("/v1/openapi.json"), 200).json()
    assert openapi["servers"] == [{"url": MOUNT_PATH}]
    card = expect_status(await client.get("/.well-known/agent-card.json"), 200).json()
    urls = {interface["url"] for interface in card["supportedInterfaces"]}
    assert urls == {f"{host.url}{MOUNT_PATH}/a2a/actor"}
    expect_status(await client.post(f"{host.url}{run_path}/cancel", json={}), 202)


async def test_a_mounted_app_checks_credential_host_and_origin(host: MountedApp) -> None:
    runs = f"{host.url}{MOUNT_PATH}/v1/runs"
    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:
        expect_status(await client.get(runs), 401)
        rebound = {**BEARER, "Host": "evil.example:80"}
        assert (await client.get(runs, headers=rebound)).status_code in {400, 421}
        other_origin = {**BEARER, "Origin": "http://evil.example"}
        expect_status(await client.post(runs, json={}, headers=other_origin), 403)
        form = await client.post(runs, data={"agent": "actor"}, headers=BEARER)
        expect_status(form, 415)
        same_origin = {**BEARER, "Origin": host.url}
        start_body = {"agent": "actor", "input": "Go."}
        expect_status(await client.post(runs, json=start_body, headers=same_origin), 201)


async def test_the_session_cookie_is_limited_to_the_mount_path(host: MountedApp) -> None:
    """The routes of the host never see it."""
    session = f"{host.url}{MOUNT_PATH}/v1/session"
    async with httpx2.AsyncClient(timeout=TIMEOUT_S) as browser:
        code = {"Authorization": f"Code {host.asgi_app.code()}"}
        response = expect_status(await browser.post(session, json={}, headers=code), 200)
        assert f"path={MOUNT_PATH}/;" in response.headers["set-cookie"].lower()
        browser.headers[PROOF_HEADER] = response.json()["proof"]
        assert expect_status(await browser.get(session), 200).json()["role"] == "operator"
        assert "cookie" not in (await browser.get(host.url + HOST_ROUTE)).request.headers
        expect_status(await browser.delete(session), 204)
        assert not browser.cookies


async def test_routes_and_middleware_of_the_host_still_work(host: MountedApp) -> None:
    """Its middleware applies to our responses, too.

    Our security headers do not apply to its responses.
    """
    name, value = HOST_HEADER
    host_reply = expect_status(await host.client.get(host.url + HOST_ROUTE), 200)
    assert (host_reply.text, host_reply.headers[name]) == ("Hello.", value)
    assert "content-security-policy" not in host_reply.headers
    expect_status(await host.client.get(f"{host.url}/elsewhere"), 404)
    app_reply = expect_status(await host.client.get("/v1/agents"), 200)
    assert app_reply.headers[name] == value
    assert app_reply.headers["content-security-policy"].startswith("default-src 'none'")


async def test_a_stream_passes_the_middleware_of_the_host_event_by_event(
    host: MountedApp,
) -> None:
    """It may be compressed; the server notices when a client disconnects."""
    run_path = await start_run(host.client)
    await host.stage.start("a").wait()
    async with _stream_event_names(host, run_path + "/events") as events:
        assert await anext(events) == "run.created"  # while the tool runs
        assert host.asgi_app.streams == 1
        host.stage.gate("a").set()
        assert [event async for event in events][-1] == "stream.end"
    async with _stream_event_names(host, f"{MOUNT_PATH}/v1/events") as events:
        assert await anext(events) == "stream.snapshot"
    while host.asgi_app.streams:
        await checkpoint()


async def test_connect_accepts_the_url_of_a_mounted_app(host: MountedApp) -> None:
    async with connect(host.url + MOUNT_PATH, token=TOKEN) as remote:
        run = await remote.start("actor", "Go.")
        await host.stage.start("a").wait()
        await run.pause()
        host.stage.gate("a").set()
        assert (await run.until("paused")).phase == "paused"
        await run.resume()
        assert (await run.until("completed")).output == "Done."


@pytest.mark.slow
async def test_streams_end_when_the_server_of_the_host_stops(host: MountedApp) -> None:
    """Uvicorn tells the app only after all connections have ended, and waits for those."""
    run_path = await start_run(host.client)
    async with (
        _stream_event_names(host, f"{run_path}/events") as run_events,
        _stream_event_names(host, f"{MOUNT_PATH}/v1/events") as list_events,
    ):
        for events in (run_events, list_events):
            await anext(events)
        host.server.should_exit = True
        for events in (run_events, list_events):
            _ = [event async for event in events]
    assert not host.asgi_app.streams


async def test_streams_continue_when_another_server_in_the_process_stops(
    host: MountedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server has the signal handlers; the app must watch its own server."""
    monkeypatch.setattr(request_context, "STOP_POLL_S", 0.001)
    run_path = await start_run(host.client)
    await host.stage.start("a").wait()
    async with _stream_event_names(host, f"{run_path}/events") as events:
        await anext(events)
        mid = Midrun("memory://")
        other_host = HOST_APPS["starlette"](mid, app(mid, token=TOKEN))
        async with (
            serve_host(other_host) as (_, url),
            httpx2.AsyncClient(timeout=TIMEOUT_S) as client,
        ):
            expect_status(await client.get(f"{url}{MOUNT_PATH}/healthz"), 204)
        host.stage.gate("a").set()
        assert [event async for event in events][-1] == "stream.end"


@asynccontextmanager
async def _stream_event_names(
    host: MountedApp, path: str
) -> AsyncIterator[AsyncGenerator[str]]:
    """Open a stream, and give the names of its events as they arrive."""
    headers = {"Accept": "text/event-stream"}

    async def read_names() -> AsyncGenerator[str]:
        # Closed in this task; the garbage collector would close it in another one.
        async with aclosing(reply.aiter_lines()) as lines:  # type: ignore[type-var]  # a generator
            async for line in lines:
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")

    async with (
        host.client.stream("GET", host.url + path, headers=headers) as reply,
        aclosing(read_names()) as events,
    ):
        yield events


START_BODY = {"agent": "actor", "input": "Go."}


async def test_the_app_opens_and_closes_its_midrun() -> None:
    """`uvicorn module:app` has to work without more code."""
    mid = Midrun("memory://", agents=[ControllableTools().agent("Done.")])
    with anyio.fail_after(60):
        async with (
            serve_on_loopback(app(mid, token=make_token("me"))) as port,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=60
            ) as client,
        ):
            assert (await client.get("/readyz")).status_code == 204
            assert (await client.post("/v1/runs", json=START_BODY)).status_code == 201


async def test_a_mounted_app_works_in_process() -> None:
    """Its paths and its cookie are below the mount path here, too."""
    mid = Midrun("memory://", agents=[ControllableTools().agent("Done.")])
    asgi_app = app(mid, token=make_token("me"), allow_hosts=["testserver"])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mid:
            yield

    host = Starlette(routes=[Mount("/agents", asgi_app)], lifespan=lifespan)
    with anyio.fail_after(60):
        async with (
            host.router.lifespan_context(host),
            make_in_process_client(host, BEARER) as client,
        ):
            started = await client.post("/agents/v1/runs", json=START_BODY)
            assert started.headers["location"].startswith("/agents/v1/runs/run_")
            assert (await client.get(started.headers["location"])).status_code == 200
            session = await client.post("/agents/v1/session", json={})
            assert "path=/agents/" in session.headers["set-cookie"].lower()
            assert (await client.get("/agents/healthz")).status_code == 204
            assert (await client.get("/agents/nowhere")).status_code == 404
            assert (await client.get("/agents/v1/runs/x/cancel")).status_code == 405


async def test_a_mounted_app_whose_midrun_is_not_open_answers_503() -> None:
    """The lifespan of a mounted app does not run."""
    asgi_app = app(Midrun("memory://"), token=make_token("me"), allow_hosts=["testserver"])
    async with make_in_process_client(asgi_app, BEARER) as client:
        reply = await client.get("/v1/runs")
        assert (reply.status_code, reply.json()["type"]) == (503, "urn:midrun:problem:not-open")
        assert (await client.get("/readyz")).status_code == 503


# ── the mount path ───────────────────────────────────────────────────────────


def make_scope(path: str, *, raw: str | None = None, root: str = "") -> Scope:
    """Return the relevant keys of a scope; `raw` is the path as it was sent."""
    raw_path = {} if raw is None else {"raw_path": raw.encode()}
    return {"type": "http", "path": path, "root_path": root, **raw_path}


@pytest.mark.parametrize(
    "scope",
    [
        make_scope("/v1/runs", raw="/v1/runs"),
        make_scope("/midrun/v1/runs", raw="/midrun/v1/runs", root="/midrun"),
        make_scope("/midrun/", raw="/midrun/", root="/midrun"),
        make_scope("/v1/runs/é", raw="/v1/runs/%C3%A9"),
        make_scope("/v1/runs"),  # `raw_path` is optional
    ],
)
def test_a_scope_that_conforms_to_asgi_is_left_unchanged(scope: Scope) -> None:
    """Starlette, FastAPI and servers conform."""
    assert restore_mount_path(scope) is scope


@pytest.mark.parametrize(
    ("scope", "root", "path"),
    [
        (make_scope("/v1/runs/", raw="/midrun/v1/runs"), "/midrun", "/v1/runs"),
        (make_scope("/v1/runs/", raw="/midrun/v1/runs/"), "/midrun", "/v1/runs/"),
        (make_scope("/", raw="/midrun/"), "/midrun", "/"),
        (make_scope("/", raw="/midrun"), "/midrun", ""),
        (make_scope("/v1/é/", raw="/a%20b/v1/%C3%A9"), "/a b", "/v1/é"),
        (make_scope("/v1/", raw="/proxy/midrun/v1", root="/proxy"), "/proxy/midrun", "/v1"),
    ],
)
def test_a_mount_path_that_the_host_removed_is_restored(
    scope: Scope, root: str, path: str
) -> None:
    """Litestar removes it, and adds a slash at the end."""
    restored = restore_mount_path(scope)
    assert (mount_path(restored), path_below_mount(restored)) == (root, path)


@pytest.mark.parametrize(
    "scope",
    [
        make_scope("/elsewhere", raw="/midrun/v1"),  # rewritten by a middleware
        make_scope("/v1/runs/", raw="/midrun//v1//runs"),
        make_scope("/", raw="//evil.example"),  # would be a URL of another host
        make_scope("x/healthz/", raw="/midrunx/healthz"),  # only begins with the mount path
    ],
)
def test_an_ambiguous_path_is_left_unchanged(scope: Scope) -> None:
    """It then matches no route."""
    assert restore_mount_path(scope) is scope
