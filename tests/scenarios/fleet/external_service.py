"""A service outside of Midrun: a table of effects that no restart of Postgres touches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw

SCHEMA = """
    CREATE TABLE IF NOT EXISTS effects (what TEXT, run TEXT, key TEXT, attempt INTEGER);
    CREATE TABLE IF NOT EXISTS known (key TEXT PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS closed (key TEXT, attempt INTEGER);
"""


class Effect(NamedTuple):
    """An effect. `key` is the key of the call; for an undo, of the call that it undoes."""

    what: str
    run: str
    key: str
    attempt: int


class EffectRefused(Exception):
    """The service does not accept an effect, as it was settled as not done."""


class ExternalService:
    """The service in which tools have effects; it can recognise idempotency keys."""

    def __init__(self, folder: Path) -> None:
        self._db = apsw.Connection(str(folder / "service.db"))
        self._db.set_busy_timeout(30_000)
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute(SCHEMA)

    def record(self, effect: Effect, *, knows_keys: bool = False, closes: bool = False) -> None:
        """Record an effect; with `knows_keys`, once for each key.

        With `closes`, which an undo uses, further effects of the key are refused.

        Raises:
            EffectRefused: it was settled as not done.
        """
        with self._transaction():
            if knows_keys:
                self._db.execute("INSERT OR IGNORE INTO known VALUES (?)", (effect.key,))
                if not self._db.changes():
                    return
            if (
                not closes
                and self._db.execute(
                    "SELECT 1 FROM closed WHERE key = ? AND attempt >= ?",
                    (effect.key, effect.attempt),
                ).get
            ):
                raise EffectRefused
            self._db.execute("INSERT INTO effects VALUES (?, ?, ?, ?)", effect)
            if closes:
                self._db.execute("INSERT INTO closed VALUES (?, ?)", (effect.key, 2**31))

    def settle(self, key: str, attempt: int) -> bool:
        """Tell whether an effect was recorded; if not, refuse it from now on."""
        with self._transaction():
            done = self._db.execute("SELECT 1 FROM effects WHERE key = ?", (key,)).get
            if not done:
                self._db.execute("INSERT INTO closed VALUES (?, ?)", (key, attempt))
        return bool(done)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # A transaction that begins with a read may be refused its write.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def list_effects(self) -> list[Effect]:
        """Return all effects, in order."""
        rows = self._db.execute("SELECT what, run, key, attempt FROM effects ORDER BY rowid")
        return [Effect(*row) for row in rows]

    def close(self) -> None:
        """Close the file."""
        self._db.close()
