"""Preparing: what is seen to before a store is used: its server, its schema, its pooler.

Migrations only go forward. All that are missing are carried out in one transaction under a lock
of their own, so any number of processes may open a store at once, and one that is killed midway
leaves nothing behind. A store of a newer midrun is left alone.

Processes of an older midrun that have the store open go on: so a fleet is upgraded, one by one.
A migration under which they must not write gives `midrun_write` another name; they miss it, and
are told why.

Between two transactions a pooler in transaction mode lends our server process to others: what
we listen for is heard by somebody else, and our timeouts are theirs. Nothing fails at once, so
it is looked for.
"""

import re
from importlib.resources import files
from typing import Final

from midrun.core.ids import Micros
from midrun.errors import StoreForeign, StoreKeyRefused, StoreUnreachable
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import Address, Link

OLDEST: Final = 140_000
"""PostgreSQL 14: procedures that answer, and numbers of transactions that do not wrap."""

MIGRATION_S: Final = 60.0
"""How long a migration may take, and others wait for it."""


def migrations() -> list[tuple[int, str]]:
    """Return every migration with its number, in order."""
    folder = files("midrun.stores.postgres").joinpath("migrations")
    return sorted(
        (int(match[1]), file.read_text("utf-8"))
        for file in folder.iterdir()
        if (match := re.fullmatch(r"(\d{4})_\w+\.sql", file.name))
    )


async def prepare(address: Address, kid: str = "") -> Micros:
    """See to it that there is a store: the right server, a schema that is up to date, a key.

    Returns what time it is there.

    Raises:
        Lost: the server went away; nothing has changed, or everything.
        StoreForeign: a newer midrun has been here.
        StoreKeyRefused: its chains are made with another key than the one called `kid`.
        StoreUnreachable: the server cannot keep a store, or not through what stands before it.
    """
    link = await Link.made(address, patience_s=MIGRATION_S)
    try:
        await _check_server(address, link)
        await _check_session(address, link)
        steps = migrations()
        if await _version(link) != steps[-1][0]:
            await _migrate(address, link, steps)
        address.schema = steps[-1][0]
        await _check_key(address, link, kid)
    finally:
        link.drop()
    return link.now


async def _check_session(address: Address, link: Link) -> None:
    """See to it that a link keeps its server process for itself, whoever else comes."""
    other = await Link.made(address)
    other.drop()
    ((pid,),) = await link.ask(queries.BACKEND)
    if other.pid == link.pid or pid != link.pid:
        problem = (
            "a pooler in transaction mode stands before it, and midrun needs sessions, to"
            " listen: set pool_mode = session, or name the server itself"
        )
        raise StoreUnreachable(address.name, problem)


async def _migrate(address: Address, link: Link, steps: list[tuple[int, str]]) -> None:
    await link.script(queries.BEGIN)  # a link that is dropped takes all of it back
    await link.script(queries.LOCK_SCHEMA)
    version, newest = await _version(link), steps[-1][0]
    if version > newest:
        raise StoreForeign(address.name, f"schema {version} is of a newer midrun")
    if not version:
        await link.script(queries.MAKE_SCHEMA)
    for number, text in steps:
        if number > version:
            await link.script(text)
            await link.ask(queries.MIGRATED, {"version": number})
    await link.script(queries.COMMIT)


async def _check_key(address: Address, link: Link, kid: str) -> None:
    """See to it that the chains are made with this key; in a new store they are from now on."""
    kept = await link.ask(queries.KEY) or await link.ask(queries.SET_KEY, {"kid": kid})
    ((found,),) = kept or await link.ask(queries.KEY)  # somebody else was quicker
    if found != kid:
        raise StoreKeyRefused(address.name, found, kid)


async def _version(link: Link) -> int:
    ((made,),) = await link.ask(queries.HAS_SCHEMA)
    if not made:
        return 0
    ((version,),) = await link.ask(queries.VERSION)
    return int(version)


async def _check_server(address: Address, link: Link) -> None:
    ((version, standby, schema, encoding),) = await link.ask(queries.SERVER)
    problem = ""
    if version < OLDEST:
        problem = f"PostgreSQL {version // 10_000}; {OLDEST // 10_000} or newer is needed"
    elif standby:
        problem = "a standby, which cannot write; name the primary, or all hosts with"
        problem += " target_session_attrs=read-write"
    elif not schema:
        problem = "no schema of its search_path exists"
    elif encoding != "UTF8":
        problem = f"its encoding is {encoding}, and UTF8 is needed"
    if problem:
        raise StoreUnreachable(address.name, problem)
