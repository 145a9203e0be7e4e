"""A server with AG-UI, CopilotKit and A2A routes, for the tests of the protocols."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
import httpx2
import pytest
from starlette.types import Message, Receive, Scope, Send

from midrun import Agent, Midrun, Run
from midrun.ports.store import RunQuery
from midrun.server import App, Bridges, Tokens, app
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import ACTORS, TIMEOUT_S, make_token, serve_on_loopback


class ProtocolServer:
    """A running server: its address, its application and its `Midrun`."""

    def __init__(self, mid: Midrun, app: App, url: str) -> None:
        self.mid = mid
        self.app = app
        self.url = url
        self.close = app.close

    async def get_only_run(self) -> Run:
        """Return the only run in the store."""
        (row,) = (await self.mid.store.list_runs(RunQuery(limit=2))).items
        return await self.mid.get(row.run)


class ServeAgent(Protocol):
    """Serves an agent with a new store."""

    def __call__(
        self, agent: Agent, bridges: Bridges | None = None
    ) -> AbstractAsyncContextManager[ProtocolServer]: ...


@pytest.fixture
def stage() -> ControllableTools:
    """Return new controllable tools."""
    return ControllableTools()


@pytest.fixture
def serve_agent(tmp_path: Path) -> ServeAgent:
    """Return a function that serves an agent and verifies all its journals at the end."""

    @asynccontextmanager
    async def serve(
        agent: Agent, bridges: Bridges | None = None
    ) -> AsyncIterator[ProtocolServer]:
        address = f"sqlite:///{tmp_path / 'runs.db'}"
        auth = Tokens({make_token(name): actor for name, actor in ACTORS.items()})
        with anyio.fail_after(2 * TIMEOUT_S):
            async with Midrun(address, agents=[agent]) as mid:
                server_app = app(mid, auth=auth, bridges=bridges)
                async with serve_on_loopback(server_app) as port:
                    yield ProtocolServer(mid, server_app, f"http://127.0.0.1:{port}")
                for row in (await mid.store.list_runs(RunQuery(limit=50))).items:
                    verdict = await mid.verify(row.run)
                    assert verdict, str(verdict)

    return serve


@dataclass
class SentRequest:
    """A request of a client, as the server got it."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes = b""

    @asynccontextmanager
    async def repeat(self, client: httpx2.AsyncClient) -> AsyncIterator[httpx2.Response]:
        """Send the request again, as a client or a proxy does that has lost the reply."""
        headers = {**self.headers, "x-stainless-retry-count": "1"}
        async with client.stream(
            self.method, self.url, headers=headers, content=self.body
        ) as reply:
            yield reply


@pytest.fixture
def sent_requests(monkeypatch: pytest.MonkeyPatch) -> list[SentRequest]:
    """Return the requests of all clients of all servers, as they come."""
    requests: list[SentRequest] = []
    serve = App.__call__

    async def record(self: App, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await serve(self, scope, receive, send)
            return
        query = scope["query_string"].decode()
        own = {key.decode(): value.decode() for key, value in scope["headers"]}
        kept = {key: own[key] for key in own if key not in {"host", "content-length"}}
        url = scope["path"] + (f"?{query}" if query else "")
        request = SentRequest(scope["method"], url, kept)
        requests.append(request)

        async def receive_and_record() -> Message:
            message = await receive()
            request.body += message.get("body", b"")
            return message

        await serve(self, scope, receive_and_record, send)

    monkeypatch.setattr(App, "__call__", record)
    return requests


@asynccontextmanager
async def open_http_client(server: ProtocolServer) -> AsyncIterator[httpx2.AsyncClient]:
    """Open a plain HTTP client with the token of olga."""
    headers = {"Authorization": f"Bearer {make_token('olga')}"}
    async with httpx2.AsyncClient(
        base_url=server.url, headers=headers, timeout=TIMEOUT_S
    ) as client:
        yield client


def make_rpc_call(method: str, **params: object) -> dict[str, object]:
    """Return the body of a JSON-RPC request of A2A."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
