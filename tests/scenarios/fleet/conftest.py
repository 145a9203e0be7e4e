"""The store of a fleet of processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.unit.runs.conftest import verify_journals

PATIENCE = 60
"""Seconds before a wait fails."""


@pytest.fixture
async def path(store_path: Path) -> AsyncIterator[Path]:
    """Return the path of the store; verify every journal afterwards."""
    with anyio.fail_after(PATIENCE):
        yield store_path
        await verify_journals(store_path)
