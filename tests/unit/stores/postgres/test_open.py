"""Opening a Postgres store: migrations, refused URLs, limits on connections, poolers."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import psycopg
import pytest
from anyio.lowlevel import checkpoint

from midrun.errors import StoreForeign, StoreUnreachable
from midrun.stores.migrations import load_migrations
from midrun.stores.postgres import setup
from midrun.stores.postgres.store import PostgresStore
from midrun.stores.urls import open_store
from midrun.testing.postgres import DATABASE_USER, Postgres
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run, take_lease
from tests.support.conditions import wait_until
from tests.unit.stores.postgres.conftest import TIMEOUT_S, OpenStore, get_schema

pytestmark = pytest.mark.once

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def start_child(*arguments: str) -> "subprocess.Popen[str]":
    """Run `child.py`."""
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-m", "tests.unit.stores.postgres.child", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_processes_that_open_an_empty_schema_at_once_migrate_it_once(
    postgres: Postgres, open_store_at: OpenStore
) -> None:
    """The later processes wait for the first one."""
    urls = [postgres.url() for _ in range(3)]
    with ExitStack() as stack:
        children = [stack.enter_context(start_child("open", *urls)) for _ in range(4)]
        for _ in urls:
            for child in children:
                assert child.stdout
                assert child.stdout.readline() == "ready\n"
            for child in children:
                assert child.stdin
                child.stdin.write("\n")
                child.stdin.flush()
        assert [child.wait(60) for child in children] == [0] * 4
    for url in urls:
        await create_run(await open_store_at(url))


async def test_a_killed_migration_leaves_no_tables(
    postgres: Postgres, url: str, open_store_at: OpenStore
) -> None:
    """All migrations are one transaction; the next process starts from the beginning."""
    with start_child("die_migrating", url) as child:
        assert child.wait(60) == -9
    schema = get_schema(url)
    tables = postgres.execute(f"SELECT FROM pg_tables WHERE schemaname = '{schema}'")
    assert not tables
    store = await open_store_at(url)
    await create_run(store)


async def test_a_schema_of_an_older_version_is_migrated_and_keeps_its_runs(
    url: str, open_store_at: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await open_store_at(url)
    await create_run(old)
    await append_message(old, RUN, 1, "before")
    newer = [
        *load_migrations("midrun.stores.postgres"),
        (2, "CREATE TABLE midrun_added (x integer)"),
    ]
    monkeypatch.setattr(setup, "load_migrations", lambda _: newer)
    store = await open_store_at(url)
    await take_lease(store, RUN, 2, "a")
    assert [record.seq for record in await store.read(RUN)] == [1, 2, 3]
    with psycopg.connect(url) as db:
        versions = db.execute("SELECT version FROM midrun_schema ORDER BY version").fetchall()
        assert db.execute("SELECT count(*) FROM midrun_added").fetchone() == (0,)
    assert versions == [(1,), (2,)]


async def test_a_schema_of_a_newer_version_is_not_opened(
    store: PostgresStore, postgres: Postgres, url: str
) -> None:
    """Migrations only go forward."""
    await create_run(store)
    schema = get_schema(url)
    newer = load_migrations("midrun.stores.postgres")[-1][0] + 1
    postgres.execute(f'INSERT INTO "{schema}".midrun_schema (version) VALUES ({newer})')  # noqa: S608 - a name of this test
    with pytest.raises(StoreForeign, match="newer midrun"):
        await PostgresStore.open(url)


async def test_a_missing_database_is_refused_without_its_password(
    postgres: Postgres,
) -> None:
    """The store does not wait for it to appear."""
    url = postgres.url("public").replace(f"{DATABASE_USER}@", f"{DATABASE_USER}:secret@")
    url = url.replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreUnreachable, match="does not exist") as refused:
        await open_store(url)
    assert "nowhere" in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_missing_schema_is_refused(postgres: Postgres) -> None:
    """Postgres would silently use another schema."""
    with pytest.raises(StoreUnreachable, match="search_path"):
        await open_store(postgres.url("nowhere"))


@pytest.mark.parametrize("url", ["postgresql://[", "postgresql://h/d?colour=blue"])
async def test_a_url_that_libpq_cannot_parse_is_refused(url: str) -> None:
    with pytest.raises(StoreUnreachable):
        await open_store(url)


async def test_the_number_of_connections_is_bounded(
    url: str, open_store_at: OpenStore, postgres: Postgres
) -> None:
    """Many concurrent reads use four connections, which stay open.

    Connections that were needed to open the store are closed later.
    """
    store = await open_store_at(f"{url}&application_name=bounded")
    await create_run(store)
    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(store.read, RUN)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
    with anyio.fail_after(TIMEOUT_S):
        # four for reads, one for writes
        await wait_until(lambda: postgres.execute(count) == [(5,)])


async def test_connections_of_event_loops_that_have_ended_are_closed(
    store: PostgresStore,
) -> None:
    """A process may start one event loop after the other, for heartbeats or in threads."""
    await create_run(store)
    for _ in range(4):
        await anyio.to_thread.run_sync(lambda: anyio.run(store.get_row, RUN))
    await store.get_row(RUN)
    # This loop and the last one, whose connections are closed when the next loop starts.
    assert len(store._resources_by_loop) == 2


@pytest.fixture
def limited_url(postgres: Postgres) -> Iterator[str]:
    """Return the URL of a schema for a role with at most three connections."""
    postgres.execute("CREATE ROLE limited LOGIN CONNECTION LIMIT 3")
    url = postgres.url()
    schema = get_schema(url)
    postgres.execute(f'GRANT ALL ON SCHEMA "{schema}" TO limited')
    yield url.replace(f"{DATABASE_USER}@", "limited@")
    postgres.execute(f'DROP SCHEMA "{schema}" CASCADE; DROP ROLE limited')


async def test_opening_waits_while_the_server_has_no_free_connection(
    limited_url: str, open_store_at: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other clients will close theirs, as after a restart of the server."""
    with ExitStack() as other_connections:
        for _ in range(3):
            other_connections.enter_context(psycopg.connect(limited_url))

        async def close_other_connections(_: float) -> None:
            other_connections.close()
            await checkpoint()

        monkeypatch.setattr("midrun.stores.postgres.store.anyio.sleep", close_other_connections)
        await open_store_at(limited_url)


