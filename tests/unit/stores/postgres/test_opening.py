"""Opening a store: its schema is made once, and what cannot be a store is named."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import anyio.to_thread
import psycopg
import pytest
from anyio.lowlevel import checkpoint

from midrun.errors import StoreForeign, StoreUnreachable
from midrun.stores.postgres.connection import PostgresAddress, PostgresConnection
from midrun.stores.postgres.setup import _apply_migrations, load_migrations
from midrun.stores.postgres.store import PostgresStore
from midrun.stores.urls import open_store
from midrun.testing.postgres import DATABASE_USER, Postgres
from midrun.testing.store_suite.fixtures import RUN, append_message, create_run, take_lease
from tests.crash.facts import becomes
from tests.unit.stores.postgres.conftest import PATIENCE, Open

pytestmark = pytest.mark.once

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


def child(*arguments: str) -> "subprocess.Popen[str]":
    """Run `child.py`."""
    return subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-m", "tests.unit.stores.postgres.child", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_processes_that_open_an_empty_schema_at_once_make_it_once(
    postgres: Postgres, opened: Open
) -> None:
    """Whoever comes second waits for the first, and finds it done."""
    urls = [postgres.url() for _ in range(3)]
    with ExitStack() as stack:
        others = [stack.enter_context(child("open", *urls)) for _ in range(4)]
        for _ in urls:
            for other in others:
                assert other.stdout
                assert other.stdout.readline() == "ready\n"
            for other in others:
                assert other.stdin
                other.stdin.write("\n")
                other.stdin.flush()
        assert [other.wait(60) for other in others] == [0] * 4
    for url in urls:
        await create_run(await opened(url))


async def test_a_migration_that_is_killed_leaves_nothing_behind(
    postgres: Postgres, url: str, opened: Open
) -> None:
    """It is one transaction; the next one does all of it."""
    with child("die_migrating", url) as other:
        assert other.wait(60) == -9
    schema = url.rpartition("search_path%3D")[2]
    found = postgres.execute(f"SELECT FROM pg_tables WHERE schemaname = '{schema}'")
    assert not found
    store = await opened(url)
    await create_run(store)


@pytest.mark.parametrize("since", [number for number, _ in load_migrations()[:-1]])
async def test_a_store_of_an_older_midrun_is_brought_up_to_date_with_its_runs(
    since: int, url: str, opened: Open
) -> None:
    """From every schema that there ever was; what is in it is as good as new."""
    address = PostgresAddress(url, durability="full", write_timeout=timedelta(seconds=PATIENCE))
    link = await PostgresConnection.connect(address)
    await _apply_migrations(address, link, load_migrations()[:since])
    link.close()
    old = PostgresStore(address)
    await create_run(old)
    await append_message(old, RUN, 1, "before")
    await old.close()
    store = await opened(url)
    await take_lease(store, RUN, 2, "a")
    assert [record.seq for record in await store.read(RUN)] == [1, 2, 3]
    with psycopg.connect(url) as db:
        versions = db.execute("SELECT version FROM midrun_schema ORDER BY version").fetchall()
    assert versions == [(number,) for number, _ in load_migrations()]


async def test_a_store_of_a_newer_midrun_is_left_alone(
    store: PostgresStore, postgres: Postgres, url: str
) -> None:
    """Migrations only go forward."""
    await create_run(store)
    schema = url.rpartition("search_path%3D")[2]
    newer = load_migrations()[-1][0] + 1
    postgres.execute(f'INSERT INTO "{schema}".midrun_schema (version) VALUES ({newer})')  # noqa: S608 - ours
    with pytest.raises(StoreForeign, match="newer midrun"):
        await PostgresStore.open(url)


async def test_a_database_that_is_not_there_is_named_without_its_password(
    postgres: Postgres,
) -> None:
    """At once: it will not come into being by waiting."""
    url = postgres.url("public").replace(f"{DATABASE_USER}@", f"{DATABASE_USER}:secret@")
    url = url.replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreUnreachable, match="does not exist") as refused:
        await open_store(url)
    assert "nowhere" in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_schema_that_is_not_there_is_named(postgres: Postgres) -> None:
    """Not silently another one."""
    with pytest.raises(StoreUnreachable, match="search_path"):
        await open_store(postgres.url("nowhere"))


@pytest.mark.parametrize("url", ["postgresql://[", "postgresql://h/d?colour=blue"])
async def test_an_address_that_libpq_does_not_understand_is_refused(url: str) -> None:
    """With libpq's own words."""
    with pytest.raises(StoreUnreachable):
        await open_store(url)


