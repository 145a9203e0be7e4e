"""Execute SQL directly in the store of a test, as a person with a database tool would.

Statements are in the dialect of Postgres. For SQLite, the table names are translated and the
missing functions are registered.
"""

import re
from pathlib import Path

import apsw
import psycopg

from tests.support.store_choice import get_store_url

PREFIXED_TABLE = re.compile(r"\bmidrun_(entries|runs|labels)\b")
"""Tables of SQLite have no prefix."""

TRIGGER_ERRORS = (apsw.ConstraintError, psycopg.errors.RaiseException)
"""The errors that the triggers of the stores raise."""

DROP_TRIGGERS = {
    "sqlite": (
        "DROP TRIGGER IF EXISTS entries_do_not_change",
        "DROP TRIGGER IF EXISTS entries_do_not_go",
    ),
    "postgres": (
        "DROP TRIGGER IF EXISTS midrun_refuse_entry_change ON midrun_entries",
        "DROP TRIGGER IF EXISTS midrun_check_entry_removal ON midrun_entries",
    ),
}


def execute_sql(
    path: Path, *statements: str, guarded: bool = False
) -> list[tuple[object, ...]]:
    """Execute the statements; return the rows of the last one.

    Unless `guarded`, the triggers that protect the entries are dropped first.
    """
    address = get_store_url(path)
    if address.startswith("sqlite"):
        unguard = () if guarded else DROP_TRIGGERS["sqlite"]
        return _execute_in_file(path, [*unguard, *statements])
    unguard = () if guarded else DROP_TRIGGERS["postgres"]
    rows: list[tuple[object, ...]] = []
    with psycopg.connect(address, autocommit=True) as connection:
        for statement in (*unguard, *statements):
            cursor = connection.execute(statement.encode())
            rows = [] if cursor.description is None else cursor.fetchall()
    return rows


def count_rows(path: Path, table: str) -> int:
    """Return the number of rows of a table in a SQLite file."""
    db = apsw.Connection(str(path))
    try:
        return int(db.execute(f"SELECT count(*) FROM {table}").get)  # noqa: S608 - our own
    finally:
        db.close()


def make_replace_sql(old: str, new: str, *, where: str) -> str:
    """Return the statement that replaces a text in the lines of journals."""
    text = f"replace(convert_from(line, 'UTF8'), '{old}', '{new}')"
    return f"UPDATE midrun_entries SET line = convert_to({text}, 'UTF8') WHERE {where}"  # noqa: S608 - all parts are written by the test


def _execute_in_file(path: Path, statements: list[str]) -> list[tuple[object, ...]]:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(10_000)  # other connections use the file as well
    connection.create_scalar_function("decode", lambda *a: bytes.fromhex(str(a[0])))
    connection.create_scalar_function("convert_from", lambda *a: bytes(a[0]).decode())
    connection.create_scalar_function("convert_to", lambda *a: str(a[0]).encode())
    rows: list[tuple[object, ...]] = []
    try:
        for statement in statements:
            rows = list(connection.execute(PREFIXED_TABLE.sub(r"\1", statement)))
    finally:
        connection.close()
    return rows
