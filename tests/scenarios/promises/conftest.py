"""What tests of the promises share: the stores of the runtime's tests, verified afterwards."""

from pathlib import Path

import pytest

from tests.unit.runs.conftest import opened, path

__all__ = ["log", "opened", "path"]


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Give the book that the office writes down in what it does."""
    return str(tmp_path / "book.txt")
