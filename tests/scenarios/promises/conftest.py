"""Fixtures of the promises: the stores of `tests/unit/runs`, and a log file."""

from pathlib import Path

import pytest

from tests.unit.runs.conftest import opened, path

__all__ = ["log", "opened", "path"]


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Return the path of the log that the tools of `log_agent` write to."""
    return str(tmp_path / "log.txt")
