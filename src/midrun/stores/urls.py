"""Addresses of stores: `memory://`, `sqlite:///runs.db`, `sqlite:////var/lib/midrun/runs.db`."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio.to_thread

from midrun.errors import StoreUnreachable
from midrun.ports.clock import Clock, wall
from midrun.ports.store import Store
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.connect import Durability
from midrun.stores.sqlite.store import SqliteStore


async def open_store(
    url: str, *, durability: Durability = "full", clock: Clock = wall
) -> Store:
    """Open the store at `url`; three slashes are followed by a relative path, four by `/`.

    Raises:
        StoreUnreachable: there is no such kind of store, or no path.
        StoreForeign, StoreDamaged, StoreBusy, StoreFull: what the file turned out to be.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            return MemoryStore(clock=clock)
        case "sqlite" if ":memory:" in url:
            raise StoreUnreachable(url, "use memory://, which keeps nothing")
        case "sqlite" if not parts.netloc and len(parts.path) > 1:
            path = Path(unquote(parts.path[1:]))
            return await anyio.to_thread.run_sync(
                lambda: SqliteStore(path, durability=durability, clock=clock)
            )
        case _:
            raise StoreUnreachable(url, "use memory:// or sqlite:///path/to/file.db")
