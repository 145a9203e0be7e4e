"""A store on a real file that counts how often it had to say no."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from midrun.core.entries import Entry
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.errors import StoreBusy, StoreError, StoreFull, StoreUnreachable
from midrun.ports.store import AppendResult, Lease, Snapshot
from midrun.stores.sqlite.store import SqliteStore

SOON = timedelta(milliseconds=30)


class Watched(SqliteStore):
    """A store on a file that tells how often it said no, and says no when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, busy=SOON)
        self.noes = 0
        self.answers = 0  # to whoever drives
        self.lost_answer = 0  # which of them is lost, from 1
        self.no_snapshots: StoreError | None = None

    async def append(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq | None,
        lease: Lease | None,
        head: Head | None,
        starts: bool = False,
        at: Micros | None = None,
    ) -> AppendResult:
        """Append; a no is counted."""
        try:
            appended = await super().append(
                run, entries, after=after, lease=lease, head=head, starts=starts, at=at
            )
        except StoreError as error:
            if isinstance(error, StoreBusy | StoreFull):
                self._no()
            raise
        if lease is not None:
            self._lose_answer()
        return appended

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        """Beat; a no is counted."""
        try:
            await super().record_heartbeat(holder, ttl=ttl, lag=lag)
        except StoreBusy:
            self._no()
            raise

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        """Keep a snapshot, if there is room."""
        if self.no_snapshots is not None:
            self._no()
            raise self.no_snapshots
        await super().save_snapshot(run, snapshot)

    async def take_lease(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq,
        holder: str,
        head: Head,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[Lease, AppendResult]:
        """Take the lease, if need be without an answer."""
        taken = await super().take_lease(
            run, entries, after=after, holder=holder, head=head, limits=limits
        )
        self._lose_answer()
        return taken

    def _lose_answer(self) -> None:
        """Let the caller think that nothing happened, once."""
        self.answers += 1
        if self.answers == self.lost_answer:
            raise StoreUnreachable(
                str(self.path), "the answer was lost; read what became of it"
            )

    def _no(self) -> None:
        self.noes += 1
