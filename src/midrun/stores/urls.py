"""Open a store by its address: `memory://`, `sqlite:///runs.db`, `postgresql://host/db`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import anyio.to_thread

from midrun.errors import Misconfigured, StoreError, StoreUnreachable
from midrun.ports.environment import Clock, read_wall_clock
from midrun.ports.store import Durability, Store
from midrun.stores.encryption import PayloadCipher
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.store import SqliteStore

CLOSE_TIMEOUT_S: Final = 10.0
"""The longest time to close a store whose opening was cancelled."""


async def open_store(
    url: str,
    *,
    durability: Durability = "full",
    clock: Clock = read_wall_clock,
    key: bytes | None = None,
    encryption_keys: Sequence[bytes] = (),
) -> Store:
    """Open the store at `url`.

    After `sqlite:` three slashes are followed by a relative path, four by an absolute one. A
    `postgresql:` address is passed to libpq: hosts, database, and settings such as
    `?sslmode=verify-full`. Postgres has a clock of its own that all its processes share; a
    `clock` other than the machine's replaces it, for tests. With a `key` the hash chains are
    keyed. A store has its key from the beginning and keeps it, or it has none. With
    `encryption_keys` its content is encrypted: the first key encrypts, all of them decrypt.

    Raises:
        StoreUnreachable: it cannot be opened, or does not answer.
        StoreForeign, StoreDamaged, StoreBusy, StoreFull: the state it was found in.
        StoreKeyRefused: it was created with another key, or with none.
        StoreEncrypted: it is encrypted with other keys than the given ones.
        Misconfigured: there is no such kind of store, the package for it is not installed, or
            a key does not have its length.
    """
    cipher = PayloadCipher(encryption_keys)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreUnreachable(url, str(error)) from None
    match parts.scheme:
        case "memory":
            return MemoryStore(clock=clock, key=key, cipher=cipher)
        case "sqlite" if ":memory:" in url:
            raise StoreUnreachable(url, "use memory:// for a store that is not kept")
        case "sqlite" if not parts.netloc and len(parts.path) > 1:
            path = Path(unquote(parts.path[1:]))
            return await _open_sqlite(
                lambda: SqliteStore(
                    path, durability=durability, clock=clock, key=key, cipher=cipher
                )
            )
        case "postgresql" | "postgres":
            own_clock = None if clock is read_wall_clock else clock
            return await _open_postgres(url, durability, own_clock, key, cipher)
        case _:
            raise make_url_error(url)


SCHEMES: Final = frozenset({"memory", "sqlite", "postgresql", "postgres"})
"""The schemes of the addresses of stores."""


def make_url_error(url: str) -> Misconfigured:
    """Return the error for an address that names no kind of store."""
    kinds = "memory://, sqlite:///path/to/file.db or postgresql://host/database"
    scheme = url.partition(":")[0]
    shown = f"{scheme}://…" if "@" in url else url  # it may hold a password
    return Misconfigured("store", f"must be {kinds}, got {shown!r}")


async def _open_sqlite(open_sync: Callable[[], SqliteStore]) -> SqliteStore:
    """Open a SQLite file in a thread; close it if the caller is cancelled."""
    results: list[SqliteStore | StoreError | Misconfigured] = []

    async def open_in_thread() -> None:
        try:
            results.append(await anyio.to_thread.run_sync(open_sync))
        except (StoreError, Misconfigured) as error:
            results.append(error)  # raised below: a task group would wrap it in a group

    try:
        # In a child task: the task group waits for the thread even if the caller is cancelled.
        # A plain await would be abandoned by asyncio's own cancellation, and the store that the
        # thread is opening would never be closed.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(open_in_thread)
    except BaseException:
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            for store in results:
                if isinstance(store, SqliteStore):
                    await store.close()
        raise
    (store,) = results
    if isinstance(store, Exception):
        raise store
    return store


async def _open_postgres(
    url: str,
    durability: Durability,
    clock: Clock | None,
    key: bytes | None,
    cipher: PayloadCipher,
) -> Store:
    try:
        from midrun.stores.postgres.store import PostgresStore  # noqa: PLC0415 - psycopg is optional
    except ImportError as error:
        raise Misconfigured("postgresql://", f"install midrun[postgres] ({error})") from error
    return await PostgresStore.open(
        url, durability=durability, clock=clock, key=key, cipher=cipher
    )
