"""What tests of the server share: a real one on loopback, with people who have tokens."""

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
from tests.unit.runs.stage import ControllableTools

PATIENCE = 90
"""Seconds after which something that should have happened counts as never happening."""

LIMITS = Limits()

KEY = b"signs the checkpoints of all servers in tests"

PEOPLE = {
    "olga": Actor(name="olga", role="operator"),
    "ann": Actor(name="ann", role="user"),
    "bob": Actor(name="bob", role="user"),
    "vera": Actor(name="vera", role="viewer"),
}


def token_of(name: str) -> str:
    """Return the token of one of the people."""
    return f"token-of-{name}-0123456789"


class Served:
    """A server that runs: its address, its app, and the runs behind it."""

    def __init__(self, mid: Midrun, made: App, port: int, stack: AsyncExitStack) -> None:
        self.mid = mid
        self.app = made
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._stack = stack

    async def client(self, name: str | None = "olga") -> httpx2.AsyncClient:
        """Return a client that shows the token of one of the people, or none."""
        headers = {} if name is None else {"Authorization": f"Bearer {token_of(name)}"}
        made = httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE, verify=NO_TLS_CONTEXT
        )
        return await self._stack.enter_async_context(made)


class Serve(Protocol):
    """Serves agents on a store of the test's own."""

    async def __call__(self, *agents: Agent, limits: Limits = ...) -> Served: ...


@asynccontextmanager
async def listening(made: App, *, room: int = 0) -> AsyncIterator[int]:
    """Let `made` listen on a free port of loopback.

    With `room`, that is how many bytes the system keeps for whoever does not read.
    """
    with open_listener("127.0.0.1", 0) as sock:
        if room:
            sock.setsockopt(SOL_SOCKET, SO_SNDBUF, room)
        server = UvicornServer(made)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [sock])
            try:
                yield sock.getsockname()[1]
            finally:
                server.should_exit = True


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Give what starts a server; afterwards every journal in its store is verified."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            yield server_on(stack, f"sqlite:///{tmp_path / 'runs.db'}")


@pytest.fixture
async def stage(serve: Serve) -> AsyncIterator[ControllableTools]:
    """Give a stage; what waits on it at the end is let go, so that nobody waits for it."""
    del serve  # only to be over before it
    made = ControllableTools()
    yield made
    for gate in made._gates.values():
        gate.set()


def server_on(stack: AsyncExitStack, address: str, hosts: Collection[str] = ()) -> Serve:
    """Return what starts a server on a store, to be left with the stack."""

    async def serve(*agents: Agent, limits: Limits = LIMITS) -> Served:
        outside = Environment(lease=timedelta(seconds=30))
        opened = Midrun(address, agents=agents, outside=outside, key=KEY)
        mid = await stack.enter_async_context(opened)
        stack.push_async_callback(_verify_all, mid)
        auth = Tokens({token_of(name): actor for name, actor in PEOPLE.items()})
        made = app(mid, auth=auth, limits=limits, allow_hosts=hosts)
        port = await stack.enter_async_context(listening(made))
        return Served(mid, made, port, stack)

    return serve


async def _verify_all(mid: Midrun) -> None:
    for row in (await mid.store.list_runs(RunQuery(limit=500))).items:
        verdict = await mid.verify(row.run)
        assert verdict, str(verdict)
