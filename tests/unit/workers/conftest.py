"""A real Temporal server for the tests of workers."""

from collections.abc import Iterator

import pytest

from midrun.testing.temporal import TemporalServer, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporalServer]:
    """Run Temporal with its history in a file; a test that stops it must start it again."""
    with running(tmp_path_factory.mktemp("temporal")) as server:
        yield server
