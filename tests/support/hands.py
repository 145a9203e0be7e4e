"""What somebody does with a database tool, behind everybody's back: to a file, or in Postgres.

Statements are in the words of Postgres; a file is taught those that it lacks.
"""

import re
from pathlib import Path

import apsw
import psycopg

from tests.support.store_choice import kept_at

TABLE = re.compile(r"\bmidrun_(entries|runs|labels)\b")
"""The tables of a file have no prefix."""

UNDONE = (apsw.ConstraintError, psycopg.errors.RaiseException)
"""What the store's own triggers answer."""

UNGUARDED = {
    "sqlite": (
        "DROP TRIGGER IF EXISTS entries_do_not_change",
        "DROP TRIGGER IF EXISTS entries_do_not_go",
    ),
    "postgres": ("DROP TRIGGER IF EXISTS midrun_entries_stay ON midrun_entries",),
}


def by_hand(path: Path, *statements: str, guarded: bool = False) -> list[tuple[object, ...]]:
    """Carry out statements, and return the rows of the last; whoever can write can unguard."""
    address = kept_at(path)
    if address.startswith("sqlite"):
        free = () if guarded else UNGUARDED["sqlite"]
        return _in_file(path, [*free, *statements])
    free = () if guarded else UNGUARDED["postgres"]
    rows: list[tuple[object, ...]] = []
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in (*free, *statements):
            cursor = connection.execute(statement.encode())
            rows = [] if cursor.description is None else cursor.fetchall()
    return rows


def replaced(old: str, new: str, *, where: str) -> str:
    """Return the statement that changes a word of the journals' lines."""
    text = f"replace(convert_from(line, 'UTF8'), '{old}', '{new}')"
    return f"UPDATE midrun_entries SET line = convert_to({text}, 'UTF8') WHERE {where}"  # noqa: S608 - the test's own words


def _in_file(path: Path, statements: list[str]) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)  # others use the file as well
    connection.create_scalar_function("decode", lambda *a: bytes.fromhex(str(a[0])))
    connection.create_scalar_function("convert_from", lambda *a: bytes(a[0]).decode())
    connection.create_scalar_function("convert_to", lambda *a: str(a[0]).encode())
    rows: list[tuple[object, ...]] = []
    try:
        for statement in statements:
            rows = list(connection.execute(TABLE.sub(r"\1", statement)))
    finally:
        connection.close()
    return rows
