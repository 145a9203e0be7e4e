"""`MemoryStore`: the store port in the memory of one process.

It serves tests, scripts and agents that need no second process, and it is the shortest complete
implementation of the port: read it first. It stores the same bytes as the SQL stores and
decodes them on each read, so a journal read from here is equal to one read from a database. Its
content is lost when the process ends.
"""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.hash_chain import Chain
from midrun.codec.journal import decode_lines
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core.entries import Entry, Record, RunImported
from midrun.core.ids import START, Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import DRIVABLE, TERMINAL, Phase
from midrun.errors import CursorRefused, RunExists, RunNotFound, StoreClosed
from midrun.ports.environment import Clock, wall
from midrun.ports.follower_cursors import Marks
from midrun.ports.store import (
    Appended,
    Change,
    Halt,
    Lease,
    Page,
    Query,
    RunRow,
    Snapshot,
    Usage,
    covering,
)
from midrun.stores import validation
from midrun.stores.cursors import MemoryMarks
from midrun.stores.validation import Stamped, Standing, adopted, stored, stored_first
from midrun.stores.watchers import LATCHES, Watchers


class _Kept(Struct, kw_only=True):
    """One run: its row, its lines and its snapshot. Changed only between two awaits."""

    number: int
    row: RunRow
    lines: list[tuple[bytes, bytes]]
    snapshot: Snapshot | None = None

    @property
    def standing(self) -> Standing:
        row = self.row
        return Standing(
            run=row.run,
            seq=row.seq,
            hash=row.hash,
            at=row.changed_at,
            epoch=row.epoch,
            holder=row.holder,
        )


class _Beat(Struct, frozen=True, kw_only=True):
    """The last heartbeat of a holder; `ttl` in microseconds, `lag` in seconds."""

    at: Micros
    ttl: int
    lag: float


