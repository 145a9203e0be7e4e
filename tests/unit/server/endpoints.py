"""Paths of all endpoints, and checks that tests of refused requests share."""

import httpx2

from midrun.server.routes import Endpoint
from tests.unit.server.conftest import RunningServer

JSON_HEADERS = {"Content-Type": "application/json"}


def make_path(endpoint: Endpoint, run: str = "run_1") -> str:
    """Return the path of the endpoint with a value for each parameter."""
    names = {"run": run, "command": "cmd_1", "frame": "f1", "ask": f"{run}-a1", "session": "s1"}
    names |= {"agent": "actor", "thread": "t", "chat": "t", "rest": "tasks", "hash": "0" * 64}
    names |= {"response": f"resp_{run}-1"}
    return endpoint.path.replace(":path}", "}").format(**names)


def format_endpoint(endpoint: Endpoint) -> str:
    """Return the method and the path of the endpoint."""
    return f"{endpoint.method} {endpoint.path}"


def has_security_headers(reply: httpx2.Response) -> bool:
    """Tell whether a response has the security headers that every response must have."""
    return (
        "default-src 'none'" in reply.headers.get("content-security-policy", "")
        and reply.headers.get("x-content-type-options") == "nosniff"
        and reply.headers.get("referrer-policy") == "no-referrer"
        and reply.headers.get("cache-control") == "no-store"
        and not [name for name in reply.headers if name.startswith("access-control")]
    )


async def count_entries(server: RunningServer) -> int:
    """Count the entries of all journals; a refused request must not change the number."""
    page = await server.mid.runs(limit=500)
    return sum(row.seq for row in page.items)
