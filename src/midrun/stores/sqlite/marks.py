"""Marks in a SQLite file: written by the store's one writer, read like everything else."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import apsw
from msgspec import Struct

from midrun.core.ids import RunId
from midrun.errors import RunNotFound
from midrun.ports.clock import Clock
from midrun.ports.marks import Mark
from midrun.stores import rules
from midrun.stores.marks import check_follower, check_mark
from midrun.stores.sqlite.reads import Reader
from midrun.stores.sqlite.standings import Standings
from midrun.stores.sqlite.writer import Writer

COME: Final = "INSERT OR IGNORE INTO followers VALUES (?, '', 0)"
COUNT_AS_TOLD: Final = "INSERT OR IGNORE INTO marks SELECT ?, no, seq, '' FROM runs"
ATTEND: Final = """
    UPDATE followers SET holder = ?2, until = ?3
    WHERE follower = ?1 AND (holder IN ('', ?2) OR until <= ?4)
"""
LEAVE: Final = "UPDATE followers SET holder = '', until = 0 WHERE follower = ? AND holder = ?"
MOVE: Final = """
    INSERT INTO marks SELECT ?1, no, ?3, ?4 FROM runs WHERE run = ?2
    ON CONFLICT DO UPDATE SET seq = excluded.seq, note = excluded.note
        WHERE excluded.seq >= marks.seq
"""
MARKED: Final = """
    SELECT coalesce(m.seq, 0), coalesce(m.note, '')
    FROM runs AS r LEFT JOIN marks AS m ON m.follower = ?1 AND m.no = r.no WHERE r.run = ?2
"""
BEHIND: Final = """
    SELECT r.run, coalesce(m.seq, 0), coalesce(m.note, '')
    FROM runs AS r LEFT JOIN marks AS m ON m.follower = ?1 AND m.no = r.no
    WHERE r.phase IN ('paused', 'waiting', 'cancelled', 'completed', 'failed', 'halted')
      AND r.seq > coalesce(m.seq, 0)
    ORDER BY r.at, r.no LIMIT ?2
"""


class SqliteMarks:
    """The marks of one file."""

    def __init__(self, writer: Writer, reader: Reader, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def attend(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        check_follower(follower)
        lasts = rules.check_beat(holder, ttl, 0.0)
        request = Attend(follower=follower, holder=holder, lasts=lasts, clock=self._clock)
        return await self._writer.write(request)

    async def leave(self, follower: str, *, holder: str) -> None:
        await self._writer.write(Leave(follower=follower, holder=holder))

    async def behind(self, follower: str, *, limit: int) -> Sequence[Mark]:
        check_follower(follower)
        most = rules.bounded(limit)
        return await self._reader.aside(lambda db: _behind(db, follower, most))

    async def marked(self, follower: str, run: RunId) -> Mark:
        check_follower(follower)
        rules.check_id(run)
        return await self._reader.aside(lambda db: _marked(db, follower, run))

    async def mark(self, follower: str, mark: Mark) -> None:
        check_mark(follower, mark)
        await self._writer.write(Move(follower=follower, mark=mark))


class Attend(Struct, frozen=True, kw_only=True):
    """Take the place of a follower, if it is free; let it begin with what comes now."""

    follower: str
    holder: str
    lasts: int
    clock: Clock

    def __call__(self, at: Standings) -> bool:
        at.db.execute(COME, (self.follower,))
        if at.db.changes():
            at.db.execute(COUNT_AS_TOLD, (self.follower,))
        now = self.clock()
        at.db.execute(ATTEND, (self.follower, self.holder, now + self.lasts, now))
        return at.db.changes() > 0


class Leave(Struct, frozen=True, kw_only=True):
    """Free the place of a follower."""

    follower: str
    holder: str

    def __call__(self, at: Standings) -> None:
        at.db.execute(LEAVE, (self.follower, self.holder))


class Move(Struct, frozen=True, kw_only=True):
    """Move a mark forwards."""

    follower: str
    mark: Mark

    def __call__(self, at: Standings) -> None:
        """Raises: RunNotFound."""
        mark = self.mark
        at.find(mark.run)
        at.db.execute(MOVE, (self.follower, mark.run, mark.seq, mark.note))


def _behind(db: apsw.Connection, follower: str, limit: int) -> list[Mark]:
    found = db.execute(BEHIND, (follower, limit))
    return [Mark(run=run, seq=seq, note=note) for run, seq, note in found]


def _marked(db: apsw.Connection, follower: str, run: RunId) -> Mark:
    found = db.execute(MARKED, (follower, run)).get
    if found is None:
        raise RunNotFound(run)
    seq, note = found
    return Mark(run=run, seq=seq, note=note)
