"""A newer midrun migrates the schema of a store that an older midrun has open."""

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
from midrun.models import Use
from midrun.ports.store import Store
from midrun.stores.migrations import load_migrations
from midrun.stores.postgres.store import PostgresStore
from midrun.stores.sqlite import connection
from midrun.stores.sqlite.connection import SCHEMA_VERSION
from midrun.stores.sqlite.store import SqliteStore
from midrun.stores.sqlite.writer import WriterTask
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    append_message,
    create_run,
    take_lease,
)
from midrun.workers import local
from tests.support.conditions import wait_until
from tests.support.sqlite_kill import is_killed_at_statement

TIMEOUT_S = 60

WRITES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "append": lambda store: append_message(store, RUN, 2),
    "create": lambda store: create_run(store, OTHER_RUN),
    "take": lambda store: take_lease(store, RUN, 2, "a"),
}

RENAME_FUNCTION = "ALTER FUNCTION midrun_write(json, boolean, bigint) RENAME TO midrun_write_5"
RESTORE_FUNCTION = "ALTER FUNCTION midrun_write_5(json, boolean, bigint) RENAME TO midrun_write"
NEWER_VERSION = load_migrations("midrun.stores.postgres")[-1][0] + 1

ADD_COLUMN = "ALTER TABLE runs ADD COLUMN region TEXT NOT NULL DEFAULT ''"
REFUSE_OLDER = "UPDATE schema_support SET oldest = 99"


def migrate_sqlite(path: Path, statement: str) -> None:
    """Change the schema of a file and raise its version, as a newer midrun does."""
    db = apsw.Connection(str(path))
    db.execute(
        f"BEGIN IMMEDIATE; {statement}; PRAGMA user_version = {SCHEMA_VERSION + 1}; COMMIT"
    )
    db.close()


def migrate_postgres(url: str, statement: str) -> None:
    """Change the schema of a database and raise its version, as a newer midrun does."""
    with psycopg.connect(url) as db:
        db.execute(statement.encode())
        db.execute("INSERT INTO midrun_schema (version) VALUES (%s)", (NEWER_VERSION,))


@pytest.mark.parametrize("write", WRITES)
async def test_sqlite_refuses_writes_after_a_newer_midrun_migrated_the_file(
    tmp_path: Path, write: str
) -> None:
    """A migration that older processes must not meet says so in the file. Reading works."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    await append_message(store, RUN, 1)
    migrate_sqlite(store.path, f"{ADD_COLUMN}; {REFUSE_OLDER}")
    for _ in range(2):
        with pytest.raises(StoreForeign, match="newer midrun"):
            await WRITES[write](store)
    assert [record.seq for record in await store.read(RUN)] == [1, 2]
    assert (await store.get_row(RUN)).holder == ""
    await store.close()
    with pytest.raises(StoreForeign, match="newer midrun"):
        SqliteStore(tmp_path / "runs.db")


async def test_every_write_of_a_group_is_refused_in_a_migrated_file(tmp_path: Path) -> None:
    """The writes share one transaction; each caller must get the error."""
    store = SqliteStore(tmp_path / "runs.db")
    runs = [RunId(f"r{n}") for n in range(5)]
    for run in runs:
        await create_run(store, run)
    migrate_sqlite(store.path, f"CREATE TABLE regions (name TEXT); {REFUSE_OLDER}")
    refused: list[RunId] = []

    async def append_refused(run: RunId) -> None:
        with pytest.raises(StoreForeign, match="newer midrun"):
            await append_message(store, run, 1)
        refused.append(run)

    # A background task of the writer thread must not fail on the migrated file either.
    store._writer._queue.put(WriterTask.GROW_WAL)
    async with anyio.create_task_group() as tasks:
        for run in runs:
            tasks.start_soon(append_refused, run)
    assert sorted(refused) == runs
    await store.close()


async def test_a_migrated_file_that_cannot_be_read_is_not_reported_as_damaged(
    tmp_path: Path,
) -> None:
    """After a report of damage, an operator would restore a backup over the migrated data."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    migrate_sqlite(store.path, "ALTER TABLE entries RENAME TO lines")
    with pytest.raises(StoreForeign, match="newer midrun"):
        await store.read(RUN)
    await store.close()


@pytest.mark.parametrize("write", WRITES)
async def test_sqlite_goes_on_after_a_migration_that_only_adds_something(
    tmp_path: Path, write: str
) -> None:
    """Only a process that has the file open goes on: another one may not open it."""
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    await append_message(store, RUN, 1)
    migrate_sqlite(store.path, ADD_COLUMN)
    await WRITES[write](store)
    assert [record.seq for record in await store.read(RUN)][:2] == [1, 2]
    with pytest.raises(StoreForeign, match=f"schema {SCHEMA_VERSION + 1} belongs to a newer"):
        SqliteStore(tmp_path / "runs.db")
    await store.close()


