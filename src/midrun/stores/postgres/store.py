"""`PostgresStore`: the store port on a Postgres database.

A psycopg connection belongs to one event loop. So the store keeps its connections per loop
(`_LoopResources`) and creates them when a loop first uses it. The row cache, the watchers and
the estimate of the server's time are shared by all loops of the process.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Final, Self

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from midrun.codec.hash_chain import Chain
from midrun.codec.strict_json import DEFAULT, Limits
from midrun.core.entries import Entry, Record, RunImported
from midrun.core.ids import START, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import RunNotFound, StoreClosed, TooLarge
from midrun.ports.environment import Clock, boottime
from midrun.ports.follower_cursors import Marks
from midrun.ports.relay import Relay
from midrun.ports.store import (
    Appended,
    Change,
    Durability,
    Halt,
    Lease,
    Page,
    Query,
    RunRow,
    Snapshot,
    Usage,
)
from midrun.stores import validation
from midrun.stores.chunks import SHARED_MIN_BYTES, split_line
from midrun.stores.cross_thread import Loop
from midrun.stores.postgres import queries, reader
from midrun.stores.postgres.connection import Address, Link, Lost, unreachable
from midrun.stores.postgres.cursors import PostgresMarks
from midrun.stores.postgres.listener import Notice
from midrun.stores.postgres.operations import Append, Create, Take, check_nul, storable
from midrun.stores.postgres.pool import BACK_S, PAUSE_MAX_S, PAUSE_S, Links
from midrun.stores.postgres.reader import Pair, Stretch
from midrun.stores.postgres.relay import PostgresRelay
from midrun.stores.postgres.server_clock import StoreTime
from midrun.stores.postgres.setup import prepare
from midrun.stores.postgres.writer import Standings, Writer
from midrun.stores.validation import adopted
from midrun.stores.watchers import LATCHES, Watchers

PATIENCE: Final = timedelta(seconds=1)
"""The longest time the server may work on one write.

It is less than the safety margin of a lease of six seconds. So a write that was sent while the
process could rely on its lease is decided before the lease expires.
"""

READ_S: Final = 10.0
"""The longest time the server may work on one read."""

READERS: Final = 4
"""The number of connections for reads in each event loop, besides the one for writes."""

QUICK: Final = Limits(size=32 * 1024)
"""Size limit of an entry that is encoded in the event loop's thread."""

QUICK_MAX: Final = 64
"""At most this many entries are encoded or decoded there; a thread would cost more."""

QUICK_BYTES: Final = 256 * 1024
"""At most this many bytes are decoded there."""


class _Ends:
    """The connections and the writer of one event loop."""

    def __init__(self, store: "PostgresStore") -> None:
        address, time = store.address, store.time
        self.links = Links(address, time, size=READERS, patience_s=READ_S)
        self._writes = Links(address, time, size=1, patience_s=address.patience_s)
        self.writer = Writer(self._writes, store.standings, store.watchers, time=time)

    async def close(self) -> None:
        """Wait for pending writes and reads, then close the connections."""
        with anyio.CancelScope(shield=True):
            await self.writer.close()
            await self._writes.close()
            await self.links.close()

    def abandon(self) -> None:
        """Close the connections at once: their event loop is closed or not the caller's."""
        self._writes.abandon()
        self.links.abandon()


