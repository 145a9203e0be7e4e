"""The app on its own, and as a part of another application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.routing import Mount

from midrun import Midrun
from midrun.server import App, app
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import listening, token_of

HEADERS = {"Authorization": f"Bearer {token_of('me')}"}
START = {"agent": "actor", "input": "Go."}


async def test_the_app_opens_and_closes_what_nobody_opened() -> None:
    """`uvicorn module:app` must do."""
    mid = Midrun("memory://", agents=[ControllableTools().agent("Done.")])
    with anyio.fail_after(60):
        async with (
            listening(app(mid, token=token_of("me"))) as port,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=60
            ) as client,
        ):
            assert (await client.get("/readyz")).status_code == 204
            assert (await client.post("/v1/runs", json=START)).status_code == 201


async def test_the_app_is_a_part_of_another_with_its_own_path() -> None:
    """Routes, places and cookies are all below where it is mounted."""
    mid = Midrun("memory://", agents=[ControllableTools().agent("Done.")])
    made = app(mid, token=token_of("me"), allow_hosts=["testserver"])

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with mid:
            yield

    host = Starlette(routes=[Mount("/agents", made)], lifespan=lifespan)
    with anyio.fail_after(60):
        async with host.router.lifespan_context(host), _inside(host) as client:
            started = await client.post("/agents/v1/runs", json=START)
            assert started.headers["location"].startswith("/agents/v1/runs/run_")
            assert (await client.get(started.headers["location"])).status_code == 200
            signed = await client.post("/agents/v1/session", json={})
            assert "path=/agents/" in signed.headers["set-cookie"].lower()
            assert (await client.get("/agents/healthz")).status_code == 204
            assert (await client.get("/agents/nowhere")).status_code == 404
            assert (await client.get("/agents/v1/runs/x/cancel")).status_code == 405


async def test_a_part_that_nobody_opened_says_so() -> None:
    """The lifespan of a mounted app does not run; better a 503 that says what to do."""
    made = app(Midrun("memory://"), token=token_of("me"), allow_hosts=["testserver"])
    async with _inside(made) as client:
        reply = await client.get("/v1/runs")
        assert (reply.status_code, reply.json()["type"]) == (503, "urn:midrun:problem:not-open")
        assert (await client.get("/readyz")).status_code == 503


def _inside(made: App | Starlette) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=made)
    return httpx2.AsyncClient(
        transport=transport, base_url="http://testserver", headers=HEADERS
    )