@pytest.mark.parametrize(
    "statement", ["DROP TABLE schema_support", "ALTER TABLE runs RENAME COLUMN team TO squad"]
)
async def test_a_write_that_a_newer_schema_breaks_is_not_reported_as_damage(
    tmp_path: Path, statement: str
) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await create_run(store)
    migrate_sqlite(store.path, statement)
    with pytest.raises(StoreForeign, match="newer midrun"):
        await create_run(store, OTHER_RUN)
    await store.close()


@pytest.mark.parametrize("words", ["CREATE TABLE regions", "COMMIT"])
def test_a_killed_migration_leaves_the_older_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Both versions open the file afterwards. On Postgres, see `postgres/test_open.py`."""
    path = tmp_path / "runs.db"
    newer = (SCHEMA_VERSION + 1, f"{ADD_COLUMN}; CREATE TABLE regions (name TEXT)")
    migrations = (*load_migrations("midrun.stores.sqlite"), newer)

    async def append(seq: int) -> None:
        store = SqliteStore(path)
        await append_message(store, RUN, seq)
        assert len(await store.read(RUN)) == seq + 1
        await store.close()

    async def create() -> None:
        store = SqliteStore(path)
        await create_run(store)
        await store.close()

    anyio.run(create)
    with monkeypatch.context() as upgraded:
        upgraded.setattr(connection, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        upgraded.setattr(connection, "load_migrations", lambda _: migrations)
        assert is_killed_at_statement(words, lambda: SqliteStore(path))
    anyio.run(append, 1)  # by the older version
    monkeypatch.setattr(connection, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setattr(connection, "load_migrations", lambda _: migrations)
    anyio.run(append, 2)
    db = apsw.Connection(str(path))
    assert db.pragma("user_version") == SCHEMA_VERSION + 1
    assert db.execute("SELECT count(*) FROM regions").get == 0
    db.close()


@pytest.mark.once
@pytest.mark.parametrize("write", WRITES)
async def test_postgres_refuses_writes_after_a_migration_renamed_the_function(
    postgres: Postgres, write: str
) -> None:
    """The older midrun misses its function, and the error names the newer schema."""
    url = postgres.url()
    store = await PostgresStore.open(url)
    await create_run(store)
    await append_message(store, RUN, 1)
    migrate_postgres(url, RENAME_FUNCTION)
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
async def test_a_run_continues_after_a_migration_that_only_adds_a_column(
    postgres: Postgres,
) -> None:
    """A fleet is upgraded this way, one process after the other."""
    tools, url = ControllableTools(), postgres.url()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun(url, agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await tools.start("a").wait()
            migrate_postgres(
                url, "ALTER TABLE midrun_runs ADD COLUMN region text NOT NULL DEFAULT ''"
            )
            tools.gate("a").set()
            assert (await run.until("completed")).output == "Done."
            assert await midrun.verify(run.id)
    assert tools.completed == ["a", "b"]


@pytest.mark.once
async def test_an_older_worker_leaves_a_run_to_a_newer_midrun_after_a_breaking_migration(
    postgres: Postgres, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older worker starts no further call and refuses controls, so nothing is done twice.

    It retries at each sweep, but logs one warning only.
    """
    monkeypatch.setattr(local, "SWEEP_S", 0.05)
    monkeypatch.setattr(local, "LOG_REPEAT_S", 3600.0)
    tools, url = ControllableTools(), postgres.url()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    with anyio.fail_after(TIMEOUT_S), caplog.at_level(logging.DEBUG, logger="midrun"):
        async with Midrun(url, agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await tools.start("a").wait()
            migrate_postgres(url, RENAME_FUNCTION)
            tools.gate("a").set()
            await wait_until(lambda: caplog.text.count(f"drive run {run.id} for now") > 3)
            warnings = [
                record for record in caplog.records if record.levelno == logging.WARNING
            ]
            assert [run.id in record.getMessage() for record in warnings] == [True]
            assert "newer midrun" in caplog.text
            with pytest.raises(StoreForeign, match="newer midrun"):
                await run.pause()
        with psycopg.connect(url) as db:  # restore the schema that this version knows
            db.execute(RESTORE_FUNCTION.encode())
            db.execute("DELETE FROM midrun_schema WHERE version = %s", (NEWER_VERSION,))
        async with Midrun(url, agents=[agent]) as newer:
            handle = await newer.get(run.id)
            view = await handle.until("waiting")
            assert [ask.kind for ask in view.asks] == ["unsure"]
            await handle.answer("yes")
            await handle.until("completed")
            assert await newer.verify(run.id)
    assert tools.completed == ["a", "b"]
