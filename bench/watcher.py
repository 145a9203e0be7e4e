"""`python -m bench.watcher PATH`: print the time of each change notification."""

import sys
import time

import anyio

from midrun.stores.sqlite.store import SqliteStore


async def main(path: str) -> None:
    """Watch until the parent process kills this one."""
    store = SqliteStore(path)
    async with store.watch() as watch:
        print("ready", flush=True)
        async for _ in watch:
            print(time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
