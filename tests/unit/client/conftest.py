"""Fixtures of the client tests: servers, and clients that are connected to them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import anyio
import pytest

from midrun import connect
from midrun.runs.protocols import AnyMidrun
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import (
    RunningServer,
    StartServer,
    make_server_starter,
    make_token,
)

TIMEOUT_S = 120


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Give a stack that is closed at the end of the test."""
    with anyio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as exit_stack:
            yield exit_stack


@pytest.fixture
def serve(stack: AsyncExitStack, tmp_path: Path) -> StartServer:
    """Return a function that starts a server; all its journals are verified at the end."""
    any_port = ["127.0.0.1"]  # a proxy in front of the server has another port
    return make_server_starter(stack, f"sqlite:///{tmp_path / 'runs.db'}", any_port)


@pytest.fixture
async def stage(stack: AsyncExitStack) -> AsyncIterator[ControllableTools]:
    """Give controllable tools; their gates are opened before the servers are closed."""
    del stack  # so that this fixture is torn down first
    tools = ControllableTools()
    yield tools
    tools.open_all_gates()


class ConnectClient(Protocol):
    """Connects to a server, or to a proxy in front of it."""

    async def __call__(
        self, server: RunningServer, *, name: str = ..., port: int = ..., patience: float = ...
    ) -> AnyMidrun: ...


@pytest.fixture
def connect_client(stack: AsyncExitStack) -> ConnectClient:
    """Return a function that connects to a server as one of the actors."""

    async def connect_as(
        server: RunningServer, *, name: str = "olga", port: int = 0, patience: float = 30.0
    ) -> AnyMidrun:
        url = f"http://127.0.0.1:{port or server.port}"
        mid = connect(url, token=make_token(name), patience=patience)
        return await stack.enter_async_context(mid)

    return connect_as


__all__ = ["ConnectClient", "RunningServer", "StartServer"]
