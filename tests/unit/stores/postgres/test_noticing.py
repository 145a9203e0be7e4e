"""What other processes commit is heard of at once, and within a second if it was not told."""

from datetime import timedelta
from typing import LiteralString

import anyio
import pytest

from midrun.core.ids import RunId, Seq
from midrun.ports.store import Change, HaltRecord
from midrun.stores.postgres import listener, queries
from midrun.stores.postgres.connection import PostgresAddress, PostgresConnection, Rows, Values
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.concurrency import wait_for_seqs
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    append_message,
    create_run,
    take_lease,
)
from tests.unit.stores.postgres.conftest import PATIENCE, Open
from tests.unit.stores.postgres.cutting import Cutter

pytestmark = pytest.mark.once


async def test_a_store_hears_what_another_has_appended(
    store: PostgresStore, url: str, opened: Open
) -> None:
    """Controls come from the web server, the driver lives elsewhere."""
    elsewhere = await opened(url)
    async with store.watch() as watch:
        await create_run(elsewhere)
        assert await anext(watch) == Change(run=RUN, seq=Seq(1))
        await elsewhere.set_halt(HaltRecord(scope="all", by="ops"))
        assert (await anext(watch)).run == ""


async def test_a_change_says_whether_somebody_has_the_lease(
    store: PostgresStore, url: str, opened: Open
) -> None:
    """So that a fleet need not look at every step that one of it makes."""
    elsewhere = await opened(url)
    await create_run(elsewhere)
    async with store.watch() as watch:
        await take_lease(elsewhere, RUN, 1, "a")
        assert await anext(watch) == Change(run=RUN, seq=Seq(2), held=True)


async def test_what_was_not_told_is_found_all_the_same(
    store: PostgresStore, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every notification is lost here."""
    heard = PostgresConnection.take_notifications

    def deaf(link: PostgresConnection) -> list[tuple[str, str]]:
        heard(link)
        return []

    monkeypatch.setattr(PostgresConnection, "take_notifications", deaf)
    elsewhere = await opened(url)
    async with store.watch() as watch:
        for n in range(3):
            await create_run(elsewhere, RunId(f"r{n}"))
        await elsewhere.set_halt(HaltRecord(scope="all", by="ops"))
        await wait_for_seqs(
            watch, {RunId("r0"): 1, RunId("r1"): 1, RunId("r2"): 1, RunId(""): 0}
        )


async def test_a_watch_outlives_its_connection_and_the_server(
    store: PostgresStore, url: str, opened: Open, postgres: Postgres
) -> None:
    """And misses nothing of what was committed while it was deaf."""
    elsewhere = await opened(url)
    await create_run(elsewhere)
    async with store.watch() as watch:
        await anyio.to_thread.run_sync(postgres.restart, "immediate")
        await append_message(elsewhere, RUN, 1)
        await wait_for_seqs(watch, {RUN: 2})
        await create_run(elsewhere, OTHER_RUN)
        await wait_for_seqs(watch, {OTHER_RUN: 1})


async def test_a_watch_whose_connection_was_lost_without_a_word_hears_all_the_same(
    cut_url: str, url: str, cutter: Cutter, opened: Open
) -> None:
    """No end of it ever comes: it is missed when the next look is not answered."""
    store, elsewhere = await opened(cut_url), await opened(url)
    await create_run(elsewhere)
    async with store.watch() as watch:
        cutter.forget()
        await append_message(elsewhere, RUN, 1)
        await wait_for_seqs(watch, {RUN: 2})
        await create_run(elsewhere, OTHER_RUN)
        await wait_for_seqs(watch, {OTHER_RUN: 1})


async def test_one_that_was_deaf_for_long_looks_at_everything(
    store: PostgresStore,
    url: str,
    opened: Open,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lines are not kept for ever: here there are none left, and none was told."""
    monkeypatch.setattr("midrun.stores.postgres.listener.NEWS_RETENTION_S", 0.0)
    monkeypatch.setattr("midrun.stores.postgres.listener.POLL_INTERVAL_S", 60.0)
    elsewhere = await opened(url)
    await create_run(elsewhere)
    async with store.watch() as watch:
        heard = PostgresConnection.take_notifications
        monkeypatch.setattr(
            PostgresConnection, "take_notifications", lambda link: heard(link) and []
        )
        await append_message(elsewhere, RUN, 1)
        await create_run(elsewhere, OTHER_RUN)
        schema = url.rpartition("search_path%3D")[2]
        postgres.execute(f'DELETE FROM "{schema}".midrun_news')  # noqa: S608 - ours
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'midrun'"
        )
        await wait_for_seqs(watch, {RUN: 2, OTHER_RUN: 1})


async def test_many_changes_at_once_fit_into_notifications(
    store: PostgresStore, url: str, opened: Open
) -> None:
    """One has 8000 bytes at most, and an id may have 64."""
    elsewhere = await opened(url)
    runs = [RunId(f"{n:x<64}") for n in range(300)]
    async with store.watch() as watch:
        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(create_run, elsewhere, run)
        await wait_for_seqs(watch, dict.fromkeys(runs, 1))


async def test_what_comes_in_together_with_an_answer_is_not_waited_for(url: str) -> None:
    """It has been read from the socket already: nobody would ever find it readable again."""
    address = PostgresAddress(url, durability="full", write_timeout=timedelta(seconds=PATIENCE))
    await (await PostgresStore.open(url)).close()
    link = await PostgresConnection.connect(address)
    try:
        with anyio.fail_after(PATIENCE):
            await link.execute(queries.LISTEN, {"what": ""})
            await link.execute(queries.NOTIFY, {"what": "", "message": "run_1 7"})
            assert link.has_notifications(), "else it is waited for"
            assert [text for _, text in link.take_notifications()] == ["run_1 7"]
    finally:
        link.close()


async def test_what_is_told_while_the_table_is_tidied_is_heard_at_once(
    store: PostgresStore, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes with the answer to that, and the next look is far away."""
    monkeypatch.setattr(listener, "POLLS_PER_CLEANUP", 1)
    monkeypatch.setattr(listener, "POLL_INTERVAL_S", 0.01)
    elsewhere, ask = await opened(url), PostgresConnection.execute

    async def late(
        link: PostgresConnection,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        if statement == queries.DELETE_OLD_NEWS and listener.POLL_INTERVAL_S < 1:
            monkeypatch.setattr(listener, "POLL_INTERVAL_S", 3600.0)
            await create_run(elsewhere)
        return await ask(link, statement, values, prepare=prepare)

    monkeypatch.setattr(PostgresConnection, "execute", late)
    async with store.watch() as watch:
        assert await anext(watch) == Change(run=RUN, seq=Seq(1))