class PostgresStore:
    """Keep runs in a Postgres database; `open` makes an instance.

    The time is the server's unless a `clock` is given, which is for tests: all processes that
    share a store must agree on the time. With `durability="relaxed"` a crash of the server may
    lose the newest entries; a crash of a client never does. With a `key` the hash chain of
    every journal is keyed. The store has to be opened with the same key ever after.
    """

    def __init__(
        self, address: Address, *, clock: Clock | None = None, key: bytes | None = None
    ) -> None:
        self.address = address
        self.chain = Chain(key)
        self.time = StoreTime(clock)
        self.standings = Standings()
        self.watchers = Watchers()
        self._ends: dict[Loop, _Ends] = {}
        self._lock = Lock()
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        durability: Durability = "full",
        clock: Clock | None = None,
        patience: timedelta = PATIENCE,
        key: bytes | None = None,
    ) -> Self:
        """Connect and migrate the schema; wait for a server that is starting.

        `write_timeout` is the longest time for one write before it is `StoreBusy`.

        Raises:
            StoreUnreachable: no answer, or the server cannot keep a store.
            StoreForeign: a newer midrun has migrated it.
            StoreKeyRefused: its chains are made with another key, or with none.
        """
        kid = Chain(key).kid
        address = Address(url, durability=durability, patience=patience)
        deadline, pause_s = boottime() + BACK_S, PAUSE_S
        while True:
            try:
                now = await prepare(address, kid)
            except Lost as lost:
                if boottime() + pause_s > deadline:
                    raise unreachable(address, lost) from lost
            else:
                store = cls(address, clock=clock, key=key)
                store.time.said(now)
                return store
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def clock(self) -> Micros:
        return self.time.clock()

    # ── writing ───────────────────────────────────────────────────────────────────────────

    async def create(self, run: RunId, entries: Sequence[Entry], *, head: Head) -> Appended:
        bodies = await _bodies(partial(validation.encoded_start, run, entries), entries)
        stored_head = storable(head, first=True)
        await self._share_chunks(bodies[0])
        operation = Create(run=run, top=stored_head, bodies=bodies, chain=self.chain)
        return await self._at.writer.write(operation)

    async def adopt(
        self, run: RunId, lines: Sequence[bytes], imported: RunImported, *, head: Head
    ) -> Appended:
        stored_head = storable(head, first=True)
        journal = await anyio.to_thread.run_sync(adopted, run, lines, imported, self.chain)
        await self._share_chunks(journal.lines[0][0])
        operation = Create(run=run, top=stored_head, adopted=journal, chain=self.chain)
        return await self._at.writer.write(operation)

    async def _share_chunks(self, first: bytes) -> None:
        """Store the chunks of the first entry of a new run."""
        # Chunks are committed before the run that refers to them. If that run is then refused,
        # its chunks stay unused until another run with the same history shares them.
        if len(first) < SHARED_MIN_BYTES:
            return
        _, chunks = await anyio.to_thread.run_sync(split_line, first)
        if chunks:
            values = {"hashes": list(chunks), "bodies": list(chunks.values())}
            await self._at.links.ask(queries.ADD_CHUNKS, values)

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
    ) -> Appended:
        if after is None:
            validation.check_evidence(run, entries, lease=lease, head=head, starts=starts)
        bodies = await _bodies(partial(validation.encoded, run, entries, lease), entries)
        validation.check_id(run)
        operation = Append(
            run=run,
            bodies=bodies,
            after=after,
            lease=lease,
            top=None if head is None else storable(head),
            starts=starts or validation.has_starts(entries),
            chain=self.chain,
            at=at,
        )
        return await self._at.writer.write(operation)

    async def take(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq,
        holder: str,
        head: Head,
        limits: Mapping[str, int] | None = None,
    ) -> tuple[Lease, Appended]:
        epoch = validation.taken_epoch(run, entries, holder)
        check_nul("holder", holder)
        bodies = await _bodies(
            partial(validation.encoded_taking, run, entries, holder), entries
        )
        validation.check_id(run)
        operation = Take(
            run=run,
            bodies=bodies,
            after=after,
            holder=holder,
            epoch=epoch,
            top=storable(head),
            starts=validation.has_starts(entries),
            limits=validation.limits_on(head, limits),
            chain=self.chain,
        )
        appended = await self._at.writer.write(operation)
        return Lease(run=run, holder=holder, epoch=epoch), appended

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        validation.check_snapshot(snapshot)
        validation.check_id(run)
        body = self.chain.sealed(snapshot.hash, snapshot.body)
        values = {"run": run, "seq": snapshot.seq, "hash": snapshot.hash, "body": body}
        if not await self._at.links.ask(queries.SAVE_SNAPSHOT, values):
            raise RunNotFound(run)

    async def drop_snapshots(self, run: RunId) -> None:
        validation.check_id(run)
        if not await self._at.links.ask(queries.DROP_SNAPSHOTS, {"run": run}):
            raise RunNotFound(run)

    async def beat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        ttl_micros = validation.check_beat(holder, ttl, lag)
        check_nul("holder", holder)
        values = {"holder": holder, "ttl": ttl_micros, "lag": lag, "now": self.time.by_hand()}
        await self._at.links.ask(queries.BEAT, values)

    async def rest(self, holder: str) -> None:
        validation.check_holder(holder)
        check_nul("holder", holder)
        await self._at.links.ask(queries.REST, {"holder": holder})

    async def halt(self, halt: Halt) -> None:
        validation.check_halt(halt)
        for name in ("scope", "by", "reason"):
            check_nul(name, getattr(halt, name))
        values = {"scope": halt.scope, "by": halt.by, "reason": halt.reason}
        await self._at.links.ask(queries.HALT, values | {"now": self.time.by_hand()})
        self.watchers.tell([(LATCHES, START)])

    async def lift(self, scope: str) -> bool:
        validation.check_text("scope", scope)
        check_nul("scope", scope)
        values = {"scope": scope, "now": self.time.by_hand()}

        async def delete_once(connection: Link, lost_count: int) -> bool:
            ((lifted,),) = await connection.ask(queries.LIFT, values)
            # If an answer was lost, the first attempt has probably removed the halt.
            return bool(lifted) or lost_count > 0

        lifted = await self._at.links.insist(delete_once)
        self.watchers.tell([(LATCHES, START)])
        return lifted

    # ── reading ───────────────────────────────────────────────────────────────────────────

    async def read(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[Record]:
        journal_range = await self._stretch(run, after, limit)
        if len(journal_range) <= QUICK_MAX and journal_range.weight <= QUICK_BYTES:
            return journal_range.records(self.chain)
        return await anyio.to_thread.run_sync(journal_range.records, self.chain)

    async def lines(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[Pair]:
        return (await self._stretch(run, after, limit)).pairs

    async def _stretch(self, run: RunId, after: Seq, limit: int | None) -> Stretch:
        validation.check_stretch(after, limit)
        validation.check_id(run)
        journal_range = Stretch(run, after)
        # Each read refreshes the row cache: the append that follows it needs no other read.
        self.standings.put(await journal_range.read(self._at.links, limit))
        return journal_range

    async def row(self, run: RunId) -> RunRow:
        return await reader.row(self._at.links, run)

    async def indexed_row(self, run: RunId) -> tuple[RunRow, Mapping[str, object]]:
        """Return the row of `run` and its indexed columns by name."""
        return await reader.indexed_row(self._at.links, run)

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        found = await reader.snapshot(self._at.links, run)
        return None if found is None else validation.opened(self.chain, found)

    async def holders(self) -> Mapping[str, float]:
        rows = await self._at.links.ask(queries.HOLDERS, {"now": self.time.by_hand()})
        return dict(rows)

    async def runs(self, query: Query) -> Page[RunRow]:
        return await reader.page(self._at.links, query)

    async def usage(self, owner: str, *, since: Micros, sizes: bool = True) -> Usage:
        validation.check_text("owner", owner)
        return await reader.usage(self._at.links, owner, since, sizes=sizes)

    async def counts(self) -> Mapping[Phase, int]:
        return await reader.counts(self._at.links)

    async def drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        validation.check_agents(agents)
        values = {
            "limit": validation.bounded(limit),
            "agents": list(agents) or None,
            "now": self.time.by_hand(),
        }
        return [run for (run,) in await self._at.links.ask(queries.DRIVABLE, values)]

    async def due(self, *, limit: int) -> Sequence[RunId]:
        values = {"limit": validation.bounded(limit), "now": self.time.by_hand()}
        return [run for (run,) in await self._at.links.ask(queries.DUE, values)]

    async def halts(self) -> Sequence[Halt]:
        return await reader.halts(self._at.links)

    # ── watching ──────────────────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[Change]]:
        await checkpoint()
        if self._closed:
            raise StoreClosed(self.address.name)
        # The watch is subscribed before the listener starts. `tasks.start` returns once every
        # later commit is reported, so no change is lost in between.
        with self.watchers.joined() as watch:
            async with anyio.create_task_group() as tasks:
                await tasks.start(Notice(self.address, self.watchers).listen)
                try:
                    yield watch
                finally:
                    tasks.cancel_scope.cancel()

    def marks(self) -> Marks:
        return PostgresMarks(self._at.links, self.time)

    def relay(self) -> Relay:
        return PostgresRelay(self.address, self._at.links)

    async def close(self) -> None:
        with self._lock:
            self._closed = True
            resources, self._ends = self._ends, {}
        # Connections of other event loops cannot be awaited from here; they are closed at once.
        own = resources.pop(asyncio.get_running_loop(), None)
        if own is not None:
            await own.close()
        for other in resources.values():
            other.abandon()
        self.watchers.end()

    @property
    def _at(self) -> _Ends:
        """The resources of the running event loop, made at its first use."""
        loop = asyncio.get_running_loop()
        resources = self._ends.get(loop)
        if resources is None:
            with self._lock:
                if self._closed:
                    raise StoreClosed(self.address.name)
                # Tests and scripts open one event loop after the other. The connections of
                # closed loops are dropped here, because no code runs when a loop ends.
                for closed_loop in [other for other in self._ends if other.is_closed()]:
                    self._ends.pop(closed_loop).abandon()
                resources = self._ends[loop] = _Ends(self)
        return resources


async def _bodies(
    encode: Callable[[Limits], list[bytes]], entries: Sequence[Entry]
) -> list[bytes]:
    """Encode `entries`, in a thread if they are large.

    A caller that changes its entries meanwhile gets a mixture of both versions, or a refusal.
    """
    if len(entries) <= QUICK_MAX:
        try:
            return encode(QUICK)
        except TooLarge:
            pass
    return await anyio.to_thread.run_sync(encode, DEFAULT)
