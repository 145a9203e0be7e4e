"""What tests of the Postgres store run in processes of their own, to be raced and killed."""

import os
import signal
import sys

import anyio

from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection
from midrun.stores.postgres.store import PostgresStore


async def open_them(*urls: str) -> None:
    """Open stores, each when told to."""
    for url in urls:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        store = await PostgresStore.open(url)
        assert not await store.count_runs_by_phase()
        await store.close()


async def die_migrating(*urls: str) -> None:
    """Be killed when everything is done but the commit."""
    script = PostgresConnection.run_script

    async def dying(link: PostgresConnection, text: str) -> None:
        if text == queries.COMMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        await script(link, text)

    setattr(
        PostgresConnection, PostgresConnection.run_script.__name__, dying
    )  # only in this process
    await PostgresStore.open(urls[0])


if __name__ == "__main__":
    deeds = {"open": open_them, "die_migrating": die_migrating}
    anyio.run(deeds[sys.argv[1]], *sys.argv[2:])
