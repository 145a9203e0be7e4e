"""`SqliteStore`: the store port on one SQLite file.

Writes are validated and encoded before they reach the writer, so that only the short part, read
the row, compare, insert, runs inside the transaction. Small entries are encoded in the event
loop's thread and may be committed there; large ones go through threads. Short reads run in the
event loop's thread as well, after one checkpoint, because a hop to a thread would cost more
than the read.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import anyio.to_thread
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from midrun.codec.hash_chain import Chain
from midrun.codec.strict_json import DEFAULT, Limits
from midrun.core.entries import Entry, Record, RunImported
from midrun.core.ids import START, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.errors import StoreClosed, TooLarge
from midrun.ports.environment import Clock, wall
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
from midrun.stores.sqlite import operations, reader
from midrun.stores.sqlite.change_poller import Notice
from midrun.stores.sqlite.connection import open_file
from midrun.stores.sqlite.cursors import SqliteMarks
from midrun.stores.sqlite.reader import QUICK_BYTES, QUICK_MAX, Pair, Reader
from midrun.stores.sqlite.relay import Sockets
from midrun.stores.sqlite.row_cache import all_halts
from midrun.stores.sqlite.writer import Writer
from midrun.stores.validation import adopted, stored, stored_first
from midrun.stores.watchers import Watchers

BUSY: Final = timedelta(seconds=5)
"""The longest wait for the write lock of another process."""

QUICK: Final = Limits(size=32 * 1024)
"""Size limit of an entry that is encoded and written in the event loop's thread: 3 ms at worst.
"""


class SqliteStore:
    """Keep runs in one file that any number of processes of a machine may share.

    The constructor opens the file, or creates it with mode 0600. With `durability="relaxed"` a
    power failure may lose the newest entries; a crash of the process never does. `busy` is the
    longest wait for other writers before `StoreBusy`. With a `key` the hash chain of every
    journal is keyed. The file has to be opened with the same key ever after.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "full",
        clock: Clock = wall,
        busy: timedelta = BUSY,
        key: bytes | None = None,
    ) -> None:
        self.chain = Chain(key)
        self.path = Path(path).absolute()  # a later chdir must not change the file
        self._clock = clock
        busy_ms = busy // timedelta(milliseconds=1)
        self._watchers = Watchers()
        db = open_file(self.path, durability=durability, busy_ms=busy_ms, kid=self.chain.kid)
        self._writer = Writer(db, self.path, busy_ms=busy_ms, watchers=self._watchers)
        # Two connections for reading, so that a long read in a thread does not hold the lock
        # that a short read in the event loop needs.
        self._quick = Reader(self.path, busy_ms=busy_ms)
        self._long = Reader(self.path, busy_ms=busy_ms)
        self._notice = Notice(self.path, busy_ms=busy_ms, tell=self._watchers.tell)
        self._closed = False

    async def create(self, run: RunId, entries: Sequence[Entry], *, head: Head) -> Appended:
        encode = partial(validation.encoded_start, run, entries)
        bodies, quick = _quickly(encode, entries) or await _aside(encode)
        request = operations.Create(
            run=run,
            top=stored_first(head),
            bodies=bodies,
            chain=self.chain,
            clock=self._clock,
        )
        return await self._writer.write(request, quick=quick)

    async def adopt(
        self, run: RunId, lines: Sequence[bytes], imported: RunImported, *, head: Head
    ) -> Appended:
        stored_head = stored_first(head)
        journal = await anyio.to_thread.run_sync(adopted, run, lines, imported, self.chain)
        request = operations.Create(
            run=run, top=stored_head, adopted=journal, chain=self.chain, clock=self._clock
        )
        return await self._writer.write(request, quick=False)

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
        encode = partial(validation.encoded, run, entries, lease)
        bodies, quick = _quickly(encode, entries) or await _aside(encode)
        request = operations.Append(
            run=run,
            bodies=bodies,
            after=after,
            lease=lease,
            top=None if head is None else stored(head),
            starts=starts or validation.has_starts(entries),
            chain=self.chain,
            # `at` is the time at which the caller decided. It knows the timestamps of its
            # entries before they are stored.
            now=self._clock() if at is None else at,
        )
        return await self._writer.write(request, quick=quick)

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
        encode = partial(validation.encoded_taking, run, entries, holder)
        bodies, quick = _quickly(encode, entries) or await _aside(encode)
        request = operations.Take(
            run=run,
            bodies=bodies,
            after=after,
            holder=holder,
            epoch=epoch,
            top=stored(head),
            starts=validation.has_starts(entries),
            limits=validation.limits_on(head, limits),
            chain=self.chain,
            clock=self._clock,
        )
        appended = await self._writer.write(request, quick=quick)
        return Lease(run=run, holder=holder, epoch=epoch), appended

    async def read(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[Record]:
        await checkpoint()
        # The range is fixed first, from the run's row. Entries are never changed or removed, so
        # reading them later, through either connection, gives the same consistent view.
        tail = self._quick.now(lambda db: reader.tail(db, run, after, limit))
        if self._quick.now(lambda db: reader.is_quick(db, tail)):
            return self._quick.now(lambda db: tail.records(db, self.chain))
        return await self._long.aside(lambda db: tail.records(db, self.chain))

    async def lines(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[Pair]:
        await checkpoint()
        tail = self._quick.now(lambda db: reader.tail(db, run, after, limit))
        return await self._long.aside(tail.pairs)

    async def row(self, run: RunId) -> RunRow:
        await checkpoint()
        return self._quick.now(lambda db: reader.row(db, run))

    async def indexed_row(self, run: RunId) -> tuple[RunRow, Mapping[str, object]]:
        """Return the row of `run` and its indexed columns by name."""
        await checkpoint()
        return self._quick.now(lambda db: reader.indexed_row(db, run))

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        validation.check_snapshot(snapshot)
        body = self.chain.sealed(snapshot.hash, snapshot.body)
        request = operations.SaveSnapshot(run=run, snapshot=replace(snapshot, body=body))
        await self._writer.write(request, quick=len(body) <= QUICK_BYTES)

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        await checkpoint()
        read = partial(reader.snapshot, run=run)
        # The length is read first, without the body: a large snapshot goes to the thread.
        quick = self._quick.now(partial(reader.snapshot_weight, run=run)) <= QUICK_BYTES
        found = self._quick.now(read) if quick else await self._long.aside(read)
        return None if found is None else validation.opened(self.chain, found)

    async def drop_snapshots(self, run: RunId) -> None:
        await self._writer.write(operations.DropSnapshots(run=run))

    async def beat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        ttl_micros = validation.check_beat(holder, ttl, lag)
        request = operations.Beat(holder=holder, ttl=ttl_micros, lag=lag, clock=self._clock)
        await self._writer.write(request)

    async def rest(self, holder: str) -> None:
        validation.check_holder(holder)
        await self._writer.write(operations.Rest(holder=holder))

    async def holders(self) -> Mapping[str, float]:
        await checkpoint()
        return self._quick.now(lambda db: reader.holders(db, self._clock()))

    async def runs(self, query: Query) -> Page[RunRow]:
        return await self._long.aside(lambda db: reader.page(db, query))

    async def usage(self, owner: str, *, since: Micros, sizes: bool = True) -> Usage:
        validation.check_text("owner", owner)
        return await self._long.aside(lambda db: reader.usage(db, owner, since, sizes=sizes))

    async def counts(self) -> Mapping[Phase, int]:
        return await self._long.aside(reader.counts)

    async def drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        limit, now = validation.bounded(limit), self._clock()
        validation.check_agents(agents)
        return await self._long.aside(lambda db: reader.drivable(db, now, limit, agents))

    async def due(self, *, limit: int) -> Sequence[RunId]:
        limit, now = validation.bounded(limit), self._clock()
        return await self._long.aside(lambda db: reader.due(db, now, limit))

    async def halt(self, halt: Halt) -> None:
        validation.check_halt(halt)
        request = operations.SetHalt(halt=halt, clock=self._clock)
        await self._writer.write(request)

    async def lift(self, scope: str) -> bool:
        validation.check_text("scope", scope)
        return await self._writer.write(operations.Lift(scope=scope))

    async def halts(self) -> Sequence[Halt]:
        await checkpoint()
        return self._quick.now(all_halts)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[Change]]:
        await checkpoint()
        if self._closed:
            raise StoreClosed(str(self.path))
        with self._watchers.joined() as watch, ExitStack() as stack:
            # The watch is subscribed before the poller starts. A change in between is then
            # queued in the watch, and none is lost.
            self._notice.listen()
            stack.callback(self._notice.leave)
            yield watch

    def marks(self) -> Marks:
        return SqliteMarks(self._writer, self._long, self._clock)

    def relay(self) -> Relay:
        return Sockets(self.path)

    async def close(self) -> None:
        self._closed = True
        # The writer first: the requests it still commits are reported to watches that are open.
        await self._writer.close()
        self._watchers.end()
        self._quick.close()
        self._long.close()


def _quickly(
    encode: Callable[[Limits], list[bytes]], entries: Sequence[Entry]
) -> tuple[list[bytes], bool] | None:
    """Encode `entries` here if they are small; return None if they are not.

    The second value is True: the write may be committed in the event loop's thread.
    """
    if len(entries) > QUICK_MAX:
        return None
    try:
        return encode(QUICK), True
    except TooLarge:
        return None


async def _aside(encode: Callable[[Limits], list[bytes]]) -> tuple[list[bytes], bool]:
    """Encode large entries in a thread; the write then goes through the writer thread.

    A caller that changes its entries meanwhile gets a mixture of both versions, or a refusal.
    """
    return await anyio.to_thread.run_sync(encode, DEFAULT), False
