"""`PostgresStore`: the store port on a Postgres database.

A psycopg connection belongs to one event loop. So the store keeps its connections per loop
(`_LoopResources`) and creates them when a loop first uses it. The row cache, the watchers and
the estimate of the server's time are shared by all loops of the process.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from threading import Lock
from typing import Final, Self

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from midrun.codec.hash_chain import HashChain
from midrun.core.entries import Record
from midrun.core.ids import SEQ_ZERO, Micros, RunId, Seq
from midrun.core.values import Phase
from midrun.errors import (
    FileMissing,
    HaltInForce,
    RunNotFound,
    StaleEpoch,
    StoreClosed,
    StoreError,
    StoreUnreachable,
)
from midrun.ports.audit import AuditEnd, AuditEntry, AuditLine
from midrun.ports.environment import Clock
from midrun.ports.follower_cursors import FollowerCursors
from midrun.ports.platform import read_boot_clock
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
from midrun.stores.audit import (
    build_audit,
    encode_audit,
    find_audit_end,
    make_audit_line,
)
from midrun.stores.chunks import SHARED_MIN_BYTES, split_line
from midrun.stores.cross_thread import Loop
from midrun.stores.deletion import (
    LEFTOVERS_MAX_ENTRIES,
    build_tombstone,
    check_delete,
    make_tombstone,
)
from midrun.stores.encryption import UNENCRYPTED, PayloadCipher
from midrun.stores.operations import (
    INLINE_MAX_BYTES,
    INLINE_MAX_ENTRIES,
    CreateRunWrite,
    JournalStore,
    JournalWrite,
    TakeLeaseWrite,
)
from midrun.stores.postgres import queries, reader
from midrun.stores.postgres.connection import (
    AnswerLost,
    PostgresAddress,
    PostgresConnection,
    ServerClock,
    make_unreachable_error,
)
from midrun.stores.postgres.listener import ChangeListener
from midrun.stores.postgres.operations import check_no_nul, check_storable_head
from midrun.stores.postgres.pool import (
    RECONNECT_MAX_S,
    RETRY_PAUSE_MAX_S,
    RETRY_PAUSE_S,
    ConnectionPool,
)
from midrun.stores.postgres.reader import (
    JournalRange,
    LineAndHash,
    PostgresFollowerCursors,
    PostgresPushTargets,
)
from midrun.stores.postgres.relay import PostgresRelay
from midrun.stores.postgres.setup import prepare_store
from midrun.stores.postgres.writer import (
    ChunksLost,
    PostgresWriter,
    RecentRows,
    read_missing_error,
    read_tombstone,
)
from midrun.stores.watchers import HALTS_CHANGED, Watchers

WRITE_TIMEOUT: Final = timedelta(seconds=1)
"""The longest time the server may work on one write.

It is less than the safety margin of a lease of six seconds. So a write that was sent while the
process could rely on its lease is decided before the lease expires.
"""

READ_TIMEOUT_S: Final = 10.0
"""The longest time the server may work on one read."""

FILE_WRITE_ATTEMPTS: Final = 3
"""How often a file is written whose body another process removes at the same time."""

READ_POOL_SIZE: Final = 4
"""The number of connections for reads in each event loop, besides the one for writes."""


class _LoopResources:
    """The connections and the writer of one event loop."""

    def __init__(self, store: "PostgresStore") -> None:
        address, time = store.address, store.server_clock
        self.read_pool = ConnectionPool(
            address, time, size=READ_POOL_SIZE, timeout_s=READ_TIMEOUT_S
        )
        self._write_pool = ConnectionPool(
            address, time, size=1, timeout_s=address.write_timeout_s
        )
        self.writer = PostgresWriter(
            self._write_pool, self.read_pool, store.rows, store.watchers, server_clock=time
        )

    async def close(self) -> None:
        """Wait for pending writes and reads, then close the connections."""
        with anyio.CancelScope(shield=True):
            await self.writer.close()
            await self._write_pool.close()
            await self.read_pool.close()

    def close_at_once(self) -> None:
        """Close the connections at once: their event loop is closed or not the caller's."""
        self._write_pool.close_at_once()
        self.read_pool.close_at_once()


