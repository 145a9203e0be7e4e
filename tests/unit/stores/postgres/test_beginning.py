"""Firsts among processes: from where on a follower is told."""

from datetime import timedelta

import anyio
import psycopg
import pytest

from midrun.core.ids import Seq
from midrun.ports.follower_cursors import FollowerCursor
from midrun.stores.postgres.connection import PostgresAddress, PostgresConnection
from midrun.stores.postgres.setup import _apply_migrations, load_migrations
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.store_suite.cursors import COMPLETED_HEAD, LEASE_TTL, append_in_phase
from midrun.testing.store_suite.fixtures import OTHER_RUN, RUN, create_run
from tests.unit.stores.postgres.conftest import PATIENCE, Open
from tests.unit.stores.postgres.cutting import Cut, Cutter

pytestmark = pytest.mark.once

ATTENDED = "SELECT midrun_attend(%s, %s, 10000000, NULL)"
"""What a midrun of schema 4 asks."""

WAITS = "SELECT 1 FROM pg_locks WHERE classid = 1296647250 AND NOT granted"


async def test_what_is_being_written_while_a_follower_comes_is_before_it(
    url: str, store: PostgresStore
) -> None:
    """It waits for those who write, and those who come then see it: nothing falls between."""
    await create_run(store, RUN, head=COMPLETED_HEAD)
    marks, comes = store.follower_cursors(), anyio.Event()

    async def come() -> None:
        assert await marks.acquire_leadership("f", holder="p", ttl=LEASE_TTL)
        comes.set()

    with psycopg.connect(url) as db:  # one who writes, and has not committed yet
        db.execute("SELECT pg_advisory_xact_lock_shared(1296647250, midrun_key())")
        db.execute("UPDATE midrun_runs SET seq = 2")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come)
            while not db.execute(WAITS).fetchone() and not comes.is_set():  # noqa: ASYNC110 - a fact of the server's
                await anyio.sleep(0.01)
            assert not comes.is_set()
            db.commit()
    assert not await marks.list_behind("f", limit=9)
    assert (await marks.get_cursor("f", RUN)).seq == 2


async def test_a_follower_that_comes_is_there_once_though_its_answer_was_lost(
    cut_url: str, cutter: Cutter, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks again: what has happened in between is not counted as told."""
    monkeypatch.setattr("tests.unit.stores.postgres.cutting.WRITE", b"midrun_follow")
    store, other = await opened(cut_url), await opened(cut_url)
    await create_run(other, RUN, head=COMPLETED_HEAD)

    async def meanwhile() -> None:
        cutter.meanwhile = None
        await append_in_phase(other, RUN, 1)

    cutter.meanwhile, cutter.next = meanwhile, Cut.AFTER
    assert await store.follower_cursors().acquire_leadership("f", holder="p", ttl=LEASE_TTL)
    assert cutter.cuts == 1
    assert await store.follower_cursors().list_behind("f", limit=9) == [
        FollowerCursor(run=RUN, seq=Seq(1))
    ]


async def test_an_older_midrun_keeps_the_followers_that_it_knows_and_gets_no_other(
    url: str, opened: Open
) -> None:
    """It would take every run without a mark for one that was never told of."""
    address = PostgresAddress(url, durability="full", write_timeout=timedelta(seconds=PATIENCE))
    link = await PostgresConnection.connect(address)
    await _apply_migrations(address, link, load_migrations()[:4])
    link.close()
    old = PostgresStore(address)
    await create_run(old, RUN, head=COMPLETED_HEAD)
    with psycopg.connect(url, autocommit=True) as db:
        assert db.execute(ATTENDED, ("known", "old")).fetchone() == (True,)
        new = await opened(url)
        marks = new.follower_cursors()
        assert await marks.acquire_leadership("late", holder="new", ttl=LEASE_TTL)
        await marks.release_leadership("late", holder="new")
        assert db.execute(ATTENDED, ("late", "old")).fetchone() == (False,)
        assert db.execute(ATTENDED, ("known", "old")).fetchone() == (True,)
        assert not await marks.acquire_leadership("known", holder="new", ttl=LEASE_TTL)
        await append_in_phase(
            old, RUN, 1
        )  # through the procedure by its name: it makes the mark
        await create_run(old, OTHER_RUN, head=COMPLETED_HEAD)
        await marks.release_leadership("known", holder="old")
        for name in ("known", "late"):
            assert await marks.acquire_leadership(name, holder="new", ttl=LEASE_TTL)
            behind = {mark.run: mark.seq for mark in await marks.list_behind(name, limit=9)}
            assert behind == {RUN: 1, OTHER_RUN: 0}
    await old.close()
