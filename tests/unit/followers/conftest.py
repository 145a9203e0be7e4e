"""Fixtures for the tests of followers: a store file and a receiver of webhooks."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from midrun.followers import worker as module
from tests.unit.followers.receiver import Receiver, run_receiver

TIMEOUT_S = 120


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the delays; no test here is about their length."""
    monkeypatch.setattr(module, "RETRY_FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(module, "PASS_MIN_INTERVAL_S", 0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the SQLite file of the test."""
    return tmp_path / "runs.db"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """Run a receiver; a test that waits for too long fails."""
    with anyio.fail_after(TIMEOUT_S):
        async with run_receiver() as running:
            yield running
