"""Follower cursors in Postgres.

The first time a follower comes, the server notes the number of the newest run (`since`). A run
up to that number without a cursor has not grown since; `midrun_write` adds its cursor when it
grows.
"""

from collections.abc import Sequence
from datetime import timedelta

from midrun.core.ids import RunId
from midrun.errors import RunNotFound
from midrun.ports.follower_cursors import Mark
from midrun.stores import validation
from midrun.stores.cursors import check_follower, check_mark
from midrun.stores.postgres import queries
from midrun.stores.postgres.operations import check_nul
from midrun.stores.postgres.pool import Links
from midrun.stores.postgres.server_clock import StoreTime


class PostgresMarks:
    """The follower cursors of one schema."""

    def __init__(self, links: Links, time: StoreTime) -> None:
        self._links = links
        self._time = time

    async def attend(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        check_follower(follower)
        ttl_micros = validation.check_beat(holder, ttl, 0.0)
        values = {"follower": follower, "holder": holder, "lasts": ttl_micros}
        values |= {"now": self._time.by_hand()}
        ((acquired,),) = await self._links.ask(queries.ATTEND, values)
        return bool(acquired)

    async def leave(self, follower: str, *, holder: str) -> None:
        await self._links.ask(queries.LEAVE, {"follower": follower, "holder": holder})

    async def behind(self, follower: str, *, limit: int) -> Sequence[Mark]:
        check_follower(follower)
        rows = await self._links.ask(queries.SINCE, {"follower": follower})
        since = rows[0][0] if rows else 0
        values = {"follower": follower, "since": since, "limit": validation.bounded(limit)}
        behind = await self._links.ask(queries.BEHIND, values, prepare=False)
        return [Mark(run=run, seq=seq, note=note) for run, seq, note in behind]

    async def marked(self, follower: str, run: RunId) -> Mark:
        check_follower(follower)
        validation.check_id(run)
        found = await self._links.ask(queries.MARKED, {"follower": follower, "run": run})
        if not found:
            raise RunNotFound(run)
        seq, note = found[0]
        return Mark(run=run, seq=seq, note=note)

    async def mark(self, follower: str, mark: Mark) -> None:
        check_mark(follower, mark)
        check_nul("note", mark.note)
        validation.check_id(mark.run)
        values = {"follower": follower, "run": mark.run, "seq": mark.seq, "note": mark.note}
        if not await self._links.ask(queries.MARK, values):
            raise RunNotFound(mark.run)
