"""Noticing: how a process learns what another has written.

Whoever commits tells everybody who listens (`NOTIFY`); that takes a millisecond or two. It can
be lost, with a connection or with the process that was about to tell. So every commit also
leaves a line in a table, and whoever listens looks once a second for lines that are new to it.
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
"""How often the table is looked at: what a lost notification costs at most."""

KEPT_S: Final = 60.0
"""For how long lines stay in the table."""

SWEEP: Final = 20
"""Once in so many looks, lines that nobody needs any more are removed."""


class Notice:
    """Tells watchers what others have committed, for as long as `listen` runs."""

    def __init__(self, address: Address, watchers: Watchers) -> None:
        self._address = address
        self._watchers = watchers
        self._seen = ""  # a snapshot: what was visible at the last look
        self._seen_at = 0.0
        self._looks = 0

    async def listen(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled; a server that goes away is waited for.

        Everything that is committed once this has started will be told.

        Raises:
            StoreUnreachable: nobody answered in time, before it has started.
        """
        started, until, pause_s = False, boottime() + BACK_S, PAUSE_S
        while True:
            try:
                link = await Link.made(self._address)
                try:
                    await self._begin(link)
                    if not started:
                        started = True
                        task_status.started()
                    pause_s = PAUSE_S
                    await self._hear(link)
                finally:
                    link.drop()
            except (Lost, StoreError) as error:
                if not started and boottime() > until:
                    lost = error if isinstance(error, Lost) else Lost(str(error))
                    raise unreachable(self._address, lost) from error
                if not started and isinstance(error, StoreUnreachable):
                    raise
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _begin(self, link: Link) -> None:
        """Listen, then look at what was missed since the last time."""
        await link.ask(queries.LISTEN, {"what": ""})
        if not self._seen:
            ((self._seen,),) = await link.ask(queries.LOOKED)
        elif boottime() - self._seen_at > KEPT_S / 2:
            ((seen,),) = await link.ask(queries.LOOKED)
            self._watchers.tell([(LATCHES, START), *await link.ask(queries.EVERYTHING)])
            self._seen = seen
        else:
            # A server that has crashed gives some numbers out again: what was seen of the last
            # one says nothing about this one.
            ((self._seen, told),) = await link.ask(queries.RECENT)
            self._tell(told or ())
        self._seen_at = boottime()

    async def _hear(self, link: Link) -> None:
        while True:
            until = self._seen_at + LOOK_S
            if link.unheard():
                await checkpoint()
            else:
                with anyio.move_on_after(max(0.0, until - boottime())):
                    await link.readable()
            self._tell(text for _, text in link.heard())
            if boottime() >= until:
                await self._look(link)

    async def _look(self, link: Link) -> None:
        """Look for lines that were not visible at the last look."""
        ((seen, told),) = await link.ask(queries.NEWS, {"seen": self._seen})
        self._tell(told or ())
        self._seen, self._seen_at = seen, boottime()
        self._looks += 1
        if self._looks % SWEEP == 0:
            await link.ask(queries.FORGET, {"kept": round(KEPT_S * 1e6)})

    def _tell(self, payloads: Iterable[str]) -> None:
        changes: list[tuple[RunId, Seq]] = []
        held: set[RunId] = set()
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
