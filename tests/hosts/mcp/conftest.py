"""What tests of MCP tools share: stores that are verified afterwards, and servers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Protocol

import pytest

from midrun import Tool
from midrun.hosts.mcp import mcp_tools
from tests.hosts.mcp.office import Pipe, Process, Way, command
from tests.runtime.conftest import opened, path

__all__ = ["opened", "path"]


class Served(Protocol):
    """Opens the tools of a server that is spoken to in this way."""

    async def __call__(self, way: Way) -> AbstractAsyncContextManager[list[Tool]]: ...


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    """Give what the test's own servers speak into."""
    pipe = Pipe(tmp_path / "pipe")
    yield pipe
    pipe.close()


@pytest.fixture
async def served(pipe: Pipe) -> AsyncIterator[Served]:
    """Give what opens the tools of a server, by the way it is spoken to."""
    with AsyncExitStack() if False else _Servers() as servers:
        yield servers.tools(pipe)
