"""What tests of the protocols share: a server whose bridges a test can set."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
import httpx2
import pytest

from midrun import Agent, Midrun, Run
from midrun.ports.store import RunQuery
from midrun.server import App, Bridges, Tokens, app
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import PATIENCE, PEOPLE, listening, token_of


class ProtocolServer:
    """A server that runs: where it is, and the runs behind it."""

    def __init__(self, mid: Midrun, made: App, url: str) -> None:
        self.mid = mid
        self.app = made
        self.url = url
        self.close = made.close

    async def get_only_run(self) -> Run:
        """Return the one run there is."""
        (row,) = (await self.mid.store.list_runs(RunQuery(limit=2))).items
        return await self.mid.get(row.run)


class ServeAgent(Protocol):
    """Serves an agent on a store of the test's own."""

    def __call__(
        self, agent: Agent, bridges: Bridges | None = None
    ) -> AbstractAsyncContextManager[ProtocolServer]: ...


@pytest.fixture
def stage() -> ControllableTools:
    """Give a stage of the test's own."""
    return ControllableTools()


@pytest.fixture
def serve_agent(tmp_path: Path) -> ServeAgent:
    """Give what serves an agent; afterwards every journal in its store is verified."""

    @asynccontextmanager
    async def serve(
        agent: Agent, bridges: Bridges | None = None
    ) -> AsyncIterator[ProtocolServer]:
        address = f"sqlite:///{tmp_path / 'runs.db'}"
        auth = Tokens({token_of(name): actor for name, actor in PEOPLE.items()})
        with anyio.fail_after(2 * PATIENCE):
            async with Midrun(address, agents=[agent]) as mid:
                made = app(mid, auth=auth, bridges=bridges)
                async with listening(made) as port:
                    yield ProtocolServer(mid, made, f"http://127.0.0.1:{port}")
                for row in (await mid.store.list_runs(RunQuery(limit=50))).items:
                    verdict = await mid.verify(row.run)
                    assert verdict, str(verdict)

    return serve


@asynccontextmanager
async def open_http_client(server: ProtocolServer) -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client with a token."""
    headers = {"Authorization": f"Bearer {token_of('olga')}"}
    async with httpx2.AsyncClient(
        base_url=server.url, headers=headers, timeout=PATIENCE
    ) as client:
        yield client
