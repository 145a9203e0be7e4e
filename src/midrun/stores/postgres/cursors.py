"""Follower cursors in Postgres.

The first time a follower comes, the server notes the number of the newest run (`since`). A run
up to that number without a cursor has not grown since; `midrun_write` adds its cursor when it
grows.
"""

from collections.abc import Sequence
from datetime import timedelta

from midrun.core.ids import RunId
from midrun.errors import RunNotFound
from midrun.ports.follower_cursors import FollowerCursor
from midrun.stores import validation
from midrun.stores.cursors import check_cursor, check_follower_name
from midrun.stores.postgres import queries
from midrun.stores.postgres.operations import check_no_nul
from midrun.stores.postgres.pool import ConnectionPool
from midrun.stores.postgres.server_clock import ServerClock


class PostgresFollowerCursors:
    """The follower cursors of one schema."""

    def __init__(self, pool: ConnectionPool, server_clock: ServerClock) -> None:
        self._pool = pool
        self._server_clock = server_clock

    async def acquire_leadership(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        check_follower_name(follower)
        ttl_micros = validation.check_heartbeat(holder, ttl, 0.0)
        values = {"follower": follower, "holder": holder, "lasts": ttl_micros}
        values |= {"now": self._server_clock.get_override()}
        ((acquired,),) = await self._pool.execute(queries.ACQUIRE_LEADERSHIP, values)
        return bool(acquired)

    async def release_leadership(self, follower: str, *, holder: str) -> None:
        await self._pool.execute(
            queries.RELEASE_LEADERSHIP, {"follower": follower, "holder": holder}
        )

    async def list_behind(self, follower: str, *, limit: int) -> Sequence[FollowerCursor]:
        check_follower_name(follower)
        rows = await self._pool.execute(queries.SELECT_SINCE, {"follower": follower})
        since = rows[0][0] if rows else 0
        values = {"follower": follower, "since": since, "limit": validation.clamp_limit(limit)}
        behind = await self._pool.execute(queries.SELECT_BEHIND, values, prepare=False)
        return [FollowerCursor(run=run, seq=seq, note=note) for run, seq, note in behind]

    async def get_cursor(self, follower: str, run: RunId) -> FollowerCursor:
        check_follower_name(follower)
        validation.check_run_id(run)
        found = await self._pool.execute(
            queries.SELECT_CURSOR, {"follower": follower, "run": run}
        )
        if not found:
            raise RunNotFound(run)
        seq, note = found[0]
        return FollowerCursor(run=run, seq=seq, note=note)

    async def advance_cursor(self, follower: str, cursor: FollowerCursor) -> None:
        check_cursor(follower, cursor)
        check_no_nul("note", cursor.note)
        validation.check_run_id(cursor.run)
        values = {
            "follower": follower,
            "run": cursor.run,
            "seq": cursor.seq,
            "note": cursor.note,
        }
        if not await self._pool.execute(queries.ADVANCE_CURSOR, values):
            raise RunNotFound(cursor.run)