class MemoryStore:
    """Keep runs in dictionaries.

    Every method is atomic, because it awaits only once, at its start.
    """

    def __init__(self, *, clock: Clock = wall, key: bytes | None = None) -> None:
        self.chain = Chain(key)
        self._clock = clock
        self._runs: dict[RunId, _Kept] = {}
        self._numbers = itertools.count(1)
        self._halts: dict[str, Halt] = {}
        self._beats: dict[str, _Beat] = {}
        self._watchers = Watchers()
        self._marks = MemoryMarks(lambda: [k.row for k in self._runs.values()], clock)
        self._closed = False

    async def create(self, run: RunId, entries: Sequence[Entry], *, head: Head) -> Appended:
        await self._turn()
        bodies, head = validation.encoded_start(run, entries), stored_first(head).head
        if run in self._runs:
            raise RunExists(run)
        stamped = self._stamp(
            validation.nothing_yet(run, self.chain), bodies, self._clock(), None
        )
        return self._begin(run, stamped, head, Epoch(0), stamped.appended.at)

    async def adopt(
        self, run: RunId, lines: Sequence[bytes], imported: RunImported, *, head: Head
    ) -> Appended:
        await self._turn()
        head, journal = stored_first(head).head, adopted(run, lines, imported, self.chain)
        if run in self._runs:
            raise RunExists(run)
        stamped = journal.stamp(self.chain, self._clock())
        return self._begin(run, stamped, head, journal.end.epoch, journal.started_at)

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
        await self._turn()
        if after is None:
            validation.check_evidence(run, entries, lease=lease, head=head, starts=starts)
        bodies = validation.encoded(run, entries, lease)
        head = head and stored(head).head
        stored_run = self._find(run)
        # The order of the checks is part of the contract: the lease before `after`, both before
        # the halts. The SQL stores refuse in the same order.
        validation.check_append(stored_run.standing, after, lease)
        if starts or validation.has_starts(entries):
            validation.check_halts(run, stored_run.row.head, self._halts.values())
        epoch = lease.epoch if lease else None
        now = self._clock() if at is None else at
        stamped = self._stamp(stored_run.standing, bodies, now, epoch)
        # A head that is not `leased` gives the lease back with the same append.
        holder = stored_run.row.holder if head is None or head.leased else ""
        return self._grow(
            stored_run, stamped, head or stored_run.row.head, stored_run.row.epoch, holder
        )

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
        await self._turn()
        epoch = validation.taken_epoch(run, entries, holder)
        bodies = validation.encoded_taking(run, entries, holder)
        head, run_limits = stored(head).head, validation.limits_on(head, limits)
        stored_run = self._find(run)
        alive = self._is_alive(stored_run.row.holder)
        validation.check_take(
            stored_run.standing, after=after, holder=holder, epoch=epoch, alive=alive
        )
        if validation.has_starts(entries):
            validation.check_halts(run, stored_run.row.head, self._halts.values())
        validation.check_room(stored_run.standing, holder, run_limits, partial(self._held, run))
        stamped = self._stamp(stored_run.standing, bodies, self._clock(), epoch)
        appended = self._grow(stored_run, stamped, head, epoch, holder if head.leased else "")
        return Lease(run=run, holder=holder, epoch=epoch), appended

    async def read(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[Record]:
        pairs = await self.lines(run, after=after, limit=limit)
        # The chain of the part that is read starts with the hash of the entry before it.
        previous = self._runs[run].lines[after - 1][1] if after and pairs else None
        lines = self.chain.verified(run, pairs, after=after, previous=previous)
        return decode_lines(run, lines, after=after)

    async def lines(
        self, run: RunId, *, after: Seq = START, limit: int | None = None
    ) -> Sequence[tuple[bytes, bytes]]:
        await self._turn()
        validation.check_stretch(after, limit)
        pairs = self._find(run).lines
        return pairs[after:] if limit is None else pairs[after : after + limit]

    async def row(self, run: RunId) -> RunRow:
        await self._turn()
        return self._find(run).row

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        await self._turn()
        validation.check_snapshot(snapshot)
        stored_run = self._find(run)
        if stored_run.snapshot is None or stored_run.snapshot.seq <= snapshot.seq:
            stored_run.snapshot = snapshot

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        await self._turn()
        stored_run = self._find(run)
        # A snapshot is only a cache. One whose hash is not that of the journal is ignored.
        snapshot = stored_run.snapshot
        if snapshot is None or not 0 < snapshot.seq <= len(stored_run.lines):
            return None
        return snapshot if stored_run.lines[snapshot.seq - 1][1] == snapshot.hash else None

    async def drop_snapshots(self, run: RunId) -> None:
        await self._turn()
        self._find(run).snapshot = None

    async def beat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        await self._turn()
        ttl_micros = validation.check_beat(holder, ttl, lag)
        now = self._clock()
        self._beats[holder] = _Beat(at=now, ttl=ttl_micros, lag=lag)
        for name, beat in tuple(self._beats.items()):
            if beat.at - beat.ttl >= now and name != holder:
                # Its beat lies further ahead than its `ttl`: the clock was set back. Without
                # this the dead holder would count as alive when the clock gets there again.
                del self._beats[name]

    async def rest(self, holder: str) -> None:
        await self._turn()
        validation.check_holder(holder)
        self._beats.pop(holder, None)

    async def holders(self) -> Mapping[str, float]:
        await self._turn()
        return {name: beat.lag for name, beat in self._beats.items() if self._is_alive(name)}

    async def runs(self, query: Query) -> Page[RunRow]:
        await self._turn()
        limit, before = validation.page_limit(query), INTEGER_MAX
        if query.cursor:
            if RunId(query.cursor) not in self._runs:
                raise CursorRefused(query.cursor)
            # Runs are numbered in order of creation and never deleted. So "older than the last
            # run of the previous page" stays a stable position whatever is created meanwhile.
            before = self._runs[RunId(query.cursor)].number
        rows = [
            stored_run.row
            for stored_run in reversed(self._runs.values())
            if stored_run.number < before and _fits(stored_run.row, query)
        ]
        items = tuple(rows[:limit])
        return Page(items=items, cursor=items[-1].run if len(rows) > len(items) else "")

    async def usage(self, owner: str, *, since: Micros, sizes: bool = True) -> Usage:
        await self._turn()
        validation.check_text("owner", owner)
        owned = [
            stored_run
            for stored_run in self._runs.values()
            if stored_run.row.head.owner == owner
        ]
        recent_heads = [
            stored_run.row.head for stored_run in owned if stored_run.row.started_at >= since
        ]
        return Usage(
            open_runs=sum(stored_run.row.head.phase not in TERMINAL for stored_run in owned),
            runs=len(recent_heads),
            cost=sum(head.cost for head in recent_heads),
            tokens=sum(head.tokens for head in recent_heads),
            stored_bytes=sum(len(line) for stored_run in owned for line, _ in stored_run.lines)
            * sizes,
        )

    async def counts(self) -> Mapping[Phase, int]:
        await self._turn()
        return Counter(stored_run.row.head.phase for stored_run in self._runs.values())

    async def drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        await self._turn()
        limit = validation.bounded(limit)
        validation.check_agents(agents)
        return [
            run
            for run, stored_run in self._runs.items()
            if stored_run.row.head.phase in DRIVABLE
            and not self._is_alive(stored_run.row.holder)
            and (not agents or stored_run.row.head.agent in agents)
        ][:limit]

    async def due(self, *, limit: int) -> Sequence[RunId]:
        await self._turn()
        limit, now = validation.bounded(limit), self._clock()
        waiting = (
            (stored_run.row.head.wake_at, stored_run.number, run)
            for run, stored_run in self._runs.items()
            if stored_run.row.head.wake_at is not None and stored_run.row.head.wake_at <= now
        )
        return [run for _, _, run in sorted(waiting)[:limit]]

    async def halt(self, halt: Halt) -> None:
        await self._turn()
        validation.check_halt(halt)
        self._halts.setdefault(halt.scope, replace(halt, at=self._clock()))
        self._watchers.tell([(LATCHES, START)])

    async def lift(self, scope: str) -> bool:
        await self._turn()
        validation.check_text("scope", scope)
        removed = self._halts.pop(scope, None) is not None
        self._watchers.tell([(LATCHES, START)])
        return removed

    async def halts(self) -> Sequence[Halt]:
        await self._turn()
        return tuple(self._halts.values())

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[Change]]:
        await self._turn()
        with self._watchers.joined() as watch:
            yield watch

    def marks(self) -> Marks:
        return self._marks

    async def close(self) -> None:
        self._closed = True
        self._watchers.end()
        await checkpoint()

    async def _turn(self) -> None:
        # Every method yields once, before it reads anything. So tasks race for this store as
        # they race for one that waits for a disk, and tests on it find the same bugs.
        await checkpoint()
        if self._closed:
            raise StoreClosed("memory")

    def _find(self, run: RunId) -> _Kept:
        try:
            return self._runs[run]
        except KeyError:
            raise RunNotFound(run) from None

    def _held(self, but: RunId, scope: str) -> int:
        rows = (
            stored_run.row for stored_run in self._runs.values() if stored_run.row.run != but
        )
        return sum(
            bool(covering({scope: 1}, row.head)) and self._is_alive(row.holder) for row in rows
        )

    def _is_alive(self, holder: str) -> bool:
        beat = self._beats.get(holder)
        return beat is not None and validation.is_fresh(self._clock(), beat.at, beat.ttl)

    def _stamp(
        self, standing: Standing, bodies: Sequence[bytes], now: Micros, epoch: Epoch | None
    ) -> Stamped:
        return validation.stamp(standing, bodies, chain=self.chain, now=now, epoch=epoch)

    def _begin(
        self, run: RunId, stamped: Stamped, head: Head, epoch: Epoch, started_at: Micros
    ) -> Appended:
        new = stamped.appended
        row = RunRow(
            run=run,
            head=head,
            seq=new.seq,
            hash=new.hash,
            epoch=epoch,
            holder="",
            started_at=started_at,
            changed_at=new.at,
        )
        number = next(self._numbers)
        self._runs[run] = _Kept(number=number, row=row, lines=list(stamped.lines))
        self._watchers.tell([(run, new.seq)])
        return new

    def _grow(
        self, kept: _Kept, stamped: Stamped, head: Head, epoch: Epoch, holder: str
    ) -> Appended:
        new = stamped.appended
        kept.lines.extend(stamped.lines)
        kept.row = replace(
            kept.row,
            head=head,
            seq=new.seq,
            hash=new.hash,
            epoch=epoch,
            holder=holder,
            changed_at=new.at,
        )
        self._watchers.tell([(kept.row.run, new.seq)])
        return new


def _fits(row: RunRow, query: Query) -> bool:
    head = row.head
    return (
        (not query.phases or head.phase in query.phases)
        and query.agent in {"", head.agent}
        and query.thread in {"", head.thread}
        and query.parent in {"", head.parent}
        and query.owner in {"", head.owner}
        and (query.decider in {"", head.owner} or query.decider in head.addressees)
        and (not query.label or query.label in head.labels)
        and (not query.attention or head.attention != "")
    )
