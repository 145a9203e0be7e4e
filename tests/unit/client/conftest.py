"""What tests of the client share: servers to connect to, as one of the people."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

import anyio
import pytest

from midrun import connect
from midrun.runs.protocols import AnyMidrun
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import Serve, Served, server_on, token_of

PATIENCE = 120


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Give what is left at the end of the test, last come first."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as made:
            yield made


@pytest.fixture
def serve(stack: AsyncExitStack, tmp_path: Path) -> Serve:
    """Give what starts a server; afterwards every journal in its store is verified."""
    any_port = ["127.0.0.1"]  # of a proxy in front of it, say
    return server_on(stack, f"sqlite:///{tmp_path / 'runs.db'}", any_port)


@pytest.fixture
async def stage(stack: AsyncExitStack) -> AsyncIterator[ControllableTools]:
    """Give a stage; what waits on it at the end is let go."""
    del stack  # only to be over before it
    made = ControllableTools()
    yield made
    made.open_all_gates()


class Connected(Protocol):
    """Connects to a server, or to whoever stands in front of it."""

    async def __call__(
        self, served: Served, *, name: str = ..., port: int = ..., patience: float = ...
    ) -> AnyMidrun: ...


@pytest.fixture
def connected(stack: AsyncExitStack) -> Connected:
    """Give what connects."""

    async def connect_one(
        served: Served, *, name: str = "olga", port: int = 0, patience: float = 30.0
    ) -> AnyMidrun:
        url = f"http://127.0.0.1:{port or served.port}"
        made = connect(url, token=token_of(name), patience=patience)
        return await stack.enter_async_context(made)

    return connect_one


__all__ = ["Connected", "Serve", "Served"]
