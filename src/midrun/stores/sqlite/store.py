"""`SqliteStore`: the store port on one SQLite file.

Writes are validated and encoded before they reach the writer, so that only the short part, read
the row, compare, insert, runs inside the transaction. Small entries are encoded in the event
loop's thread and may be committed there; large ones go through threads. Short reads run in the
event loop's thread as well, after one checkpoint, because a hop to a thread would cost more
than the read.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import apsw
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from midrun.codec.hash_chain import HashChain
from midrun.core.entries import Record
from midrun.core.ids import SEQ_ZERO, Micros, RunId, Seq
from midrun.core.values import Phase
from midrun.errors import StoreClosed
from midrun.ports.audit import AuditEnd, AuditEntry, AuditLine
from midrun.ports.environment import Clock, read_wall_clock
from midrun.ports.follower_cursors import FollowerCursors
from midrun.ports.push_targets import PushTargets
from midrun.ports.relay import Relay
from midrun.ports.store import (
    ALL_RUNS,
    AppendResult,
    Change,
    DeletedRuns,
    Durability,
    EndedQuery,
    HaltRecord,
    OwnerUsage,
    Page,
    RunGroup,
    RunQuery,
    RunRow,
    Snapshot,
    Tombstone,
    Visibility,
)
from midrun.stores import validation
from midrun.stores.audit import build_audit, encode_audit
from midrun.stores.deletion import check_delete
from midrun.stores.encryption import UNENCRYPTED, PayloadCipher
from midrun.stores.operations import INLINE_MAX_BYTES, JournalStore, JournalWrite
from midrun.stores.sqlite import operations, queries, reader
from midrun.stores.sqlite.change_poller import ChangePoller
from midrun.stores.sqlite.connection import open_file, register_key
from midrun.stores.sqlite.cursors import SqliteFollowerCursors, SqlitePushTargets
from midrun.stores.sqlite.reader import LineAndHash, ReadConnection
from midrun.stores.sqlite.relay import SocketRelay
from midrun.stores.sqlite.row_cache import select_halts
from midrun.stores.sqlite.writer import SqliteWriter
from midrun.stores.watchers import Watchers

BUSY_TIMEOUT: Final = timedelta(seconds=5)
"""The longest wait for the write lock of another process."""


class SqliteStore(JournalStore):
    """Keep runs in one file that any number of processes of a machine may share.

    The constructor opens the file, or creates it with mode 0600. With `durability="relaxed"` a
    power failure may lose the newest entries; a crash of the process never does. `busy` is the
    longest wait for other writers before `StoreBusy`. With a `key` the hash chain of every
    journal is keyed. The file has to be opened with the same key ever after. `cipher` encrypts
    the content.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "full",
        clock: Clock = read_wall_clock,
        busy: timedelta = BUSY_TIMEOUT,
        key: bytes | None = None,
        cipher: PayloadCipher = UNENCRYPTED,
    ) -> None:
        self.chain = HashChain(key)
        self.cipher = cipher
        self.path = Path(path).absolute()  # a later chdir must not change the file
        self.name = str(self.path)
        self._clock = clock
        busy_ms = busy // timedelta(milliseconds=1)
        self._watchers = Watchers()
        db = open_file(
            self.path, durability=durability, busy_ms=busy_ms, key_id=self.chain.key_id
        )
        try:
            self.missing_keys = register_key(db, self.path, cipher)
        except BaseException:
            db.close()
            raise
        self._writer = SqliteWriter(db, self.path, busy_ms=busy_ms, watchers=self._watchers)
        # Two connections for reading, so that a long read in a thread does not hold the lock
        # that a short read in the event loop needs.
        self._inline_reader = ReadConnection(self.path, busy_ms=busy_ms)
        self._thread_reader = ReadConnection(self.path, busy_ms=busy_ms)
        self._change_poller = ChangePoller(
            self.path, busy_ms=busy_ms, notify=self._watchers.notify
        )
        self._closed = False

    def _write(self, operation: JournalWrite) -> Awaitable[AppendResult]:
        request = operations.WriteJournal(operation, self._clock)
        return self._writer.write(request, inline=not operation.is_large)

    async def read(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[Record]:
        await checkpoint()
        # The range is fixed first, from the run's row. Entries are never changed, and removed
        # only with their run, so reading them later, through either connection, gives the same
        # consistent view, or `RunErased`.
        tail = self._inline_reader.read_inline(
            lambda db: reader.find_tail(db, run, after, limit)
        )

        def read_records(db: apsw.Connection) -> Sequence[Record]:
            return tail.read_records(db, self.chain, self.cipher)

        # A hop to a thread costs more than a short read. A long one would block the event loop,
        # so its length is measured first, without reading the lines.
        if self._inline_reader.read_inline(lambda db: reader.is_small_tail(db, tail)):
            return self._inline_reader.read_inline(read_records)
        return await self._thread_reader.read_in_thread(read_records)

    async def read_lines(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[LineAndHash]:
        await checkpoint()
        tail = self._inline_reader.read_inline(
            lambda db: reader.find_tail(db, run, after, limit)
        )
        return await self._thread_reader.read_in_thread(tail.read_pairs)

    async def read_file(self, run: RunId, file_hash: str) -> bytes:
        return await self._thread_reader.read_in_thread(
            lambda db: self.cipher.decrypt_file(
                run, file_hash, reader.read_file(db, run, file_hash)
            )
        )

    async def get_row(self, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
        await checkpoint()
        row = self._inline_reader.read_inline(lambda db: reader.read_row(db, run, seen_by))
        return self.cipher.decrypt_row(row)

    async def get_indexed_row(self, run: RunId) -> tuple[RunRow, Mapping[str, object]]:
        """Return the row of `run` and its indexed columns by name."""
        await checkpoint()
        row, index = self._inline_reader.read_inline(
            lambda db: reader.read_indexed_row(db, run)
        )
        return self.cipher.decrypt_row(row), index

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        validation.check_snapshot(snapshot)
        sealed = validation.encode_stored_snapshot(self.chain, self.cipher, run, snapshot)
        request = operations.SaveSnapshot(run=run, snapshot=sealed)
        await self._writer.write(request, inline=len(sealed.body) <= INLINE_MAX_BYTES)

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        await checkpoint()
        read = partial(reader.read_snapshot, run=run)
        # The length is read first, without the body: a large snapshot goes to the thread.
        quick = (
            self._inline_reader.read_inline(partial(reader.measure_snapshot, run=run))
            <= INLINE_MAX_BYTES
        )
        found = (
            self._inline_reader.read_inline(read)
            if quick
            else await self._thread_reader.read_in_thread(read)
        )
        if found is None:
            return None
        return validation.open_stored_snapshot(self.chain, self.cipher, run, found)

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        ttl_micros = validation.check_heartbeat(holder, ttl, lag)
        request = operations.RecordHeartbeat(
            holder=holder, ttl_micros=ttl_micros, lag_s=lag, clock=self._clock
        )
        await self._writer.write(request)

    async def release_leases(self, holder: str) -> None:
        validation.check_holder(holder)
        await self._writer.write(operations.ReleaseHolder(holder=holder))

    async def drop_leases(self) -> None:
        await self._writer.write(operations.DropLeases(), inline=False)

    async def list_holders(self) -> Mapping[str, float]:
        await checkpoint()
        return self._inline_reader.read_inline(
            lambda db: reader.find_live_holders(db, self._clock())
        )

    async def list_runs(self, query: RunQuery) -> Page[RunRow]:
        page = await self._thread_reader.read_in_thread(lambda db: reader.read_page(db, query))
        return replace(page, items=tuple(map(self.cipher.decrypt_row, page.items)))

    async def get_usage(
        self, owner: str, *, since: Micros, sizes: bool = True, tenant: str = ""
    ) -> OwnerUsage:
        validation.check_visibility(Visibility(tenant=tenant, owner=owner))
        return await self._thread_reader.read_in_thread(
            lambda db: reader.read_usage(db, tenant, owner, since, sizes=sizes)
        )

    async def count_runs_by_phase(self, tenant: str | None = None) -> Mapping[Phase, int]:
        validation.check_text("tenant", tenant or "")
        return await self._thread_reader.read_in_thread(
            lambda db: reader.count_phases(db, tenant)
        )

    async def count_open_runs(self) -> Sequence[RunGroup]:
        return await self._thread_reader.read_in_thread(reader.group_open_runs)

    async def list_drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        limit, now = validation.clamp_limit(limit), self._clock()
        validation.check_agent_names(agents)
        return await self._thread_reader.read_in_thread(
            lambda db: reader.find_drivable(db, now, limit, agents)
        )

    async def list_due(self, *, limit: int) -> Sequence[RunId]:
        limit, now = validation.clamp_limit(limit), self._clock()
        return await self._thread_reader.read_in_thread(
            lambda db: reader.find_due(db, now, limit)
        )

    async def set_halt(self, halt: HaltRecord) -> None:
        validation.check_halt(halt)
        request = operations.SetHalt(halt=halt, clock=self._clock)
        await self._writer.write(request)

    async def remove_halt(self, scope: str, tenant: str | None = None) -> bool:
        validation.check_text("scope", scope)
        validation.check_text("tenant", tenant or "")
        return await self._writer.write(operations.RemoveHalt(scope=scope, tenant=tenant))

    async def list_halts(self, tenant: str | None = None) -> Sequence[HaltRecord]:
        validation.check_text("tenant", tenant or "")
        await checkpoint()
        return self._inline_reader.read_inline(lambda db: select_halts(db, tenant))

    async def append_audit(self, entry: AuditEntry) -> None:
        request = operations.AppendAudit(
            body=encode_audit(entry), tenant=entry.tenant, chain=self.chain, clock=self._clock
        )
        await self._writer.write(request)

    async def list_audit(
        self, *, since: Micros, until: Micros, after: int, limit: int, tenant: str | None = None
    ) -> Sequence[tuple[int, AuditEntry]]:
        bound = (after, since, until, validation.clamp_limit(limit))
        return await self._thread_reader.read_in_thread(
            lambda db: [
                (number, build_audit(at, body))
                for number, at, body in (
                    db.execute(queries.AUDIT, bound)
                    if tenant is None
                    else db.execute(queries.AUDIT_OF_TENANT, (*bound, tenant))
                )
            ]
        )

    async def read_audit_lines(self, *, after: int, limit: int) -> Sequence[AuditLine]:
        limit = validation.clamp_limit(limit)
        return await self._thread_reader.read_in_thread(
            lambda db: reader.select_audit_lines(db, after, limit)
        )

    async def read_audit_end(self) -> AuditEnd:
        return await self._thread_reader.read_in_thread(reader.select_audit_end)

    async def list_ended(self, query: EndedQuery) -> Page[RunRow]:
        page = await self._thread_reader.read_in_thread(lambda db: reader.read_ended(db, query))
        return replace(page, items=tuple(map(self.cipher.decrypt_row, page.items)))

    async def delete_runs(
        self, runs: Sequence[RunId], *, by: str, reason: str = "", tenant: str | None = None
    ) -> DeletedRuns:
        check_delete(runs, by, reason)
        request = operations.DeleteRuns(
            runs=tuple(runs),
            by=by,
            reason=reason,
            tenant=tenant,
            chain=self.chain,
            clock=self._clock,
        )
        return await self._writer.write(request, inline=False)

    async def remove_leftovers(self) -> bool:
        # In the writer thread, and as a group of its own: no append waits for more than this.
        return await self._writer.write(operations.RemoveLeftovers(), inline=False)

    async def get_tombstone(self, run: RunId, tenant: str | None = None) -> Tombstone:
        await checkpoint()
        return self._inline_reader.read_inline(
            lambda db: reader.read_tombstone(db, run, tenant)
        )

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[Change]]:
        await checkpoint()
        if self._closed:
            raise StoreClosed(str(self.path))
        with self._watchers.subscribe() as watch, ExitStack() as stack:
            # The watch is subscribed before the poller starts. A change in between is then
            # queued in the watch, and none is lost.
            self._change_poller.add_listener()
            stack.callback(self._change_poller.remove_listener)
            yield watch

    def follower_cursors(self) -> FollowerCursors:
        return SqliteFollowerCursors(self._writer, self._thread_reader, self._clock)

    def push_targets(self) -> PushTargets:
        return SqlitePushTargets(self._writer, self._thread_reader, self.cipher)

    def relay(self) -> Relay:
        return SocketRelay(self.path)

    async def close(self) -> None:
        self._closed = True
        # The writer first: the requests it still commits are reported to watches that are open.
        await self._writer.close()
        self._watchers.end_watches()
        self._inline_reader.close()
        self._thread_reader.close()
