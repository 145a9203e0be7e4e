"""A newer midrun changes the schema of a store that an older one has open."""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import apsw
import psycopg
import pytest

from midrun import Midrun
from midrun.core.ids import RunId
from midrun.errors import StoreForeign
from midrun.ports.store import Store
from midrun.stores.postgres.setup import load_migrations
from midrun.stores.postgres.store import PostgresStore
from midrun.stores.sqlite.connection import SCHEMA_VERSION
from midrun.stores.sqlite.store import SqliteStore
from midrun.stores.sqlite.writer import WriterTask
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    append_message,
    create_run,
    take_lease,
)
from midrun.workers import local
from tests.crash.facts import becomes
from tests.unit.runs.stage import ControllableTools, Use

PATIENCE = 60

WRITES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "append": lambda store: append_message(store, RUN, 2),
    "create": lambda store: create_run(store, OTHER_RUN),
    "take": lambda store: take_lease(store, RUN, 2, "a"),
}

RENAMED = "ALTER PROCEDURE midrun_write(json, boolean, bigint, text) RENAME TO midrun_write_5"
BACK = "ALTER PROCEDURE midrun_write_5(json, boolean, bigint, text) RENAME TO midrun_write"
NEWER = load_migrations()[-1][0] + 1


def migrate_file(path: Path, statement: str) -> None:
    """Do to a file what a newer midrun would."""
    db = apsw.Connection(str(path))
    db.execute(
        f"BEGIN IMMEDIATE; {statement}; PRAGMA user_version = {SCHEMA_VERSION + 1}; COMMIT"
    )
    db.close()


def migrate(url: str, statement: str) -> None:
    """Do to a database what a newer midrun would."""
    with psycopg.connect(url) as db:
        db.execute(statement.encode())
        db.execute("INSERT INTO midrun_schema (version) VALUES (%s)", (NEWER,))


@pytest.mark.parametrize("write", WRITES)
async def test_nothing_more_is_written_to_a_file_that_is_a_newer_midruns(
    tmp_path: Path, write: str
) -> None:
    """Whatever has changed in it: the number is enough. What was written can be read."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    await append_message(store, RUN, 1)
    migrate_file(store.path, "ALTER TABLE runs ADD COLUMN tenant TEXT NOT NULL DEFAULT ''")
    for _ in range(2):
        with pytest.raises(StoreForeign, match="newer midrun"):
            await WRITES[write](store)
    assert [record.seq for record in await store.read(RUN)] == [1, 2]
    assert (await store.get_row(RUN)).holder == ""
    await store.close()
    with pytest.raises(StoreForeign, match="newer midrun"):
        SqliteStore(tmp_path / "runs.db")


async def test_all_who_write_to_such_a_file_at_once_are_told(tmp_path: Path) -> None:
    """They share a transaction, and its fate."""
    store = SqliteStore(tmp_path / "runs.db")
    runs = [RunId(f"r{n}") for n in range(5)]
    for run in runs:
        await create_run(store, run)
    migrate_file(store.path, "CREATE TABLE tenants (name TEXT)")
    told: list[RunId] = []

    async def writer(run: RunId) -> None:
        with pytest.raises(StoreForeign, match="newer midrun"):
            await append_message(store, run, 1)
        told.append(run)

    store._writer._queue.put(
        WriterTask.GROW_WAL
    )  # nor does the thread stumble over what it was at
    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(writer, run)
    assert sorted(told) == runs
    await store.close()


async def test_a_file_that_cannot_be_read_any_more_is_not_called_damaged(
    tmp_path: Path,
) -> None:
    """Nobody should restore a backup over what a newer midrun has made of it."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    migrate_file(store.path, "ALTER TABLE entries RENAME TO lines")
    with pytest.raises(StoreForeign, match="newer midrun"):
        await store.read(RUN)
    await store.close()


@pytest.mark.once
@pytest.mark.parametrize("write", WRITES)
async def test_nothing_is_written_to_a_database_under_a_migration_that_forbids_it(
    postgres: Postgres, write: str
) -> None:
    """The older one misses the procedure that it knows, and says why it is not there."""
    url = postgres.url()
    store = await PostgresStore.open(url)
    await create_run(store)
    await append_message(store, RUN, 1)
    migrate(url, RENAMED)
    for _ in range(2):
        with pytest.raises(StoreForeign, match="newer midrun"):
            await WRITES[write](store)
    assert [record.seq for record in await store.read(RUN)] == [1, 2]
    assert (await store.get_row(RUN)).holder == ""
    with psycopg.connect(url) as db:
        db.execute("ALTER TABLE midrun_entries RENAME TO midrun_lines")
    with pytest.raises(StoreForeign, match="newer midrun"):
        await store.read(RUN)
    await store.close()


@pytest.mark.once
async def test_a_run_goes_on_under_a_migration_that_only_adds_something(
    postgres: Postgres,
) -> None:
    """That is how a fleet is upgraded: one process after the other."""
    stage, url = ControllableTools(), postgres.url()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    with anyio.fail_after(PATIENCE):
        async with Midrun(url, agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await stage.start("a").wait()
            migrate(url, "ALTER TABLE midrun_runs ADD COLUMN tenant text NOT NULL DEFAULT ''")
            stage.gate("a").set()
            assert (await run.until("completed")).output == "Done."
            assert await midrun.verify(run.id)
    assert stage.completed == ["a", "b"]


@pytest.mark.once
async def test_a_run_that_an_older_midrun_may_not_go_on_with_is_left_to_a_newer_one(
    postgres: Postgres, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts nothing more, and says so; whoever asks is refused. Nothing is done twice.

    It is said once, and seldom after that, however often it tries.
    """
    monkeypatch.setattr(local, "SWEEP_S", 0.05)
    monkeypatch.setattr(local, "LOG_REPEAT_S", 3600.0)
    stage, url = ControllableTools(), postgres.url()
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    with anyio.fail_after(PATIENCE), caplog.at_level(logging.DEBUG, logger="midrun"):
        async with Midrun(url, agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await stage.start("a").wait()
            migrate(url, RENAMED)
            stage.gate("a").set()
            await becomes(lambda: caplog.text.count(f"drive run {run.id} for now") > 3)
            said = [one for one in caplog.records if one.levelno == logging.WARNING]
            assert [run.id in one.getMessage() for one in said] == [True]
            assert "newer midrun" in caplog.text
            with pytest.raises(StoreForeign, match="newer midrun"):
                await run.pause()
        with psycopg.connect(url) as db:  # the newer one is ours again
            db.execute(BACK.encode())
            db.execute("DELETE FROM midrun_schema WHERE version = %s", (NEWER,))
        async with Midrun(url, agents=[agent]) as newer:
            handle = await newer.get(run.id)
            view = await handle.until("waiting")
            assert [ask.kind for ask in view.asks] == ["unsure"]
            await handle.answer("yes")
            await handle.until("completed")
            assert await newer.verify(run.id)
    assert stage.completed == ["a", "b"]
