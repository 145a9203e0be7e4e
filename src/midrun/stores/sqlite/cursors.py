"""Follower cursors in a SQLite file.

Writes go through the store's one writer, reads through its reader. A follower that is new to a
file with runs does not get a cursor for each of them: its row in `latecomers` has the number of
the newest run at that time. A run up to that number without a cursor has not grown since; a
trigger adds its cursor when it grows.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import apsw
from msgspec import Struct

from midrun.core.ids import RunId
from midrun.errors import RunNotFound
from midrun.ports.environment import Clock
from midrun.ports.follower_cursors import Mark
from midrun.stores import validation
from midrun.stores.cursors import check_follower, check_mark
from midrun.stores.sqlite.reader import Reader
from midrun.stores.sqlite.row_cache import Standings
from midrun.stores.sqlite.writer import Writer

COME: Final = "INSERT OR IGNORE INTO followers VALUES (?, '', 0)"
COME_LATE: Final = (
    "INSERT INTO latecomers SELECT ?, no, '', 0 FROM runs ORDER BY no DESC LIMIT 1"
)
BAR: Final = """
    UPDATE followers SET holder = 'a newer midrun', until = 9223372036854775807
    WHERE follower IN (SELECT follower FROM latecomers) AND follower = ?
"""
ATTEND: Final = (
    """
    UPDATE followers SET holder = ?2, until = ?3
    WHERE follower = ?1 AND (holder IN ('', ?2) OR until <= ?4)
    """,
    """
    UPDATE latecomers SET holder = ?2, until = ?3
    WHERE follower = ?1 AND (holder IN ('', ?2) OR until <= ?4)
    """,
)
LEAVE: Final = (
    "UPDATE followers SET holder = '', until = 0 WHERE follower = ? AND holder = ?",
    "UPDATE latecomers SET holder = '', until = 0 WHERE follower = ? AND holder = ?",
)
# A run up to `since` that has no cursor has not grown since the follower came. The follower
# counts as being at the run's current end.
MOVE: Final = """
    INSERT INTO marks SELECT ?1, r.no, ?3, ?4 FROM runs AS r
    LEFT JOIN latecomers AS l ON l.follower = ?1
    LEFT JOIN marks AS m ON m.follower = ?1 AND m.no = r.no
    WHERE r.run = ?2
      AND ?3 >= coalesce(m.seq, CASE WHEN r.no <= l.since THEN r.seq ELSE 0 END)
    ON CONFLICT DO UPDATE SET seq = excluded.seq, note = excluded.note
"""
MARKED: Final = """
    SELECT coalesce(m.seq, CASE WHEN r.no <= l.since THEN r.seq ELSE 0 END),
           coalesce(m.note, '')
    FROM runs AS r LEFT JOIN latecomers AS l ON l.follower = ?1
    LEFT JOIN marks AS m ON m.follower = ?1 AND m.no = r.no WHERE r.run = ?2
"""
SINCE: Final = "SELECT since FROM latecomers WHERE follower = ?"
BEHIND: Final = """
    SELECT run, seq, note FROM (
        SELECT r.at, r.no, r.run, m.seq, m.note
        FROM marks AS m CROSS JOIN runs AS r ON r.no = m.no
        WHERE m.follower = ?1 AND m.no <= ?3 AND r.seq > m.seq
          AND r.phase IN ('paused', 'waiting', 'cancelled', 'completed', 'failed', 'halted')
        UNION ALL
        SELECT r.at, r.no, r.run, coalesce(m.seq, 0), coalesce(m.note, '')
        FROM runs AS r LEFT JOIN marks AS m ON m.follower = ?1 AND m.no = r.no
        WHERE r.no > ?3 AND r.seq > coalesce(m.seq, 0)
          AND r.phase IN ('paused', 'waiting', 'cancelled', 'completed', 'failed', 'halted')
    )
    ORDER BY at, no LIMIT ?2
"""


class SqliteMarks:
    """The follower cursors of one file."""

    def __init__(self, writer: Writer, reader: Reader, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def attend(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        check_follower(follower)
        ttl_micros = validation.check_beat(holder, ttl, 0.0)
        request = Attend(follower=follower, holder=holder, lasts=ttl_micros, clock=self._clock)
        return await self._writer.write(request)

    async def leave(self, follower: str, *, holder: str) -> None:
        await self._writer.write(Leave(follower=follower, holder=holder))

    async def behind(self, follower: str, *, limit: int) -> Sequence[Mark]:
        check_follower(follower)
        clamped = validation.bounded(limit)
        return await self._reader.aside(lambda db: _behind(db, follower, clamped))

    async def marked(self, follower: str, run: RunId) -> Mark:
        check_follower(follower)
        validation.check_id(run)
        return await self._reader.aside(lambda db: _marked(db, follower, run))

    async def mark(self, follower: str, mark: Mark) -> None:
        check_mark(follower, mark)
        await self._writer.write(Move(follower=follower, mark=mark))


class Attend(Struct, frozen=True, kw_only=True):
    """Take the leadership of a follower if it is free.

    A new follower is registered first.
    """

    follower: str
    holder: str
    lasts: int
    clock: Clock

    def __call__(self, at: Standings) -> bool:
        at.db.execute(COME, (self.follower,))
        if at.db.changes():
            # A new follower starts at the end of every run that exists now. A midrun that does
            # not know the table `latecomers` would take those runs for unreported ones, so it
            # finds the leadership in `followers` taken for ever.
            at.db.execute(COME_LATE, (self.follower,))
            at.db.execute(BAR, (self.follower,))
        now, acquired = self.clock(), 0
        for statement in ATTEND:
            at.db.execute(statement, (self.follower, self.holder, now + self.lasts, now))
            acquired += at.db.changes()
        return acquired > 0


class Leave(Struct, frozen=True, kw_only=True):
    """Give up the leadership of a follower."""

    follower: str
    holder: str

    def __call__(self, at: Standings) -> None:
        for statement in LEAVE:
            at.db.execute(statement, (self.follower, self.holder))


class Move(Struct, frozen=True, kw_only=True):
    """Move a cursor forwards; never back."""

    follower: str
    mark: Mark

    def __call__(self, at: Standings) -> None:
        """Update the cursor unless it is further already.

        Raises:
            RunNotFound: no such run.
        """
        mark = self.mark
        at.find(mark.run)
        at.db.execute(MOVE, (self.follower, mark.run, mark.seq, mark.note))


def _behind(db: apsw.Connection, follower: str, limit: int) -> list[Mark]:
    found = db.execute(BEHIND, (follower, limit, db.execute(SINCE, (follower,)).get or 0))
    return [Mark(run=run, seq=seq, note=note) for run, seq, note in found]


def _marked(db: apsw.Connection, follower: str, run: RunId) -> Mark:
    found = db.execute(MARKED, (follower, run)).get
    if found is None:
        raise RunNotFound(run)
    seq, note = found
    return Mark(run=run, seq=seq, note=note)
