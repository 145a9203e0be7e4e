"""Fixtures of the server tests: a real server on loopback, and actors with tokens."""

from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Protocol

import anyio
import httpx2
import pytest

from midrun import Actor, Agent, Midrun
from midrun.client.transport import NO_TLS_CONTEXT
from midrun.ports.environment import Environment
from midrun.ports.store import RunQuery
from midrun.server import App, Limits, Tokens, app
from midrun.server.serve import UvicornServer, open_listener
from midrun.testing.controllable_tools import ControllableTools

TIMEOUT_S = 90
"""Timeout in seconds; a test that needs longer fails."""

LIMITS = Limits()

KEY = b"signs the checkpoints of all servers in tests"

ACTORS = {
    "olga": Actor(name="olga", role="operator"),
    "ann": Actor(name="ann", role="user"),
    "bob": Actor(name="bob", role="user"),
    "vera": Actor(name="vera", role="viewer"),
}


def make_token(name: str) -> str:
    """Return the token of the actor with this name."""
    return f"token-of-{name}-0123456789"


def make_tokens() -> Tokens:
    """Return the authentication that accepts the token of every actor."""
    return Tokens({make_token(name): actor for name, actor in ACTORS.items()})


class RunningServer:
    """A server on loopback: its URL, its app, and the `Midrun` behind it."""

    def __init__(self, mid: Midrun, asgi_app: App, port: int, stack: AsyncExitStack) -> None:
        self.mid = mid
        self.app = asgi_app
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._stack = stack

    async def client(self, name: str | None = "olga") -> httpx2.AsyncClient:
        """Return a client with the token of the actor, or without a token."""
        headers = {} if name is None else {"Authorization": f"Bearer {make_token(name)}"}
        client = httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=TIMEOUT_S, verify=NO_TLS_CONTEXT
        )
        return await self._stack.enter_async_context(client)


class StartServer(Protocol):
    """Starts a server with these agents on the store of the test."""

    async def __call__(self, *agents: Agent, limits: Limits = ...) -> RunningServer: ...


@asynccontextmanager
async def serve_on_loopback(asgi_app: App, *, send_buffer_bytes: int = 0) -> AsyncIterator[int]:
    """Serve an app on a free port of loopback, and give the port.

    `send_buffer_bytes` limits the bytes that the system buffers for a client that does not
    read.
    """
    with open_listener("127.0.0.1", 0) as sock:
        if send_buffer_bytes:
            sock.setsockopt(SOL_SOCKET, SO_SNDBUF, send_buffer_bytes)
        server = UvicornServer(asgi_app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield sock.getsockname()[1]
            finally:
                server.should_exit = True


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[StartServer]:
    """Give a function that starts a server; all its journals are verified at the end."""
    with anyio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            yield make_server_starter(stack, f"sqlite:///{tmp_path / 'runs.db'}")


@pytest.fixture
async def stage(serve: StartServer) -> AsyncIterator[ControllableTools]:
    """Give controllable tools; their gates are opened before the servers are closed."""
    del serve  # so that this fixture is torn down first
    tools = ControllableTools()
    yield tools
    tools.open_all_gates()


def make_server_starter(
    stack: AsyncExitStack, store_url: str, hosts: Collection[str] = ()
) -> StartServer:
    """Return a function that starts servers on a store; they end with the stack."""

    async def serve(*agents: Agent, limits: Limits = LIMITS) -> RunningServer:
        outside = Environment(lease=timedelta(seconds=30))
        mid = Midrun(store_url, agents=agents, outside=outside, key=KEY)
        await stack.enter_async_context(mid)
        stack.push_async_callback(verify_all_journals, mid)
        asgi_app = app(mid, auth=make_tokens(), limits=limits, allow_hosts=hosts)
        port = await stack.enter_async_context(serve_on_loopback(asgi_app))
        return RunningServer(mid, asgi_app, port, stack)

    return serve


async def verify_all_journals(mid: Midrun) -> None:
    """Assert that every journal in the store of `mid` is valid."""
    for row in (await mid.store.list_runs(RunQuery(limit=500))).items:
        verdict = await mid.verify(row.run)
        assert verdict, str(verdict)
