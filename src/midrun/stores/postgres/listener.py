"""Report commits of other processes to the watchers of this one.

Each commit is announced with NOTIFY, which arrives within a millisecond or two. A notification
can be lost: with a broken connection, or because its sender died between the commit and the
NOTIFY. So each commit also inserts a row into the table `midrun_news`, and the listener reads
the new rows once per `POLL_INTERVAL_S`.

Transaction numbers are no usable position in that table: a transaction with a smaller number
may commit later. The listener therefore keeps the *snapshot* of its last poll, and asks for the
rows whose transaction was not visible in it.
"""

from collections.abc import Iterable
from typing import Final

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from midrun.core.ids import START, RunId, Seq
from midrun.errors import StoreError, StoreUnreachable
from midrun.ports.environment import boottime
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import Address, Link, Lost, unreachable
from midrun.stores.postgres.pool import BACK_S, PAUSE_MAX_S, PAUSE_S
from midrun.stores.watchers import LATCHES, Watchers

LOOK_S: Final = 1.0
"""Seconds between two polls of the table: the longest delay of a lost notification."""

KEPT_S: Final = 60.0
"""Seconds for which rows stay in the table."""

SWEEP: Final = 20
"""Old rows are deleted once in this many polls."""


class Notice:
    """Report commits of other processes for as long as `listen_until_cancelled` runs."""

    def __init__(self, address: Address, watchers: Watchers) -> None:
        self._address = address
        self._watchers = watchers
        self._seen = ""  # the snapshot of the last poll
        self._seen_at = 0.0
        self._looks = 0

    async def listen(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled; reconnect when the server goes away.

        Every commit after `task_status.started()` is reported.

        Raises:
            StoreUnreachable: no answer in time, before it has started.
        """
        started, deadline, pause_s = False, boottime() + BACK_S, PAUSE_S
        while True:
            try:
                connection = await Link.made(self._address)
                try:
                    await self._begin(connection)
                    if not started:
                        started = True
                        task_status.started()
                    pause_s = PAUSE_S
                    await self._hear(connection)
                finally:
                    connection.drop()
            except (Lost, StoreError) as error:
                if not started and boottime() > deadline:
                    lost = error if isinstance(error, Lost) else Lost(str(error))
                    raise unreachable(self._address, lost) from error
                if not started and isinstance(error, StoreUnreachable):
                    raise
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _begin(self, link: Link) -> None:
        """Start to listen, then report the commits since the last poll."""
        # LISTEN comes before the snapshot. A commit in between is reported twice; in the other
        # order it would be lost.
        await link.ask(queries.LISTEN, {"what": ""})
        if not self._seen:
            ((self._seen,),) = await link.ask(queries.LOOKED)
        elif boottime() - self._seen_at > KEPT_S / 2:
            # The connection was gone for so long that rows may have been deleted meanwhile.
            # Every run is reported; the watchers drop those that they know already.
            ((snapshot,),) = await link.ask(queries.LOOKED)
            self._watchers.tell([(LATCHES, START), *await link.ask(queries.EVERYTHING)])
            self._seen = snapshot
        else:
            # A server that has crashed may hand out some transaction numbers again, so the
            # old snapshot proves nothing. All rows that are left are reported.
            ((self._seen, payloads),) = await link.ask(queries.RECENT)
            self._tell(payloads or ())
        self._seen_at = boottime()

    async def _hear(self, link: Link) -> None:
        while True:
            next_poll = self._seen_at + LOOK_S
            # Notifications that came with an answer are already read: the socket does not
            # announce them any more. `checkpoint` lets other tasks run in that case.
            if link.unheard():
                await checkpoint()
            else:
                with anyio.move_on_after(max(0.0, next_poll - boottime())):
                    await link.readable()
            self._tell(text for _, text in link.heard())
            if boottime() >= next_poll:
                await self._look(link)

    async def _look(self, link: Link) -> None:
        """Report the commits that the snapshot of the last poll could not see."""
        ((snapshot, payloads),) = await link.ask(queries.NEWS, {"seen": self._seen})
        self._tell(payloads or ())
        self._seen, self._seen_at = snapshot, boottime()
        self._looks += 1
        if self._looks % SWEEP == 0:
            await link.ask(queries.FORGET, {"kept": round(KEPT_S * 1e6)})

    def _tell(self, payloads: Iterable[str]) -> None:
        changes: list[tuple[RunId, Seq]] = []
        held: set[RunId] = set()
        # A line is "run seq", or "run seq held" if the run has a holder. A single word stands
        # for the halts. A later line of the same run replaces its `held`.
        for payload in payloads:
            for line in payload.splitlines():
                run, *rest = line.split(" ")
                if not rest:
                    changes.append((LATCHES, START))
                    continue
                changes.append((RunId(run), Seq(int(rest[0]))))
                (held.add if len(rest) > 1 else held.discard)(RunId(run))
        if changes:
            self._watchers.tell(changes, held=held)
