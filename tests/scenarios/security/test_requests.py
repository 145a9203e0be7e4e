"""Requests that must change nothing, and limits of requests: defences 1, 4, 6 and 7."""

import os
import re
from functools import partial
from pathlib import Path

import anyio
import pytest

from midrun import Agent
from midrun.models import ScriptedModel, Use
from midrun.server.routes import ENDPOINTS
from midrun.testing.controllable_tools import ControllableTools
from tests.support.secret_tools import blocking_login
from tests.unit.server.conftest import StartServer, make_token, serve, stage
from tests.unit.server.endpoints import count_entries

__all__ = ["serve", "stage"]  # fixtures

GET_ENDPOINTS = [endpoint for endpoint in ENDPOINTS if endpoint.method == "GET"]


def environment() -> str:
    """Return the arguments and the environment of the tool's own process."""
    started = Path("/proc/self/cmdline").read_bytes() + Path("/proc/self/environ").read_bytes()
    return started.decode(errors="replace") + str(dict(os.environ))


def _fill_parameter(run: str, name: re.Match[str]) -> str:
    return {"run": run, "agent": "actor", "ask": f"{run}-a1"}.get(name[1], "x")


async def test_no_get_request_changes_anything(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A page of another site can make a browser request any address."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    client = await served.client()
    before = await count_entries(served)
    for endpoint in GET_ENDPOINTS:
        where = re.sub(r"{(\w+)[^}]*}", partial(_fill_parameter, run.id), endpoint.path)
        async with client.stream("GET", where) as reply:  # some replies are endless streams
            assert reply.status_code < 500, where
        assert await count_entries(served) == before, where
        assert not await served.mid.store.list_halts()
    stage.gate("a").set()
    await run.until("completed")


@pytest.mark.parametrize("name", ["token", "access_token", "auth", "authorization", "key"])
async def test_a_credential_in_the_url_is_not_accepted(
    name: str, serve: StartServer, stage: ControllableTools
) -> None:
    """URLs are logged, and sent to other sites as the referrer."""
    served = await serve(stage.agent("Done."))
    client = await served.client(None)
    for path in ("/v1/runs", "/v1/events", "/v1/openapi.json"):
        reply = await client.get(f"{path}?{name}={make_token('olga')}")
        assert reply.status_code == 401


@pytest.mark.parametrize("size", [100_000, 2_000_000])
async def test_headers_are_bounded(
    size: int, serve: StartServer, stage: ControllableTools
) -> None:
    """A client without a credential must not use up the memory of the server."""
    served = await serve(stage.agent("Done."))
    async with await anyio.connect_tcp("127.0.0.1", served.port) as raw:
        head = f"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nX-Long: "
        answer = b""
        try:
            await raw.send(head.encode())
            for _ in range(size // 10_000):
                await raw.send(b"x" * 10_000)
            answer = await raw.receive()
        except (anyio.BrokenResourceError, anyio.EndOfStream):
            pass  # the server has closed the connection
    assert b" 200 " not in answer
    client = await served.client()
    assert (await client.get("/v1/runs")).status_code == 200


async def test_a_tools_process_is_started_with_no_credential_of_the_server(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Neither in its arguments nor in its environment, where other users could read them."""
    del stage
    used = Use("blocking_login", user="ann", password="s3cret-word")
    model = ScriptedModel([Use("environment"), used, "Done."])
    agent = Agent("actor", model=model, tools=[environment, blocking_login])
    served = await serve(agent)
    run = await served.mid.start("actor", "Go.", actor="olga")
    await run.until("completed")
    lines = b"".join(line for line, _ in await served.mid.store.read_lines(run.id))
    assert b"PATH" in lines
    assert b"token-of-" not in lines
    assert b"s3cret-word" not in lines
