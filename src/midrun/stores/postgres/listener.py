"""Report commits of other processes to the watchers of this one.

Each commit is announced with NOTIFY, which arrives within a millisecond or two. A notification
can be lost: with a broken connection, or because its sender died between the commit and the
NOTIFY. So each commit also inserts a row into the table `midrun_notices`, and the listener
reads the new rows once per `POLL_INTERVAL_S`.

Transaction numbers are no usable position in that table: a transaction with a smaller number
may commit later. The listener therefore keeps the *snapshot* of its last poll, and asks for the
rows whose transaction was not visible in it.
"""

from collections.abc import Iterable
from typing import Final

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.errors import StoreError, StoreUnreachable
from midrun.ports.platform import read_boot_clock
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import (
    AnswerLost,
    PostgresAddress,
    PostgresConnection,
    make_unreachable_error,
)
from midrun.stores.postgres.pool import RECONNECT_MAX_S, RETRY_PAUSE_MAX_S, RETRY_PAUSE_S
from midrun.stores.watchers import HALTS_CHANGED, Watchers

POLL_INTERVAL_S: Final = 1.0
"""Seconds between two polls of the table: the longest delay of a lost notification."""

NOTICE_RETENTION_S: Final = 60.0
"""Seconds for which rows stay in the table."""

POLLS_PER_CLEANUP: Final = 20
"""Old rows are deleted once in this many polls."""


class ChangeListener:
    """Report commits of other processes for as long as `listen_until_cancelled` runs."""

    def __init__(self, address: PostgresAddress, watchers: Watchers) -> None:
        self._address = address
        self._watchers = watchers
        self._snapshot = ""  # the snapshot of the last poll
        self._polled_at = 0.0
        self._polls = 0

    async def listen_until_cancelled(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled; reconnect when the server goes away.

        Every commit after `task_status.started()` is reported.

        Raises:
            StoreUnreachable: no answer in time, before it has started.
        """
        # Before `started`, a caller waits for this watch to be open, so an error is raised to
        # it. After that there is no caller: the listener reconnects for as long as it lives,
        # and `_catch_up` reports the commits that it has missed.
        started, deadline, pause_s = False, read_boot_clock() + RECONNECT_MAX_S, RETRY_PAUSE_S
        while True:
            try:
                connection = await PostgresConnection.connect(self._address)
                try:
                    await self._catch_up(connection)
                    if not started:
                        started = True
                        task_status.started()
                    # A connection that was good ends the series of growing pauses.
                    pause_s = RETRY_PAUSE_S
                    await self._receive_notifications(connection)
                finally:
                    connection.close()
            except (AnswerLost, StoreError) as error:
                if not started and read_boot_clock() > deadline:
                    lost = error if isinstance(error, AnswerLost) else AnswerLost(str(error))
                    raise make_unreachable_error(self._address, lost) from error
                if not started and isinstance(error, StoreUnreachable):
                    raise
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_PAUSE_MAX_S)

    async def _catch_up(self, connection: PostgresConnection) -> None:
        """Start to listen, then report the commits since the last poll."""
        # LISTEN comes before the snapshot. A commit in between is reported twice; in the other
        # order it would be lost.
        await connection.execute(queries.LISTEN, {"channel": ""})
        if not self._snapshot:
            ((self._snapshot,),) = await connection.execute(queries.CURRENT_SNAPSHOT)
        elif read_boot_clock() - self._polled_at > NOTICE_RETENTION_S / 2:
            # The connection was gone for so long that rows may have been deleted meanwhile.
            # Every run is reported; the watchers drop those that they know already.
            ((snapshot,),) = await connection.execute(queries.CURRENT_SNAPSHOT)
            self._watchers.notify(
                [(HALTS_CHANGED, SEQ_ZERO), *await connection.execute(queries.ALL_RUNS)]
            )
            self._snapshot = snapshot
        else:
            # A server that has crashed may hand out some transaction numbers again, so the
            # old snapshot proves nothing. All rows that are left are reported.
            ((self._snapshot, payloads),) = await connection.execute(queries.ALL_NOTICES)
            self._notify_watchers(payloads or ())
        self._polled_at = read_boot_clock()

    async def _receive_notifications(self, connection: PostgresConnection) -> None:
        while True:
            next_poll = self._polled_at + POLL_INTERVAL_S
            # Notifications that came with an answer are already read: the socket does not
            # announce them any more. `checkpoint` lets other tasks run in that case.
            if connection.has_notifications():
                await checkpoint()
            else:
                with anyio.move_on_after(max(0.0, next_poll - read_boot_clock())):
                    await connection.wait_readable()
            self._notify_watchers(text for _, text in connection.take_notifications())
            if read_boot_clock() >= next_poll:
                await self._poll_news(connection)

    async def _poll_news(self, connection: PostgresConnection) -> None:
        """Report the commits that the snapshot of the last poll could not see."""
        ((snapshot, payloads),) = await connection.execute(
            queries.NOTICES_SINCE_SNAPSHOT, {"seen": self._snapshot}
        )
        # The snapshot is replaced only after the watchers were told. If the task is cancelled
        # or fails in between, the same rows are reported again, which is harmless.
        self._notify_watchers(payloads or ())
        self._snapshot, self._polled_at = snapshot, read_boot_clock()
        self._polls += 1
        if self._polls % POLLS_PER_CLEANUP == 0:
            await connection.execute(
                queries.DELETE_OLD_NOTICES, {"kept": round(NOTICE_RETENTION_S * 1e6)}
            )

    def _notify_watchers(self, payloads: Iterable[str]) -> None:
        changes: list[tuple[RunId, Seq]] = []
        held: set[RunId] = set()
        # A line is "run seq", or "run seq held" if the run has a holder. The line "halts"
        # stands for all halts. A later line of the same run replaces its `held`.
        for payload in payloads:
            for line in payload.splitlines():
                run, *rest = line.split(" ")
                if not rest:
                    changes.append((HALTS_CHANGED, SEQ_ZERO))
                    continue
                changes.append((RunId(run), Seq(int(rest[0]))))
                (held.add if len(rest) > 1 else held.discard)(RunId(run))
        if changes:
            self._watchers.notify(changes, held=held)
