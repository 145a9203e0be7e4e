"""The app as a part of a Starlette, a FastAPI and a Litestar application, served by uvicorn."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import anyio
import httpx2
import pytest
import uvicorn
from anyio.lowlevel import checkpoint
from msgspec import Struct

from midrun import Midrun, connect
from midrun.errors import StoreClosed
from midrun.models import Use
from midrun.server import App, app, request_context
from midrun.server.admin import PROOF_HEADER
from midrun.server.pages import read_static_files
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.calling import expect, start_run
from tests.unit.server.conftest import PATIENCE, token_of
from tests.unit.server.hosting import HOSTS, MARK, OWN, WHERE, hosted

TOKEN = token_of("me")
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Hosted(Struct, frozen=True, kw_only=True):
    """An application that is served, with ours in it."""

    mid: Midrun
    made: App
    stage: ControllableTools
    server: uvicorn.Server
    url: str  # the host's own
    client: httpx2.AsyncClient  # of ours, with the token


@pytest.fixture(params=HOSTS)
async def host(request: pytest.FixtureRequest) -> AsyncIterator[Hosted]:
    """Serve each application in turn; afterwards its lifespan has closed what it opened."""
    stage = ControllableTools()
    mid = Midrun("memory://", agents=[stage.agent(Use("slow", name="a"), "Done.")])
    made = app(mid, token=TOKEN)
    with anyio.fail_after(PATIENCE):
        async with hosted(HOSTS[request.param](mid, made)) as (server, url):
            # As its address says, there: paths of requests go on from it.
            async with httpx2.AsyncClient(
                base_url=url + WHERE, headers=BEARER, timeout=PATIENCE
            ) as client:
                yield Hosted(
                    mid=mid, made=made, stage=stage, server=server, url=url, client=client
                )
            stage.open_all_gates()
    with pytest.raises(StoreClosed):
        await mid.store.list_halts()


async def test_the_page_and_its_files_are_below_the_path(host: Hosted) -> None:
    """Also for who leaves the last slash out: what the page names is relative to it."""
    async with httpx2.AsyncClient(
        base_url=host.url, follow_redirects=True, timeout=PATIENCE
    ) as browser:
        page = expect(await browser.get(WHERE), 200)
        assert page.url.path == f"{WHERE}/"
        assert page.content == read_static_files()["index.html"].body
        assert expect(await browser.get(f"{WHERE}/runs/x"), 200).text.startswith("<!doctype")
        for name, file in read_static_files().items():
            reply = await browser.get(f"{WHERE}/static/{name}")
            assert (reply.status_code, reply.content) == (200, file.body), name
        cached = {"If-None-Match": page.headers["etag"]}
        expect(await browser.get(f"{WHERE}/", headers=cached), 304)
        expect(await browser.get(f"{WHERE}/static/nothing.js"), 404)


async def test_the_api_is_below_the_path_and_says_so(host: Hosted) -> None:
    """A path that we give is one that the caller can go to."""
    client, there = host.client, f"{WHERE}/v1/runs/run_"
    expect(await client.get("/readyz"), 204)
    made = expect(await client.post("/v1/runs", json={"agent": "actor", "input": "Go."}), 201)
    where = made.headers["location"]
    assert where.startswith(there)
    assert (await client.get(host.url + where)).json()["run_id"] == made.json()["run_id"]
    expect(await client.get("/v1/runs/"), 404)  # a path of ours ends without a slash
    expect(await client.get("/v1/runs/x/cancel"), 405)
    expect(await client.delete("/v1/runs"), 405)
    described = expect(await client.get("/v1/openapi.json"), 200).json()
    assert described["servers"] == [{"url": WHERE}]
    card = expect(await client.get("/.well-known/agent-card.json"), 200).json()
    places = {place["url"] for place in card["supportedInterfaces"]}
    assert places == {f"{host.url}{WHERE}/a2a/actor"}
    expect(await client.post(f"{host.url}{where}/cancel", json={}), 202)


async def test_whoever_has_no_right_elsewhere_has_none_there(host: Hosted) -> None:
    """The defences look at what was sent, wherever the app is."""
    runs = f"{host.url}{WHERE}/v1/runs"
    async with httpx2.AsyncClient(timeout=PATIENCE) as anybody:
        expect(await anybody.get(runs), 401)
        rebound = {**BEARER, "Host": "evil.example:80"}
        assert (await anybody.get(runs, headers=rebound)).status_code in {400, 421}
        foreign = {**BEARER, "Origin": "http://evil.example"}
        expect(await anybody.post(runs, json={}, headers=foreign), 403)
        form = await anybody.post(runs, data={"agent": "actor"}, headers=BEARER)
        expect(form, 415)
        same = {**BEARER, "Origin": host.url}
        started = {"agent": "actor", "input": "Go."}
        expect(await anybody.post(runs, json=started, headers=same), 201)


async def test_a_session_is_for_what_is_below_the_path(host: Hosted) -> None:
    """The host's own routes never see our cookie."""
    session = f"{host.url}{WHERE}/v1/session"
    async with httpx2.AsyncClient(timeout=PATIENCE) as browser:
        code = {"Authorization": f"Code {host.made.code()}"}
        signed = expect(await browser.post(session, json={}, headers=code), 200)
        assert f"path={WHERE}/;" in signed.headers["set-cookie"].lower()
        browser.headers[PROOF_HEADER] = signed.json()["proof"]
        assert expect(await browser.get(session), 200).json()["role"] == "operator"
        assert "cookie" not in (await browser.get(host.url + OWN)).request.headers
        expect(await browser.delete(session), 204)
        assert not browser.cookies


