"""What tests of followers share."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from midrun.followers import worker as module
from tests.unit.followers.receiving import FarEnd, far_end

PATIENCE = 120


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about how long the waits are, only about what comes after them."""
    monkeypatch.setattr(module, "RETRY_FIRST_DELAY_S", 0.001)
    monkeypatch.setattr(module, "PASS_MIN_INTERVAL_S", 0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the file that the test's runs are kept in."""
    return tmp_path / "runs.db"


@pytest.fixture
async def there() -> AsyncIterator[FarEnd]:
    """Give a far end; whoever waits for what never comes is told so in the end."""
    with anyio.fail_after(PATIENCE):
        async with far_end() as made:
            yield made
