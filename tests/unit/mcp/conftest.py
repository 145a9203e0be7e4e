"""Fixtures of the MCP tests: server processes, and the pipe that they write to."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.mcp.tool_servers import HttpServerProcess, LinePipe


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[LinePipe]:
    """Give the pipe that servers of this test write to."""
    pipe = LinePipe(tmp_path / "pipe")
    yield pipe
    pipe.close()


@pytest.fixture(scope="session")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServerProcess]:
    """Give one server for all tests that do not change its state."""
    pipe = LinePipe(tmp_path_factory.mktemp("http_server") / "pipe")
    with HttpServerProcess(pipe) as process:
        yield process
    pipe.close()


@pytest.fixture
async def url(http_server: HttpServerProcess) -> str:
    """Return the URL of the shared server."""
    return await http_server.url()
