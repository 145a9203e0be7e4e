"""The world outside: a table of what was done, which no restart of Postgres touches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

SCHEMA = """
    CREATE TABLE IF NOT EXISTS deeds (what TEXT, run TEXT, key TEXT, attempt INTEGER);
    CREATE TABLE IF NOT EXISTS known (key TEXT PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS closed (key TEXT, attempt INTEGER);
"""


class Deed(NamedTuple):
    """Something that was done. `key` is that of the call, of an undo that of what it undoes."""

    what: str
    run: str
    key: str
    attempt: int


class GivenUp(Exception):
    """The far end does not take a deed any more."""


class World:
    """Where tools act. It remembers keys for those who ask it to, and what was given up."""

    def __init__(self, folder: Path) -> None:
        self._db = apsw.Connection(str(folder / "world.db"))
        self._db.set_busy_timeout(30_000)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute(SCHEMA)

    def do(self, deed: Deed, *, knows_keys: bool = False) -> None:
        """Do it: once for each key if the far end knows keys.

        Raises:
            GivenUp: somebody has settled that it is not done.
        """
        with self._alone():
            if knows_keys:
                self._db.execute("INSERT OR IGNORE INTO known VALUES (?)", (deed.key,))
                if not self._db.changes():
                    return
            if self._db.execute(
                "SELECT 1 FROM closed WHERE key = ? AND attempt >= ?", (deed.key, deed.attempt)
            ).get:
                raise GivenUp
            self._db.execute("INSERT INTO deeds VALUES (?, ?, ?, ?)", deed)

    def settle(self, key: str, attempt: int) -> bool:
        """Tell whether a deed was done; if not, see to it that it cannot be any more."""
        with self._alone():
            done = self._db.execute("SELECT 1 FROM deeds WHERE key = ?", (key,)).get
            if not done:
                self._db.execute("INSERT INTO closed VALUES (?, ?)", (key, attempt))
        return bool(done)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._db.execute(
            "BEGIN IMMEDIATE"
        )  # whoever reads first and then writes may be refused
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def deeds(self) -> list[Deed]:
        """Return everything that was done, in order."""
        rows = self._db.execute("SELECT what, run, key, attempt FROM deeds ORDER BY rowid")
        return [Deed(*row) for row in rows]

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
