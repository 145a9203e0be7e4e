"""Modes of a child process that opens a Postgres store; tests race and kill it."""

import os
import signal
import sys

import anyio

from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection
from midrun.stores.postgres.store import PostgresStore


async def open_stores(*urls: str) -> None:
    """Open the stores one by one, each after a line on stdin."""
    for url in urls:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        store = await PostgresStore.open(url)
        assert not await store.count_runs_by_phase()
        await store.close()


async def die_migrating(*urls: str) -> None:
    """Kill this process immediately before the migrations are committed."""
    original = PostgresConnection.run_script

    async def die_before_commit(connection: PostgresConnection, script: str) -> None:
        if script == queries.COMMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        await original(connection, script)

    setattr(
        PostgresConnection, PostgresConnection.run_script.__name__, die_before_commit
    )  # only in this process
    await PostgresStore.open(urls[0])


if __name__ == "__main__":
    modes = {"open": open_stores, "die_migrating": die_migrating}
    anyio.run(modes[sys.argv[1]], *sys.argv[2:])
