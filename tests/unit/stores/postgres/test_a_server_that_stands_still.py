"""A server that stands still for longer than a lease, and goes on where it was."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Midrun
from midrun.errors import StoreError
from midrun.ports.environment import Environment
from midrun.stores.postgres import connection, pool
from midrun.testing.postgres import Postgres
from tests.crash.facts import becomes
from tests.unit.stores.postgres.conftest import PATIENCE
from tests.unit.workers.worker import agents_of

pytestmark = [pytest.mark.once, pytest.mark.slow]

LEASE = timedelta(seconds=4)
"""Of which payments need a moment: they end while nobody can journal it."""


def words(folder: Path) -> Counter[str]:
    """Return what was entered into the book, how often."""
    book = folder / "book"
    lines = book.read_text().splitlines() if book.exists() else ()
    return Counter(line.split()[0] for line in lines)


async def test_holders_fence_themselves_and_nothing_is_done_twice(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, and a server that neither answers nor refuses: SIGSTOP, then SIGCONT.

    What it had been sent it carries out when it wakes, long after everybody has given it up.
    """
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", 1.0)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 1)
    outside, url = Environment(lease=LEASE), postgres.url()
    ada, bob = agents_of(tmp_path, "ada"), agents_of(tmp_path, "bob")
    with anyio.fail_after(PATIENCE):
        async with (
            Midrun(url, agents=ada, outside=outside) as midrun,
            Midrun(url, agents=bob, outside=outside),
        ):
            clerk = await midrun.start("clerk", "Go.")
            payer = await midrun.start("payer", "Go.")
            await becomes(lambda: words(tmp_path).keys() == {"a", "b", "pay"})
            with postgres.freeze_processes():
                (tmp_path / "paid").touch()
                await becomes((tmp_path / "pay is over").exists)
                await becomes((tmp_path / "b is over").exists)  # it was stopped
                with pytest.raises(StoreError):
                    await clerk.pause(request_id="once")
                assert words(tmp_path) == {"a": 1, "b": 1, "pay": 1}
            receipt = await clerk.pause(request_id="once")
            (tmp_path / "on").touch()
            await clerk.until("paused")
            kinds = [type(r.entry).__name__ for r in await midrun.store.read(clerk.id)]
            assert kinds.count("PauseRequested") == 1
            assert kinds[receipt.seq - 1] == "PauseRequested"
            await clerk.resume()
            assert (await clerk.until("completed")).output == "Done."
            await payer.until("completed")  # it may have asked for a moment; nobody answered
            for run in (clerk, payer):
                verdict = await midrun.verify(run.id)
                assert verdict, str(verdict)
    entered = words(tmp_path)
    assert (entered["a"], entered["pay"]) == (1, 1)
    assert entered["b"] > 1  # it may be made again, and was
