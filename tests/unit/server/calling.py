"""What tests of the server say over and over."""

import httpx2


def expect(reply: httpx2.Response, status: int) -> httpx2.Response:
    """Return a reply that is what it should be."""
    assert reply.status_code == status, reply.text
    return reply


async def start_run(client: httpx2.AsyncClient, agent: str = "actor") -> str:
    """Start a run, and return where it is."""
    made = await client.post("/v1/runs", json={"agent": agent, "input": "Go."})
    return str(expect(made, 201).headers["location"])


async def reached(client: httpx2.AsyncClient, where: str, phase: str) -> httpx2.Response:
    """Wait for a phase, and return the run then."""
    return await client.get(f"{where}?until={phase}", headers={"Prefer": "wait=60"})
