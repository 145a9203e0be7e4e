"""Follower cursors and push targets in a SQLite file.

Writes go through the store's one writer, reads through its reader. A follower that is new to a
file with runs does not get a cursor for each of them: its row has the number of the newest run
at that time. A run up to that number without a cursor has not grown since; a trigger adds its
cursor when it grows.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import apsw
from msgspec import Struct

from midrun.core.ids import RunId
from midrun.errors import RunNotFound
from midrun.ports.environment import Clock
from midrun.ports.follower_cursors import FollowerCursor
from midrun.ports.push_targets import PushTarget
from midrun.stores import validation
from midrun.stores.cursors import check_cursor, check_follower_name, check_push_target
from midrun.stores.encryption import PayloadCipher
from midrun.stores.sqlite.reader import ReadConnection
from midrun.stores.sqlite.row_cache import RowCache
from midrun.stores.sqlite.writer import SqliteWriter

INSERT_FOLLOWER: Final = """
    INSERT OR IGNORE INTO followers SELECT ?, '', 0, coalesce(max(no), 0) FROM runs
"""
ACQUIRE_LEADERSHIP: Final = """
    UPDATE followers SET holder = ?2, until = ?3
    WHERE follower = ?1 AND (holder IN ('', ?2) OR until <= ?4)
"""
RELEASE_LEADERSHIP: Final = """
    UPDATE followers SET holder = '', until = 0 WHERE follower = ? AND holder = ?
"""
# A run up to `since` that has no cursor has not grown since the follower came. The follower
# counts as being at the run's current end.
ADVANCE_CURSOR: Final = """
    INSERT INTO cursors SELECT ?1, r.no, ?3, ?4 FROM runs AS r
    LEFT JOIN followers AS f ON f.follower = ?1
    LEFT JOIN cursors AS c ON c.follower = ?1 AND c.no = r.no
    WHERE r.run = ?2
      AND ?3 >= coalesce(c.seq, CASE WHEN r.no <= f.since THEN (
          SELECT max(seq) FROM entries WHERE no = r.no
      ) ELSE 0 END)
    ON CONFLICT DO UPDATE SET seq = excluded.seq, note = excluded.note
"""
SELECT_CURSOR: Final = """
    SELECT coalesce(c.seq, CASE WHEN r.no <= f.since THEN (
               SELECT max(seq) FROM entries WHERE no = r.no
           ) ELSE 0 END),
           coalesce(c.note, '')
    FROM runs AS r LEFT JOIN followers AS f ON f.follower = ?1
    LEFT JOIN cursors AS c ON c.follower = ?1 AND c.no = r.no WHERE r.run = ?2
"""
SELECT_SINCE: Final = "SELECT since FROM followers WHERE follower = ?"
# The rows of resting runs are up to date, see the schema.
SELECT_BEHIND: Final = """
    SELECT run, seq, note FROM (
        SELECT r.at, r.no, r.run, c.seq, c.note
        FROM cursors AS c CROSS JOIN runs AS r ON r.no = c.no
        WHERE c.follower = ?1 AND c.no <= ?3 AND r.seq > c.seq
          AND r.phase IN ('paused', 'waiting', 'cancelled', 'completed', 'failed', 'halted')
        UNION ALL
        SELECT r.at, r.no, r.run, coalesce(c.seq, 0), coalesce(c.note, '')
        FROM runs AS r LEFT JOIN cursors AS c ON c.follower = ?1 AND c.no = r.no
        WHERE r.no > ?3 AND r.seq > coalesce(c.seq, 0)
          AND r.phase IN ('paused', 'waiting', 'cancelled', 'completed', 'failed', 'halted')
    )
    ORDER BY at, no LIMIT ?2
