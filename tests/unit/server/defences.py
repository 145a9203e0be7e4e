"""What tests of the server's defences share."""

import httpx2

from midrun.server.routes import Endpoint
from tests.unit.server.conftest import Served

JSON = {"Content-Type": "application/json"}


def path_of(endpoint: Endpoint, run: str = "run_1") -> str:
    """Return an address of the endpoint."""
    names = {"run": run, "command": "cmd_1", "frame": "f1", "ask": f"{run}-a1"}
    names |= {"agent": "actor", "thread": "t", "rest": "tasks"}
    return endpoint.path.replace(":path}", "}").format(**names)


def name_of(endpoint: Endpoint) -> str:
    """Return what the endpoint is called in a list of tests."""
    return f"{endpoint.method} {endpoint.path}"


def is_guarded(reply: httpx2.Response) -> bool:
    """Tell whether a response has the headers that every response must have."""
    return (
        "default-src 'none'" in reply.headers.get("content-security-policy", "")
        and reply.headers.get("x-content-type-options") == "nosniff"
        and reply.headers.get("referrer-policy") == "no-referrer"
        and reply.headers.get("cache-control") == "no-store"
        and not [name for name in reply.headers if name.startswith("access-control")]
    )


async def entries_of(served: Served) -> int:
    """Return how much all journals hold: what was refused must not have changed it."""
    page = await served.mid.runs(limit=500)
    return sum(row.seq for row in page.items)
