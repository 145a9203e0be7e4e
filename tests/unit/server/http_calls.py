"""HTTP requests and clients that many tests of the server need."""

from collections.abc import Mapping

import httpx2
from starlette.types import ASGIApp


def expect_status(reply: httpx2.Response, status: int) -> httpx2.Response:
    """Assert the status of a response, and return the response."""
    assert reply.status_code == status, reply.text
    return reply


async def start_run(client: httpx2.AsyncClient, agent: str = "actor") -> str:
    """Start a run, and return its path."""
    created = await client.post("/v1/runs", json={"agent": agent, "input": "Go."})
    return str(expect_status(created, 201).headers["location"])


async def wait_for_phase(
    client: httpx2.AsyncClient, run_path: str, phase: str
) -> httpx2.Response:
    """Wait until the run has this phase, and return the response that shows it."""
    return await client.get(f"{run_path}?until={phase}", headers={"Prefer": "wait=60"})


def make_in_process_client(
    asgi_app: ASGIApp, headers: Mapping[str, str] | None = None
) -> httpx2.AsyncClient:
    """Return a client that calls an app without a server, under the host `testserver`."""
    transport = httpx2.ASGITransport(app=asgi_app)
    return httpx2.AsyncClient(
        transport=transport, base_url="http://testserver", headers=headers
    )
