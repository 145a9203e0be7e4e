"""Prepare a store for use: check server, pooler, schema and key.

Migrations only go forward. All missing ones run in one transaction under an advisory lock, so
any number of processes may open a store at once, and a process that is killed midway leaves
nothing behind. A store of a newer midrun is not touched.

Processes of an older midrun that have the store open keep working, so a fleet can be upgraded
one process at a time. A migration under which they must not write renames `midrun_write`; they
do not find it and report `StoreForeign`.

A pooler in transaction mode lends the server process to other clients between two transactions.
Then notifications arrive at another client, and session settings such as timeouts leak. Nothing
fails at once, so this is tested explicitly.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from midrun.core.ids import Micros
from midrun.errors import StoreForeign, StoreKeyRefused, StoreUnreachable
from midrun.stores.encryption import UNENCRYPTED, PayloadCipher
from midrun.stores.migrations import load_migrations
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresAddress, PostgresConnection

SERVER_MIN_VERSION: Final = 140_000
"""PostgreSQL 14: the oldest version that the tests use. Older ones lack `xid8`."""

MIGRATION_TIMEOUT_S: Final = 60.0
"""The longest time for the migrations, and for the wait until another process has made them."""


class PreparedStore(NamedTuple):
    """The server's time, and the keys of an encrypted store if this process has none."""

    now: Micros
    missing_keys: str


async def prepare_store(
    address: PostgresAddress, key_id: str = "", cipher: PayloadCipher = UNENCRYPTED
) -> PreparedStore:
    """Check the server, migrate the schema and set the keys.

    Raises:
        AnswerLost: the server went away; the migrations were applied, or not.
        StoreForeign: a newer midrun has migrated the schema.
        StoreKeyRefused: its chains are made with another key than `key_id`.
        StoreEncrypted: it is encrypted with other keys than those of `cipher`.
        StoreUnreachable: the server cannot keep a store, or a pooler prevents it.
    """
    connection = await PostgresConnection.connect(address, timeout_s=MIGRATION_TIMEOUT_S)
    try:
        await _check_server(address, connection)
        await _check_session(address, connection)
        all_migrations = load_migrations("midrun.stores.postgres")
        if await _read_schema_version(connection) != all_migrations[-1][0]:
            await _apply_migrations(address, connection, all_migrations)
        address.schema_version = all_migrations[-1][0]
        await _check_key(address, connection, key_id)
        missing_keys = await _register_key(address, connection, cipher)
    finally:
        connection.close()
    return PreparedStore(connection.connected_at, missing_keys)


async def _check_session(address: PostgresAddress, connection: PostgresConnection) -> None:
    """Check that a connection keeps its server process while another client connects."""
    # A pooler in transaction mode gives the second connection the process of the first, which
    # is idle, or gives the first another one afterwards.
    other = await PostgresConnection.connect(address)
    other.close()
    ((pid,),) = await connection.execute(queries.BACKEND_PID)
    if other.pid == connection.pid or pid != connection.pid:
        problem = (
            "a pooler in transaction mode is in front of it, but midrun needs sessions to"
            " listen: set pool_mode = session, or connect to the server directly"
        )
        raise StoreUnreachable(address.name, problem)


async def _apply_migrations(
    address: PostgresAddress,
    connection: PostgresConnection,
    all_migrations: Sequence[tuple[int, str]],
) -> None:
    # The only transaction of several messages. Closing the connection rolls all of it back.
    await connection.run_script(queries.BEGIN)
    await connection.run_script(queries.LOCK_SCHEMA)
    # Read again under the lock: another process may have migrated in the meantime.
    version, newest = await _read_schema_version(connection), all_migrations[-1][0]
    if version > newest:
        raise StoreForeign(address.name, f"schema {version} belongs to a newer midrun")
    if not version:
        await connection.run_script(queries.CREATE_SCHEMA_TABLE)
    for number, text in all_migrations:
        if number > version:
            await connection.run_script(text)
            await connection.execute(queries.INSERT_VERSION, {"version": number})
    await connection.run_script(queries.COMMIT)


async def _check_key(
    address: PostgresAddress, connection: PostgresConnection, key_id: str
) -> None:
    """Check that the chains use the key `key_id`; a new store adopts it."""
    rows = await connection.execute(queries.KEY) or await connection.execute(
        queries.SET_KEY, {"key_id": key_id}
    )
    ((stored_id,),) = rows or await connection.execute(
        queries.KEY
    )  # another process set it first
    if stored_id != key_id:
        raise StoreKeyRefused(address.name, stored_id, key_id)


async def _register_key(
    address: PostgresAddress, connection: PostgresConnection, cipher: PayloadCipher
) -> str:
    """Note that entries are encrypted with the key of `cipher`; return keys that it lacks."""
    stored_ids = [key_id for (key_id,) in await connection.execute(queries.ENCRYPTION_KEYS)]
    missing_keys = cipher.check_store(address.name, stored_ids)
    if cipher and cipher.write_id not in stored_ids:
        await connection.execute(queries.ADD_ENCRYPTION_KEY, {"key_id": cipher.write_id})
    return missing_keys


async def _read_schema_version(connection: PostgresConnection) -> int:
    ((exists,),) = await connection.execute(queries.HAS_SCHEMA)
    if not exists:
        return 0
    ((version,),) = await connection.execute(queries.SCHEMA_VERSION)
    return int(version)


async def _check_server(address: PostgresAddress, connection: PostgresConnection) -> None:
    ((version, standby, schema, encoding),) = await connection.execute(queries.SERVER_INFO)
    problem = ""
    if version < SERVER_MIN_VERSION:
        problem = (
            f"PostgreSQL {SERVER_MIN_VERSION // 10_000} or newer is needed, got "
            f"{version // 10_000}"
        )
    elif standby:
        problem = "it is a standby, which cannot write; name the primary, or all hosts with"
        problem += " target_session_attrs=read-write"
    elif not schema:
        problem = "no schema of its search_path exists"
    elif encoding != "UTF8":
        problem = f"its encoding must be UTF8, got {encoding}"
    if problem:
        raise StoreUnreachable(address.name, problem)
