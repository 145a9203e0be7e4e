"""Firsts among processes: from where on a follower is told."""

from datetime import timedelta

import anyio
import psycopg
import pytest

from midrun.core.ids import Seq
from midrun.ports.follower_cursors import Mark
from midrun.stores.postgres.connection import Address, Link
from midrun.stores.postgres.setup import _migrate, migrations
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.store_suite.cursors import DONE, TTL, grow
from midrun.testing.store_suite.fixtures import OTHER, RUN, create
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
    await create(store, RUN, head=DONE)
    marks, comes = store.marks(), anyio.Event()

    async def come() -> None:
        assert await marks.attend("f", holder="p", ttl=TTL)
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
    assert not await marks.behind("f", limit=9)
    assert (await marks.marked("f", RUN)).seq == 2


async def test_a_follower_that_comes_is_there_once_though_its_answer_was_lost(
    cut_url: str, cutter: Cutter, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks again: what has happened in between is not counted as told."""
    monkeypatch.setattr("tests.unit.stores.postgres.cutting.WRITE", b"midrun_follow")
    store, other = await opened(cut_url), await opened(cut_url)
    await create(other, RUN, head=DONE)

    async def meanwhile() -> None:
        cutter.meanwhile = None
        await grow(other, RUN, 1)

    cutter.meanwhile, cutter.next = meanwhile, Cut.AFTER
    assert await store.marks().attend("f", holder="p", ttl=TTL)
    assert cutter.cuts == 1
    assert await store.marks().behind("f", limit=9) == [Mark(run=RUN, seq=Seq(1))]


async def test_an_older_midrun_keeps_the_followers_that_it_knows_and_gets_no_other(
    url: str, opened: Open
) -> None:
    """It would take every run without a mark for one that was never told of."""
    address = Address(url, durability="full", patience=timedelta(seconds=PATIENCE))
    link = await Link.made(address)
    await _migrate(address, link, migrations()[:4])
    link.drop()
    old = PostgresStore(address)
    await create(old, RUN, head=DONE)
    with psycopg.connect(url, autocommit=True) as db:
        assert db.execute(ATTENDED, ("known", "old")).fetchone() == (True,)
        new = await opened(url)
        marks = new.marks()
        assert await marks.attend("late", holder="new", ttl=TTL)
        await marks.leave("late", holder="new")
        assert db.execute(ATTENDED, ("late", "old")).fetchone() == (False,)
        assert db.execute(ATTENDED, ("known", "old")).fetchone() == (True,)
        assert not await marks.attend("known", holder="new", ttl=TTL)
        await grow(old, RUN, 1)  # through the procedure by its name: it makes the mark
        await create(old, OTHER, head=DONE)
        await marks.leave("known", holder="old")
        for name in ("known", "late"):
            assert await marks.attend(name, holder="new", ttl=TTL)
            behind = {mark.run: mark.seq for mark in await marks.behind(name, limit=9)}
            assert behind == {RUN: 1, OTHER: 0}
    await old.close()
