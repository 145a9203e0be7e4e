"""What tests of MCP tools share: a server, and what others say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.mcp.office import Pipe, Process


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    """Give what the test's own servers speak into."""
    pipe = Pipe(tmp_path / "pipe")
    yield pipe
    pipe.close()


@pytest.fixture(scope="session")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Give a server over HTTP, for all tests that leave it as it was."""
    pipe = Pipe(tmp_path_factory.mktemp("office") / "pipe")
    with Process(pipe) as process:
        yield process
    pipe.close()


@pytest.fixture
async def url(office: Process) -> str:
    """Give where that server is."""
    return await office.url()