async def test_the_number_of_connections_is_bounded(
    url: str, opened: Open, postgres: Postgres
) -> None:
    """However many ask at once. None is given up that may be needed again: they can be counted.

    Those that were only there to open the store go away in their own time.
    """
    store = await opened(f"{url}&application_name=bounded")
    await create_run(store)
    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(store.read, RUN)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'"
    with anyio.fail_after(PATIENCE):
        await becomes(lambda: postgres.execute(count) == [(5,)])  # four to read, one to write


async def test_event_loops_that_have_ended_keep_no_connections(
    store: PostgresStore,
) -> None:
    """A process that opens one after the other on a store, for its beats or per thread."""
    await create_run(store)
    for _ in range(4):
        await anyio.to_thread.run_sync(anyio.run, store.get_row, RUN)
    await store.get_row(RUN)
    assert (
        len(store._resources_by_loop) == 2
    )  # ours, and the last: it goes when the next one comes


@pytest.fixture
def modest(postgres: Postgres) -> Iterator[str]:
    """Give the address of a schema for somebody who may have three connections at a time."""
    postgres.execute("CREATE ROLE modest LOGIN CONNECTION LIMIT 3")
    url = postgres.url()
    schema = url.rpartition("search_path%3D")[2]
    postgres.execute(f'GRANT ALL ON SCHEMA "{schema}" TO modest')
    yield url.replace(f"{DATABASE_USER}@", "modest@")
    postgres.execute(f'DROP SCHEMA "{schema}" CASCADE; DROP ROLE modest')


async def test_a_server_without_room_for_another_connection_is_waited_for(
    modest: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for one that restarts: others will let go of theirs."""
    with ExitStack() as others:
        for _ in range(3):
            others.enter_context(psycopg.connect(modest))

        async def refused(_: float) -> None:
            others.close()
            await checkpoint()

        monkeypatch.setattr("midrun.stores.postgres.store.anyio.sleep", refused)
        await opened(modest)


async def test_a_server_that_has_room_for_few_connections_is_asked_through_few(
    modest: str, opened: Open, postgres: Postgres
) -> None:
    """It takes longer, and nobody is refused."""
    store = await opened(modest)
    await create_run(store)
    theirs = "SELECT pid FROM pg_stat_activity WHERE usename = 'modest'"
    with anyio.fail_after(PATIENCE):  # for the one that opened it to leave
        await becomes(lambda: len(postgres.execute(theirs)) <= 2)
    with psycopg.connect(modest):
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(store.read, RUN)
    await append_message(store, RUN, 1)
    await store.close()


@contextmanager
def pgbouncer(postgres: Postgres, mode: str) -> Iterator[str]:
    """Give the host of a pooler before the server."""
    assert PGBOUNCER, "install pgbouncer: `make programs` does where it may"
    with TemporaryDirectory(prefix="bounce-", dir="/tmp") as folder:
        place = Path(folder)
        place.chmod(0o777)
        (place / "users").write_text(f'"{DATABASE_USER}" ""\n')
        (place / "ini").write_text(
            f"[databases]\n* = host={postgres.folder}\n[pgbouncer]\n"
            f"listen_addr =\nunix_socket_dir = {folder}\nauth_type = trust\n"
            f"auth_file = {folder}/users\npool_mode = {mode}\nlisten_port = 5432\n"
        )
        with subprocess.Popen(  # noqa: S603 - the machine's own program
            [PGBOUNCER, "-q", f"{folder}/ini"], user=postgres.user
        ) as pooler:
            try:
                while not (place / ".s.PGSQL.5432").exists():
                    assert pooler.poll() is None
                yield folder
            finally:
                pooler.kill()


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
async def test_a_pooler_must_give_sessions(postgres: Postgres, mode: str, opened: Open) -> None:
    """In transaction mode nothing would fail at once: it would only be deaf."""
    database = f"bounced_{mode}"
    postgres.execute(f"CREATE DATABASE {database}")
    with pgbouncer(postgres, mode) as folder:
        url = f"postgresql://{DATABASE_USER}@{folder.replace('/', '%2F')}/{database}"
        if mode != "session":
            with pytest.raises(StoreUnreachable, match="pool_mode = session"):
                await PostgresStore.open(url)
            return
        store, other = await opened(url), await opened(url)
        async with store.watch() as watch:
            await create_run(other)
            assert (await anext(watch)).run == RUN
            await append_message(other, RUN, 1)
        await store.close()
        await other.close()
