"""A follower that comes to a store which has runs: told of what happens from then on."""

import sys
from pathlib import Path

import anyio
import apsw
import pytest

from midrun import Midrun
from midrun.core.ids import Seq
from midrun.followers import following
from midrun.followers import worker as module
from midrun.followers.webhooks import Webhook
from midrun.ports.follower_cursors import FollowerCursor
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.cursors import COMPLETED_HEAD, LEASE_TTL, append_in_phase
from midrun.testing.store_suite.fixtures import OTHER_RUN, RUN, create_run
from tests.scenarios.redaction.office import Office
from tests.support.processes import ROOT
from tests.unit.followers.receiving import SECRET, FarEnd
from tests.unit.runs.stage import Use

OLD = {
    "come": "INSERT OR IGNORE INTO followers VALUES (?, '', 0)",
    "attend": """
        UPDATE followers SET holder = ?2, until = ?3
        WHERE follower = ?1 AND (holder IN ('', ?2) OR until <= ?4)
    """,
    "grow": "UPDATE runs SET seq = seq + 1 WHERE run = ?",
}
"""What a midrun says to a file that does not know latecomers."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.once)])
def address(request: pytest.FixtureRequest, path: Path) -> str:
    """Give the address of a store."""
    if request.param == "sqlite":
        return f"sqlite:///{path}"
    server = request.getfixturevalue("postgres")
    assert isinstance(server, Postgres)
    return server.url()


@pytest.mark.slow
async def test_one_that_is_killed_as_soon_as_it_has_come_misses_nothing(
    address: str, there: FarEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the next one repeat what was there before either of them came."""
    monkeypatch.setattr(module, "SCAN_INTERVAL_S", 0.05)
    office = Office()
    agent = office.agent(Use("ask"), "Thanks.", name="asks")
    async with Midrun(address, agents=[agent]) as midrun:
        run = await midrun.start(agent, "Ask.")
        await run.until("waiting")
        command = [sys.executable, "-m", "tests.unit.followers.child", address, there.url, ""]
        async with await anyio.open_process(command, cwd=ROOT, stderr=None) as process:
            assert process.stdout is not None
            await process.stdout.receive()  # it has come
            process.kill()
        await run.answer("yes")
        await run.until("completed")
        async with following(midrun, Webhook(there.url, secret=SECRET)):
            await there.hears(1)
            other = await midrun.start(agent, "Ask.")
            await other.until("waiting")
            await there.hears(2)
    told = [(got.data["run_id"], got.data["phase"]) for got in there.got]
    assert told == [(run.id, "completed"), (other.id, "waiting")]


async def test_an_older_midrun_does_not_get_the_place_of_a_latecomer(path: Path) -> None:
    """It would take every run without a mark for one that was never told of."""
    store = SqliteStore(path)
    await create_run(store, RUN, head=COMPLETED_HEAD)
    marks, old = store.follower_cursors(), apsw.Connection(str(path))
    assert await marks.acquire_leadership("late", holder="new", ttl=LEASE_TTL)
    await marks.release_leadership("late", holder="new")
    far = 2**61
    for name, gets in (("late", 0), ("known", 1)):
        old.execute(OLD["come"], (name,))
        old.execute(OLD["attend"], (name, "old", far, far - 1))
        assert old.changes() == gets
    assert await marks.acquire_leadership("late", holder="new", ttl=LEASE_TTL)
    assert not await marks.acquire_leadership("known", holder="new", ttl=LEASE_TTL)
    old.close()
    await store.close()


async def test_what_an_older_midrun_writes_is_not_lost_to_a_latecomer(path: Path) -> None:
    """A run that grows gets its mark in whichever process that happens."""
    store = SqliteStore(path)
    await create_run(store, RUN, head=COMPLETED_HEAD)
    marks, old = store.follower_cursors(), apsw.Connection(str(path))
    await marks.acquire_leadership("late", holder="new", ttl=LEASE_TTL)
    for _ in range(2):
        old.execute(OLD["grow"], (RUN,))
    old.close()
    assert await marks.list_behind("late", limit=9) == [FollowerCursor(run=RUN, seq=Seq(1))]
    await store.close()


async def test_a_latecomer_costs_nothing_for_what_was_there(path: Path) -> None:
    """Neither when it comes, nor when it looks: there is a mark for what has grown since."""
    store = SqliteStore(path)
    for run in (RUN, OTHER_RUN):
        await create_run(store, run, head=COMPLETED_HEAD)
    await store.follower_cursors().acquire_leadership("late", holder="p", ttl=LEASE_TTL)
    db = apsw.Connection(str(path))
    assert db.execute("SELECT count(*) FROM marks").get == 0
    await append_in_phase(store, OTHER_RUN, 1)
    assert db.execute("SELECT follower, seq FROM marks").fetchall() == [("late", 1)]
    db.close()
    await store.close()
