"""A SQLite store that counts refusals and injects errors."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from midrun.core.entries import Entry
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.errors import StoreBusy, StoreError, StoreFull, StoreUnreachable
from midrun.ports.store import AppendResult, Lease, Snapshot
from midrun.stores.sqlite.store import SqliteStore

BUSY_TIMEOUT = timedelta(milliseconds=30)


class FaultyStore(SqliteStore):
    """A store that counts its refusals, and can lose a reply or refuse snapshots."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, busy=BUSY_TIMEOUT)
        self.refusals = 0
        self.leased_replies = 0  # replies to appends under a lease
        self.lost_reply = 0  # the number of the reply to lose, from 1
        self.snapshot_error: StoreError | None = None

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
        files: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        try:
            appended = await super().append(
                run,
                entries,
                after=after,
                lease=lease,
                head=head,
                starts=starts,
                at=at,
                files=files,
            )
        except StoreError as error:
            if isinstance(error, StoreBusy | StoreFull):
                self._count_refusal()
            raise
        if lease is not None:
            self._lose_reply()
        return appended

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        try:
            await super().record_heartbeat(holder, ttl=ttl, lag=lag)
        except StoreBusy:
            self._count_refusal()
            raise

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        if self.snapshot_error is not None:
            self._count_refusal()
            raise self.snapshot_error
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
        at: Micros | None = None,
    ) -> tuple[Lease, AppendResult]:
        result = await super().take_lease(
            run, entries, after=after, holder=holder, head=head, limits=limits, at=at
        )
        self._lose_reply()
        return result

    def _lose_reply(self) -> None:
        """Raise after the write was committed, once."""
        self.leased_replies += 1
        if self.leased_replies == self.lost_reply:
            raise StoreUnreachable(
                str(self.path), "the answer was lost; read what became of it"
            )

    def _count_refusal(self) -> None:
        self.refusals += 1
