"""What tests of engines share: a real Temporal server."""

from collections.abc import Iterator

import pytest

from midrun.testing.temporal import TemporalServer, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """Give the real server, with its history in a file; who stops it starts it again."""
    with running(tmp_path_factory.mktemp("temporal")) as server:
        yield server