async def test_concurrent_reads_succeed_with_few_connections(
    limited_url: str, open_store_at: OpenStore, postgres: Postgres
) -> None:
    """The reads wait for a free connection instead of failing."""
    store = await open_store_at(limited_url)
    await create_run(store)
    list_pids = "SELECT pid FROM pg_stat_activity WHERE usename = 'limited'"
    with anyio.fail_after(TIMEOUT_S):  # until the connection of the open is closed
        await wait_until(lambda: len(postgres.execute(list_pids)) <= 2)
    with psycopg.connect(limited_url):
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(store.read, RUN)
    await append_message(store, RUN, 1)
    await store.close()


@contextmanager
def pgbouncer(postgres: Postgres, mode: str) -> Iterator[str]:
    """Run PgBouncer before the server; yield the folder of its socket."""
    assert PGBOUNCER, "install pgbouncer, for example with `make programs`"
    with TemporaryDirectory(prefix="bounce-", dir="/tmp") as folder:
        path = Path(folder)
        path.chmod(0o777)
        (path / "users").write_text(f'"{DATABASE_USER}" ""\n')
        (path / "ini").write_text(
            f"[databases]\n* = host={postgres.folder}\n[pgbouncer]\n"
            f"listen_addr =\nunix_socket_dir = {folder}\nauth_type = trust\n"
            f"auth_file = {folder}/users\npool_mode = {mode}\nlisten_port = 5432\n"
        )
        with subprocess.Popen(  # noqa: S603 - an installed program
            [PGBOUNCER, "-q", f"{folder}/ini"], user=postgres.user
        ) as pooler:
            try:
                while not (path / ".s.PGSQL.5432").exists():
                    assert pooler.poll() is None
                yield folder
            finally:
                pooler.kill()


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
async def test_a_pooler_must_use_session_mode(
    postgres: Postgres, mode: str, open_store_at: OpenStore
) -> None:
    """In transaction mode no call would fail, but notifications would be lost."""
    database = f"bounced_{mode}"
    postgres.execute(f"CREATE DATABASE {database}")
    with pgbouncer(postgres, mode) as folder:
        url = f"postgresql://{DATABASE_USER}@{folder.replace('/', '%2F')}/{database}"
        if mode != "session":
            with pytest.raises(StoreUnreachable, match="pool_mode = session"):
                await PostgresStore.open(url)
            return
        store, other = await open_store_at(url), await open_store_at(url)
        async with store.watch() as watch:
            await create_run(other)
            assert (await anext(watch)).run == RUN
            await append_message(other, RUN, 1)
        await store.close()
        await other.close()
