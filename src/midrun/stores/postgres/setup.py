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

import re
from importlib.resources import files
from typing import Final

from midrun.core.ids import Micros
from midrun.errors import StoreForeign, StoreKeyRefused, StoreUnreachable
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import Address, Link

OLDEST: Final = 140_000
"""PostgreSQL 14: procedures with output parameters, and transaction numbers that do not wrap.
"""

MIGRATION_S: Final = 60.0
"""The longest time for the migrations, and for the wait until another process has made them."""


def migrations() -> list[tuple[int, str]]:
    """Return every migration with its number, in order."""
    folder = files("midrun.stores.postgres").joinpath("migrations")
    return sorted(
        (int(match[1]), file.read_text("utf-8"))
        for file in folder.iterdir()
        if (match := re.fullmatch(r"(\d{4})_\w+\.sql", file.name))
    )


async def prepare(address: Address, kid: str = "") -> Micros:
    """Check the server, migrate the schema and set the key; return the server's time.

    Raises:
        AnswerLost: the server went away; the migrations were applied, or not.
        StoreForeign: a newer midrun has migrated the schema.
        StoreKeyRefused: its chains are made with another key than `key_id`.
        StoreUnreachable: the server cannot keep a store, or a pooler prevents it.
    """
    connection = await Link.made(address, patience_s=MIGRATION_S)
    try:
        await _check_server(address, connection)
        await _check_session(address, connection)
        all_migrations = migrations()
        if await _version(connection) != all_migrations[-1][0]:
            await _migrate(address, connection, all_migrations)
        address.schema = all_migrations[-1][0]
        await _check_key(address, connection, kid)
    finally:
        connection.drop()
    return connection.now


async def _check_session(address: Address, link: Link) -> None:
    """Check that a connection keeps its server process while another client connects."""
    # A pooler in transaction mode gives the second connection the process of the first, which
    # is idle, or gives the first another one afterwards.
    other = await Link.made(address)
    other.drop()
    ((pid,),) = await link.ask(queries.BACKEND)
    if other.pid == link.pid or pid != link.pid:
        problem = (
            "a pooler in transaction mode is in front of it, but midrun needs sessions to"
            " listen: set pool_mode = session, or connect to the server directly"
        )
        raise StoreUnreachable(address.name, problem)


async def _migrate(address: Address, link: Link, steps: list[tuple[int, str]]) -> None:
    # The only transaction of several messages. Closing the connection rolls all of it back.
    await link.script(queries.BEGIN)
    await link.script(queries.LOCK_SCHEMA)
    # Read again under the lock: another process may have migrated in the meantime.
    version, newest = await _version(link), steps[-1][0]
    if version > newest:
        raise StoreForeign(address.name, f"schema {version} belongs to a newer midrun")
    if not version:
        await link.script(queries.MAKE_SCHEMA)
    for number, text in steps:
        if number > version:
            await link.script(text)
            await link.ask(queries.MIGRATED, {"version": number})
    await link.script(queries.COMMIT)


async def _check_key(address: Address, link: Link, kid: str) -> None:
    """Check that the chains use the key `key_id`; a new store adopts it."""
    rows = await link.ask(queries.KEY) or await link.ask(queries.SET_KEY, {"kid": kid})
    ((stored_id,),) = rows or await link.ask(queries.KEY)  # another process set it first
    if stored_id != kid:
        raise StoreKeyRefused(address.name, stored_id, kid)


async def _version(link: Link) -> int:
    ((exists,),) = await link.ask(queries.HAS_SCHEMA)
    if not exists:
        return 0
    ((version,),) = await link.ask(queries.VERSION)
    return int(version)


async def _check_server(address: Address, link: Link) -> None:
    ((version, standby, schema, encoding),) = await link.ask(queries.SERVER)
    problem = ""
    if version < OLDEST:
        problem = f"PostgreSQL {OLDEST // 10_000} or newer is needed, got {version // 10_000}"
    elif standby:
        problem = "it is a standby, which cannot write; name the primary, or all hosts with"
        problem += " target_session_attrs=read-write"
    elif not schema:
        problem = "no schema of its search_path exists"
    elif encoding != "UTF8":
        problem = f"its encoding must be UTF8, got {encoding}"
    if problem:
        raise StoreUnreachable(address.name, problem)