def _to_wire(tombstone: Tombstone) -> dict[str, object]:
    """Return the fields of a tombstone as `midrun_delete` takes them."""
    return {
        "run": tombstone.run,
        "seq": tombstone.seq,
        "hash": tombstone.hash.hex(),
        "by": tombstone.by,
        "at": tombstone.at,
        "reason": tombstone.reason,
        "proof": tombstone.proof.hex(),
    }


class PostgresStore(JournalStore):
    """Keep runs in a Postgres database; `open` makes an instance.

    The time is the server's unless a `clock` is given, which is for tests: all processes that
    share a store must agree on the time. With `durability="relaxed"` a crash of the server may
    lose the newest entries; a crash of a client never does. With a `key` the hash chain of
    every journal is keyed. The store has to be opened with the same key ever after. `cipher`
    encrypts the content.
    """

    def __init__(
        self,
        address: PostgresAddress,
        *,
        clock: Clock | None = None,
        key: bytes | None = None,
        cipher: PayloadCipher = UNENCRYPTED,
    ) -> None:
        self.address = address
        self.name = address.name
        self.chain = HashChain(key)
        self.cipher = cipher
        self.server_clock = ServerClock(clock)
        self.rows = RecentRows()
        self.watchers = Watchers()
        self._resources_by_loop: dict[Loop, _LoopResources] = {}
        self._lock = Lock()
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        durability: Durability = "full",
        clock: Clock | None = None,
        write_timeout: timedelta = WRITE_TIMEOUT,
        key: bytes | None = None,
        cipher: PayloadCipher = UNENCRYPTED,
    ) -> Self:
        """Connect and migrate the schema; wait for a server that is starting.

        `write_timeout` is the longest time for one write before it is `StoreBusy`.

        Raises:
            StoreUnreachable: no answer, or the server cannot keep a store.
            StoreForeign: a newer midrun has migrated it.
            StoreKeyRefused: its chains are made with another key, or with none.
            StoreEncrypted: it is encrypted with other keys than those of `cipher`.
        """
        # A container often starts before its database accepts connections: retry with longer
        # and longer pauses. Only a lost answer is retried; a refusal (password, version, key)
        # is final and raised at once.
        kid = HashChain(key).key_id
        address = PostgresAddress(url, durability=durability, write_timeout=write_timeout)
        deadline, pause_s = read_boot_clock() + RECONNECT_MAX_S, RETRY_PAUSE_S
        while True:
            try:
                prepared = await prepare_store(address, kid, cipher)
            except AnswerLost as lost:
                if read_boot_clock() + pause_s > deadline:
                    raise make_unreachable_error(address, lost) from lost
            else:
                store = cls(address, clock=clock, key=key, cipher=cipher)
                store.missing_keys = prepared.missing_keys
                store.server_clock.observe(prepared.now)
                return store
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_PAUSE_MAX_S)

    def clock(self) -> Micros:
        return self.server_clock.estimate_now()

    # ── writing ───────────────────────────────────────────────────────────────────────────

    async def _write(self, operation: JournalWrite) -> AppendResult:
        validation.check_run_id(operation.run)
        if operation.stored_head is not None:
            check_storable_head(operation.stored_head.head)
        if isinstance(operation, TakeLeaseWrite):
            check_no_nul("holder", operation.holder)
        bodies = operation.files.bodies
        for attempts_left in reversed(range(FILE_WRITE_ATTEMPTS)):
            if isinstance(operation, CreateRunWrite):
                await self._store_chunks(operation.first_body)
            await self._store_files(bodies)
            try:
                return await self._resources.writer.write(operation)
            except FileMissing as missing:
                # The last other run with this file was deleted in between, and the body went
                # with it: write it again.
                if missing.hash not in bodies or not attempts_left:
                    raise
            except ChunksLost:  # in the same way
                if not attempts_left:
                    problem = "the history was deleted while it was written; try again"
                    raise StoreUnreachable(self.address.name, problem) from None
            except (HaltInForce, RunNotFound, StaleEpoch):
                await self._remove_unused_files(bodies)
                raise
        raise AssertionError("unreachable")

    async def _store_files(self, bodies: Mapping[str, bytes]) -> None:
        """Store the bodies of files, each in a transaction of its own.

        They are too long for the transaction of the entries, which has locks to hold. Entries
        are appended only if the bodies are there. A process that dies in between leaves bodies
        that no run names. Those of a refused write are removed.
        """
        for key, body in bodies.items():
            values = {"hash": bytes.fromhex(key), "body": body}
            await self._resources.read_pool.execute(queries.ADD_FILE, values)

    async def _remove_unused_files(self, bodies: Mapping[str, bytes]) -> None:
        """Remove the bodies of a write that was refused for good, as far as no run names them.

        Otherwise the bytes would stay after their run was deleted. Another writer that is about
        to name one of them stores it again, see `_write`.
        """
        if bodies:
            hashes = [bytes.fromhex(key) for key in bodies]
            with suppress(StoreError):  # a run has begun to name one of them at this moment
                await self._resources.read_pool.execute(
                    queries.DELETE_UNUSED_FILES, {"hashes": hashes}
                )

    async def _store_chunks(self, first: bytes) -> None:
        """Store the chunks of the first entry of a new run."""
        # Chunks are committed before the run that refers to them. If that run is then refused,
        # its chunks stay unused until another run with the same history shares them.
        if len(first) < SHARED_MIN_BYTES:
            return
        _, chunks = await anyio.to_thread.run_sync(split_line, first)
        if chunks:
            values = {"hashes": list(chunks), "bodies": list(chunks.values())}
            await self._resources.read_pool.execute(queries.ADD_CHUNKS, values)

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        validation.check_snapshot(snapshot)
        validation.check_run_id(run)
        sealed = validation.encode_stored_snapshot(self.chain, self.cipher, run, snapshot)
        # Not through the writer: a snapshot is a cache, and no append should wait for it.
        values = {"run": run, "seq": snapshot.seq, "hash": snapshot.hash}
        values |= {"body": sealed.body}
        if not await self._resources.read_pool.execute(queries.SAVE_SNAPSHOT, values):
            raise await read_missing_error(self._resources.read_pool, run)

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        # Not through the writer either: a heartbeat that waits behind a queue of appends could
        # come too late, and the worker would lose its leases because it is busy.
        ttl_micros = validation.check_heartbeat(holder, ttl, lag)
        check_no_nul("holder", holder)
        values = {
            "holder": holder,
            "ttl": ttl_micros,
            "lag": lag,
            "now": self.server_clock.get_override(),
        }
        await self._resources.read_pool.execute(queries.UPSERT_HEARTBEAT, values)

    async def release_leases(self, holder: str) -> None:
        validation.check_holder(holder)
        check_no_nul("holder", holder)
        await self._resources.read_pool.execute(queries.DELETE_HOLDER, {"holder": holder})

    async def set_halt(self, halt: HaltRecord) -> None:
        validation.check_halt(halt)
        for name in ("scope", "by", "reason"):
            check_no_nul(name, getattr(halt, name))
        check_no_nul("tenant", halt.tenant or "")
        values = {"scope": halt.scope, "by": halt.by, "reason": halt.reason}
        values |= {"tenant": validation.encode_halt_tenant(halt.tenant)}
        await self._resources.read_pool.execute(
            queries.INSERT_HALT, values | {"now": self.server_clock.get_override()}
        )
        self.watchers.notify([(HALTS_CHANGED, SEQ_ZERO)])

    async def delete_runs(
        self, runs: Sequence[RunId], *, by: str, reason: str = "", tenant: str | None = None
    ) -> DeletedRuns:
        check_delete(runs, by, reason)
        for name, text in (("by", by), ("reason", reason), ("tenant", tenant or "")):
            check_no_nul(name, text)
        for run in runs:
            validation.check_run_id(run)
        pool, left = self._resources.read_pool, list(dict.fromkeys(runs))
        tombstones: list[Tombstone] = []
        refusals: list[StoreError] = []
        while left:
            # The tombstone has the last hash of the run, so its row is read first. The server
            # leaves a family alone whose rows have changed since; that one is read again.
            families, refused = await reader.read_families(pool, left, tenant)
            refusals += refused
            made = [
                [
                    make_tombstone(self.chain, row, by=by, at=self.clock(), reason=reason)
                    for row in family
                ]
                for family in families
            ]
            deleted = await self._send_tombstones(made)
            tombstones += [t for family in made if family[0].run in deleted for t in family]
            left = [family[0].run for family in made if family[0].run not in deleted]
        self.watchers.notify([(t.run, Seq(t.seq + 1)) for t in tombstones])
        return DeletedRuns(tombstones=tuple(tombstones), refusals=tuple(refusals))

    async def _send_tombstones(self, families: Sequence[Sequence[Tombstone]]) -> set[RunId]:
        """Have the server delete `families`; return the runs that it has deleted."""
        if not families:
            return set()
        payload = msgspec.json.encode([[_to_wire(t) for t in family] for family in families])
        values = {"families": payload.decode(), "now": self.server_clock.get_override()}

        async def delete_once(connection: PostgresConnection, lost_count: int) -> set[RunId]:
            deleted = {run for (run,) in await connection.execute(queries.DELETE_RUNS, values)}
            # If an answer was lost, the first attempt has deleted them, perhaps. Its tombstones
            # are recognized by their proof.
            for tombstone in (t for family in families for t in family if lost_count):
                stored = await connection.execute(queries.TOMBSTONE, {"run": tombstone.run})
                if stored and build_tombstone(*stored[0]) == tombstone:
                    deleted.add(tombstone.run)
            return deleted

        return await self._resources.read_pool.run_with_retry(delete_once)

    async def remove_leftovers(self) -> bool:
        values = {"max_entries": LEFTOVERS_MAX_ENTRIES}
        ((left,),) = await self._resources.read_pool.execute(queries.REMOVE_LEFTOVERS, values)
        return bool(left)

    async def remove_halt(self, scope: str, tenant: str | None = None) -> bool:
        for name, text in (("scope", scope), ("tenant", tenant or "")):
            validation.check_text(name, text)
            check_no_nul(name, text)
        values = {"scope": scope, "now": self.server_clock.get_override()}
        values |= {"tenant": validation.encode_halt_tenant(tenant)}

        async def delete_once(connection: PostgresConnection, lost_count: int) -> bool:
            ((lifted,),) = await connection.execute(queries.DELETE_HALT, values)
            # If an answer was lost, the first attempt has probably removed the halt.
            return bool(lifted) or lost_count > 0

        lifted = await self._resources.read_pool.run_with_retry(delete_once)
        self.watchers.notify([(HALTS_CHANGED, SEQ_ZERO)])
        return lifted

    async def append_audit(self, entry: AuditEntry) -> None:
        body, pool = encode_audit(entry), self._resources.read_pool
        line: AuditLine | None = None
        while True:
            now, stored, last = await self._read_audit_end()
            if line is not None and last == (line.number, line.hash):
                return  # it was added, and only the answer was lost
            end = find_audit_end(self.chain, stored, last)
            line, end = make_audit_line(self.chain, end, now, entry.tenant, body)
            values = {"number": line.number, "at": line.at, "tenant": line.tenant}
            values |= {"body": body, "hash": line.hash, "seal": end.seal}
            if await pool.execute(queries.ADD_AUDIT, values):
                return

    async def _read_audit_end(self) -> tuple[Micros, AuditEnd, tuple[int, bytes] | None]:
        """Return the server's time, the stored end of the audit log, and its last line."""
        values = {"now": self.server_clock.get_override()}
        rows = await self._resources.read_pool.execute(queries.AUDIT_END, values)
        ((now, number, link, seal, last, last_link),) = rows
        end = AuditEnd() if number is None else AuditEnd(number=number, hash=link, seal=seal)
        return now, end, None if last is None else (last, last_link)

    async def read_audit_end(self) -> AuditEnd:
        _, end, _ = await self._read_audit_end()
        return end

    async def read_audit_lines(self, *, after: int, limit: int) -> Sequence[AuditLine]:
        values = {"after": after, "limit": validation.clamp_limit(limit)}
        return [
            AuditLine(number=number, at=at, tenant=tenant, body=body, hash=link)
            for number, at, tenant, body, link in await self._resources.read_pool.execute(
                queries.AUDIT_LINES, values
            )
        ]

    async def list_audit(
        self, *, since: Micros, until: Micros, after: int, limit: int, tenant: str | None = None
    ) -> Sequence[tuple[int, AuditEntry]]:
        limit = validation.clamp_limit(limit)
        values: dict[str, object] = {"since": since, "until": until, "after": after}
        values |= {"limit": limit, "tenant": tenant}
        return [
            (number, build_audit(at, body))
            for number, at, body in await self._resources.read_pool.execute(
                queries.AUDIT, values
            )
        ]

    # ── reading ───────────────────────────────────────────────────────────────────────────

    async def read(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[Record]:
        journal_range = await self._read_range(run, after, limit)
        if (
            len(journal_range) <= INLINE_MAX_ENTRIES
            and journal_range.total_bytes <= INLINE_MAX_BYTES
        ):
            return journal_range.decode_records(self.chain, self.cipher)
        return await anyio.to_thread.run_sync(
            journal_range.decode_records, self.chain, self.cipher
        )

    async def read_lines(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[LineAndHash]:
        return (await self._read_range(run, after, limit)).pairs

    async def _read_range(self, run: RunId, after: Seq, limit: int | None) -> JournalRange:
        validation.check_read_range(after, limit)
        validation.check_run_id(run)
        journal_range = JournalRange(run, after)
        # Each read refreshes the row cache: the append that follows it needs no other read.
        self.rows.put(await journal_range.read(self._resources.read_pool, limit))
        return journal_range

    async def read_file(self, run: RunId, file_hash: str) -> bytes:
        stored = await reader.read_file(self._resources.read_pool, run, file_hash)
        if not self.cipher:
            return self.cipher.decrypt_file(run, file_hash, stored)
        return await anyio.to_thread.run_sync(self.cipher.decrypt_file, run, file_hash, stored)

    async def get_row(self, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
        row = await reader.read_row(self._resources.read_pool, run, seen_by)
        return self.cipher.decrypt_row(row)

    async def get_indexed_row(self, run: RunId) -> tuple[RunRow, Mapping[str, object]]:
        """Return the row of `run` and its indexed columns by name."""
        row, index = await reader.read_indexed_row(self._resources.read_pool, run)
        return self.cipher.decrypt_row(row), index

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        found = await reader.read_snapshot(self._resources.read_pool, run)
        if found is None:
            return None
        return validation.open_stored_snapshot(self.chain, self.cipher, run, found)

    async def drop_leases(self) -> None:
        values = {"holder": validation.DROPPED_HOLDER}
        await self._resources.read_pool.execute(queries.DROP_LEASES, values)

    async def list_holders(self) -> Mapping[str, float]:
        rows = await self._resources.read_pool.execute(
            queries.HOLDERS, {"now": self.server_clock.get_override()}
        )
        return dict(rows)

    async def list_runs(self, query: RunQuery) -> Page[RunRow]:
        page = await reader.read_page(self._resources.read_pool, query)
        return replace(page, items=tuple(map(self.cipher.decrypt_row, page.items)))

    async def get_usage(
        self, owner: str, *, since: Micros, sizes: bool = True, tenant: str = ""
    ) -> OwnerUsage:
        validation.check_visibility(Visibility(tenant=tenant, owner=owner))
        pool = self._resources.read_pool
        return await reader.read_usage(pool, tenant, owner, since, sizes=sizes)

    async def count_runs_by_phase(self, tenant: str | None = None) -> Mapping[Phase, int]:
        validation.check_text("tenant", tenant or "")
        check_no_nul("tenant", tenant or "")
        return await reader.count_phases(self._resources.read_pool, tenant)

    async def count_open_runs(self) -> Sequence[RunGroup]:
        return await reader.group_open_runs(self._resources.read_pool)

    async def list_drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        validation.check_agent_names(agents)
        values = {
            "limit": validation.clamp_limit(limit),
            "agents": list(agents) or None,
            "now": self.server_clock.get_override(),
        }
        return [
            run for (run,) in await self._resources.read_pool.execute(queries.DRIVABLE, values)
        ]

    async def list_due(self, *, limit: int) -> Sequence[RunId]:
        values = {
            "limit": validation.clamp_limit(limit),
            "now": self.server_clock.get_override(),
        }
        return [run for (run,) in await self._resources.read_pool.execute(queries.DUE, values)]

    async def list_ended(self, query: EndedQuery) -> Page[RunRow]:
        page = await reader.read_ended(self._resources.read_pool, query)
        return replace(page, items=tuple(map(self.cipher.decrypt_row, page.items)))

    async def get_tombstone(self, run: RunId, tenant: str | None = None) -> Tombstone:
        validation.check_run_id(run)
        tombstone = await read_tombstone(self._resources.read_pool, run)
        if tombstone is None or tenant not in {None, tombstone.tenant}:
            raise RunNotFound(run)
        return tombstone

    async def list_halts(self, tenant: str | None = None) -> Sequence[HaltRecord]:
        validation.check_text("tenant", tenant or "")
        check_no_nul("tenant", tenant or "")
        return await reader.read_halts(self._resources.read_pool, tenant)

    # ── watching ──────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[Change]]:
        await checkpoint()
        if self._closed:
            raise StoreClosed(self.address.name)
        # The watch is subscribed before the listener starts. `tasks.start` returns once every
        # later commit is reported, so no change is lost in between.
        with self.watchers.subscribe() as watch:
            async with anyio.create_task_group() as tasks:
                await tasks.start(
                    ChangeListener(self.address, self.watchers).listen_until_cancelled
                )
                try:
                    yield watch
                finally:
                    tasks.cancel_scope.cancel()

    def follower_cursors(self) -> FollowerCursors:
        return PostgresFollowerCursors(self._resources.read_pool, self.server_clock)

    def push_targets(self) -> PushTargets:
        return PostgresPushTargets(self._resources.read_pool, self.cipher)

    def relay(self) -> Relay:
        return PostgresRelay(self.address, self._resources.read_pool, self.cipher)

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            resources, self._resources_by_loop = self._resources_by_loop, {}
        # Connections of other event loops cannot be awaited from here; they are closed at once.
        own = resources.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.close()
        for other in resources.values():
            other.close_at_once()
        self.watchers.end_watches()

    @property
    def _resources(self) -> _LoopResources:
        """The resources of the running event loop, made at its first use."""
        loop = asyncio.get_running_loop()
        resources = self._resources_by_loop.get(loop)
        if resources is None:
            with self._lock:
                if self._closed:
                    raise StoreClosed(self.address.name)
                # Tests and scripts open one event loop after the other. The connections of
                # closed loops are dropped here, because no code runs when a loop ends.
                for closed_loop in [
                    other for other in self._resources_by_loop if other.is_closed()
                ]:
                    self._resources_by_loop.pop(closed_loop).close_at_once()
                resources = self._resources_by_loop[loop] = _LoopResources(self)
        return resources