async def test_the_host_is_as_it_was(host: Hosted) -> None:
    """Its routes and its middleware work, on our responses as well; our headers are ours."""
    name, value = MARK
    own = expect(await host.client.get(host.url + OWN), 200)
    assert (own.text, own.headers[name]) == ("Hello.", value)
    assert "content-security-policy" not in own.headers
    expect(await host.client.get(f"{host.url}/elsewhere"), 404)
    theirs = expect(await host.client.get("/v1/agents"), 200)
    assert theirs.headers[name] == value
    assert theirs.headers["content-security-policy"].startswith("default-src 'none'")


async def test_a_stream_flows_through_the_middleware_of_the_host(host: Hosted) -> None:
    """Event by event, compressed or not; and the server notices who leaves."""
    where = await start_run(host.client)
    await host.stage.start("a").wait()
    async with _events(host, where + "/events") as events:
        assert await anext(events) == "run.created"  # while the tool is at work
        assert host.made.streams == 1
        host.stage.gate("a").set()
        assert [event async for event in events][-1] == "stream.end"
    async with _events(host, f"{WHERE}/v1/events") as events:
        assert await anext(events) == "stream.snapshot"
    while host.made.streams:
        await checkpoint()


async def test_a_client_goes_by_the_whole_address(host: Hosted) -> None:
    """`connect` takes what the browser shows."""
    async with connect(host.url + WHERE, token=TOKEN) as remote:
        run = await remote.start("actor", "Go.")
        await host.stage.start("a").wait()
        await run.pause()
        host.stage.gate("a").set()
        assert (await run.until("paused")).phase == "paused"
        await run.resume()
        assert (await run.until("completed")).output == "Done."


async def test_a_server_that_is_told_to_stop_does_not_wait_for_streams(host: Hosted) -> None:
    """Uvicorn says nothing of it until its connections have ended, and waits for ever."""
    where = await start_run(host.client)
    async with (
        _events(host, f"{where}/events") as of_one,
        _events(host, f"{WHERE}/v1/events") as of_all,
    ):
        for events in (of_one, of_all):
            await anext(events)
        host.server.should_exit = True
        for events in (of_one, of_all):
            _ = [event async for event in events]
    assert not host.made.streams


async def test_another_server_that_stops_beside_it_ends_nothing(
    host: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that stops has the signals of the process; what is looked at is whose we are."""
    monkeypatch.setattr(request_context, "STOP_POLL_S", 0.001)
    where = await start_run(host.client)
    await host.stage.start("a").wait()
    async with _events(host, f"{where}/events") as events:
        await anext(events)
        mid = Midrun("memory://")
        beside = HOSTS["starlette"](mid, app(mid, token=TOKEN))
        async with (
            hosted(beside) as (_, url),
            httpx2.AsyncClient(timeout=PATIENCE) as client,
        ):
            expect(await client.get(f"{url}{WHERE}/healthz"), 204)
        host.stage.gate("a").set()
        assert [event async for event in events][-1] == "stream.end"


@asynccontextmanager
async def _events(host: Hosted, path: str) -> AsyncIterator[AsyncGenerator[str]]:
    """Open a stream, and give what its events are called, as they come."""
    headers = {"Accept": "text/event-stream"}

    async def called() -> AsyncGenerator[str]:
        # Closed here, in this task: left to the collector it would be closed in some other.
        async with aclosing(reply.aiter_lines()) as lines:  # type: ignore[type-var]  # a generator
            async for line in lines:
                if line.startswith("event: "):
                    yield line.removeprefix("event: ")

    async with (
        host.client.stream("GET", host.url + path, headers=headers) as reply,
        aclosing(called()) as events,
    ):
        yield events
