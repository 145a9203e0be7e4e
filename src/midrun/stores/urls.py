"""Addresses of stores: `memory://`, `sqlite:///runs.db`, `postgresql://host/database`."""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import anyio.to_thread

from midrun.errors import Misconfigured, StoreError, StoreUnreachable
from midrun.ports.environment import Clock, wall
from midrun.ports.store import Durability, Store
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.store import SqliteStore

CLOSE_S: Final = 10.0
"""How long a store that nobody wants any more may take to be closed."""


async def open_store(
    url: str,
    *,
    durability: Durability = "full",
    clock: Clock = wall,
    key: bytes | None = None,
) -> Store:
    """Open the store at `url`.

    After `sqlite:` three slashes are followed by a relative path, four by `/`. What follows
    `postgresql:` is libpq's: hosts, database, and settings such as `?sslmode=verify-full`.
    Postgres has a clock of its own, which all its processes share; a `clock` that is not the
    machine's is a test's, and counts instead. With a `key` the chains are made with it; a store
    has one from its beginning, and the same for ever, or none.

    Raises:
        StoreUnreachable: there is no such kind of store, or no path; or nobody answers there.
        StoreForeign, StoreDamaged, StoreBusy, StoreFull: what it turned out to be.
        StoreKeyRefused: it was made with another key, or with none.
        Misconfigured: the package for it is not installed, or the key is too short.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreUnreachable(url, str(error)) from None
    match parts.scheme:
        case "memory":
            return MemoryStore(clock=clock, key=key)
        case "sqlite" if ":memory:" in url:
            raise StoreUnreachable(url, "use memory://, which keeps nothing")
        case "sqlite" if not parts.netloc and len(parts.path) > 1:
            path = Path(unquote(parts.path[1:]))
            return await _open_file(
                lambda: SqliteStore(path, durability=durability, clock=clock, key=key)
            )
        case "postgresql" | "postgres":
            return await _open_postgres(url, durability, None if clock is wall else clock, key)
        case _:
            problem = "use memory://, sqlite:///path/to/file.db or postgresql://host/database"
            raise StoreUnreachable(url, problem)


async def _open_file(make: Callable[[], SqliteStore]) -> SqliteStore:
    """Open a file aside; whoever is cancelled meanwhile leaves nothing open."""
    made: list[SqliteStore | StoreError | Misconfigured] = []

    async def aside() -> None:
        try:
            made.append(await anyio.to_thread.run_sync(make))
        except (StoreError, Misconfigured) as error:
            made.append(error)  # not as a group of one

    try:
        # In a task of its own: asyncio's own cancellation would not wait for the thread.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(aside)
    except BaseException:
        with anyio.move_on_after(CLOSE_S, shield=True):
            for store in made:
                if isinstance(store, SqliteStore):
                    await store.close()
        raise
    (store,) = made
    if isinstance(store, Exception):
        raise store
    return store


async def _open_postgres(
    url: str, durability: Durability, clock: Clock | None, key: bytes | None
) -> Store:
    try:
        from midrun.stores.postgres.store import PostgresStore  # noqa: PLC0415 - only who uses it pays
    except ImportError as error:
        raise Misconfigured("postgresql://", f"install midrun[postgres] ({error})") from error
    return await PostgresStore.open(url, durability=durability, clock=clock, key=key)