"""


class SqliteFollowerCursors:
    """The follower cursors of one file."""

    def __init__(self, writer: SqliteWriter, reader: ReadConnection, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def acquire_leadership(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        check_follower_name(follower)
        ttl_micros = validation.check_heartbeat(holder, ttl, 0.0)
        request = AcquireLeadership(
            follower=follower, holder=holder, ttl_micros=ttl_micros, clock=self._clock
        )
        return await self._writer.write(request)

    async def release_leadership(self, follower: str, *, holder: str) -> None:
        await self._writer.write(ReleaseLeadership(follower=follower, holder=holder))

    async def list_behind(self, follower: str, *, limit: int) -> Sequence[FollowerCursor]:
        check_follower_name(follower)
        clamped = validation.clamp_limit(limit)
        return await self._reader.read_in_thread(lambda db: _read_behind(db, follower, clamped))

    async def get_cursor(self, follower: str, run: RunId) -> FollowerCursor:
        check_follower_name(follower)
        validation.check_run_id(run)
        return await self._reader.read_in_thread(lambda db: _read_cursor(db, follower, run))

    async def advance_cursor(self, follower: str, cursor: FollowerCursor) -> None:
        check_cursor(follower, cursor)
        await self._writer.write(AdvanceCursor(follower=follower, cursor=cursor))


class AcquireLeadership(Struct, frozen=True, kw_only=True):
    """Take the leadership of a follower if it is free.

    A new follower is registered first.
    """

    follower: str
    holder: str
    ttl_micros: int
    clock: Clock

    def __call__(self, rows: RowCache) -> bool:
        # A new follower starts at the end of every run that exists now.
        rows.db.execute(INSERT_FOLLOWER, (self.follower,))
        now = self.clock()
        values = (self.follower, self.holder, now + self.ttl_micros, now)
        rows.db.execute(ACQUIRE_LEADERSHIP, values)
        return rows.db.changes() > 0


class ReleaseLeadership(Struct, frozen=True, kw_only=True):
    """Give up the leadership of a follower."""

    follower: str
    holder: str

    def __call__(self, rows: RowCache) -> None:
        rows.db.execute(RELEASE_LEADERSHIP, (self.follower, self.holder))


class AdvanceCursor(Struct, frozen=True, kw_only=True):
    """Move a cursor forwards; never back."""

    follower: str
    cursor: FollowerCursor

    def __call__(self, rows: RowCache) -> None:
        """Update the cursor unless it is further already.

        Raises:
            RunNotFound: no such run.
        """
        cursor = self.cursor
        rows.check_run_exists(cursor.run)
        rows.db.execute(ADVANCE_CURSOR, (self.follower, cursor.run, cursor.seq, cursor.note))


def _read_behind(db: apsw.Connection, follower: str, limit: int) -> list[FollowerCursor]:
    found = db.execute(
        SELECT_BEHIND, (follower, limit, db.execute(SELECT_SINCE, (follower,)).get or 0)
    )
    return [FollowerCursor(run=run, seq=seq, note=note) for run, seq, note in found]


def _read_cursor(db: apsw.Connection, follower: str, run: RunId) -> FollowerCursor:
    found = db.execute(SELECT_CURSOR, (follower, run)).get
    if found is None:
        raise RunNotFound(run)
    seq, note = found
    return FollowerCursor(run=run, seq=seq, note=note)


PUT_TARGET: Final = "INSERT OR REPLACE INTO push_targets (run, id, body) VALUES (?, ?, ?)"
REMOVE_TARGET: Final = "DELETE FROM push_targets WHERE run = ? AND id = ?"
SELECT_TARGETS: Final = "SELECT id, body FROM push_targets WHERE run = ? ORDER BY id"


class SqlitePushTargets:
    """The push targets of one file."""

    def __init__(
        self, writer: SqliteWriter, reader: ReadConnection, cipher: PayloadCipher
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._cipher = cipher

    async def put_target(self, run: RunId, target: PushTarget) -> None:
        check_push_target(run, target)
        body = self._cipher.encrypt_target(run, target.body)
        await self._writer.write(
            ChangeTarget(statement=PUT_TARGET, values=(run, target.id, body))
        )

    async def list_targets(self, run: RunId) -> Sequence[PushTarget]:
        validation.check_run_id(run)
        stored = await self._reader.read_in_thread(lambda db: _read_targets(db, run))
        return [
            PushTarget(id=name, body=self._cipher.decrypt_target(run, body))
            for name, body in stored
        ]

    async def remove_target(self, run: RunId, target_id: str) -> None:
        validation.check_run_id(run)
        validation.check_text("id", target_id)
        await self._writer.write(ChangeTarget(statement=REMOVE_TARGET, values=(run, target_id)))


class ChangeTarget(Struct, frozen=True, kw_only=True):
    """Put or remove a push target."""

    statement: str
    values: tuple[str | bytes, ...]

    def __call__(self, rows: RowCache) -> None:
        rows.db.execute(self.statement, self.values)


def _read_targets(db: apsw.Connection, run: RunId) -> list[tuple[str, bytes]]:
    rows = db.execute(SELECT_TARGETS, (run,))
    return [(str(name), bytes(body)) for name, body in rows]
