"""`MemoryStore`: the store port in the memory of one process.

It serves tests, scripts and agents that need no second process, and it is the shortest complete
implementation of the port: read it first. It stores the same bytes as the SQL stores and
decodes them on each read, so a journal read from here is equal to one read from a database. Its
content is lost when the process ends.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from anyio.lowlevel import checkpoint
from msgspec import Struct, field
from msgspec.structs import replace

from midrun.codec.hash_chain import HashChain
from midrun.codec.journal import decode_lines
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core.entries import Record
from midrun.core.ids import SEQ_ZERO, Micros, RunId, Seq
from midrun.core.values import DELETABLE_PHASES, DRIVABLE_PHASES, TERMINAL_PHASES, Phase
from midrun.errors import CursorRefused, FileMissing, RunNotFound, StoreClosed, StoreError
from midrun.ports.audit import AuditEnd, AuditEntry, AuditLine
from midrun.ports.environment import Clock, read_wall_clock
from midrun.ports.follower_cursors import FollowerCursors
from midrun.ports.push_targets import PushTargets
from midrun.ports.store import (
    ALL_RUNS,
    AppendResult,
    Change,
    DeletedRuns,
    EndedQuery,
    HaltRecord,
    OwnerUsage,
    Page,
    RunGroup,
    RunQuery,
    RunQuota,
    RunRow,
    Snapshot,
    Tombstone,
    Visibility,
    select_limits,
)
from midrun.stores import validation
from midrun.stores.audit import build_audit, encode_audit, make_audit_line
from midrun.stores.cursors import MemoryFollowerCursors, MemoryPushTargets
from midrun.stores.deletion import (
    check_delete,
    check_ended_query,
    explain_missing,
    find_refusal,
    make_ended_cursor,
    make_tombstone,
    parse_ended_cursor,
)
from midrun.stores.encryption import UNENCRYPTED, PayloadCipher
from midrun.stores.operations import (
    CreateRunWrite,
    JournalStore,
    JournalWrite,
    StoredRow,
    TakeLeaseWrite,
)
from midrun.stores.search import match_words, parse_search
from midrun.stores.validation import StoredHead
from midrun.stores.watchers import HALTS_CHANGED, Watchers


class _MemoryRun(Struct, kw_only=True):
    """One run: its row, its lines and its snapshot. Changed only between two awaits."""

    number: int
    row: RunRow
    lines: list[tuple[bytes, bytes]]
    snapshot: Snapshot | None = None
    file_hashes: set[str]
    words: list[str] = field(default_factory=list)  # for the search

    @property
    def stored_row(self) -> StoredRow:
        """The row in the form that a write compares."""
        row = self.row
        return StoredRow(
            run=row.run,
            seq=row.seq,
            hash=row.hash,
            at=row.changed_at,
            epoch=row.epoch,
            holder=row.holder,
            stored_head=StoredHead(row.head, b""),
        )


class _HolderBeat(Struct, frozen=True, kw_only=True):
    """The last heartbeat of a holder; `ttl` in microseconds, `lag` in seconds."""

    at: Micros
    ttl_micros: int
    lag_s: float


class MemoryStore(JournalStore):
    """Keep runs in dictionaries.

    Every method is atomic, because it awaits nothing after it has read the first dictionary.
    """

    def __init__(
        self,
        *,
        clock: Clock = read_wall_clock,
        key: bytes | None = None,
        cipher: PayloadCipher = UNENCRYPTED,
    ) -> None:
        self.chain = HashChain(key)
        self.cipher = cipher
        self._clock = clock
        self._runs: dict[RunId, _MemoryRun] = {}
        self._numbers = itertools.count(1)
        self._tombstones: dict[RunId, Tombstone] = {}
        self._numbers_of_deleted: dict[RunId, int] = {}  # for cursors of lists
        self._halts: dict[tuple[str | None, str], HaltRecord] = {}  # by tenant and scope
        self._beats: dict[str, _HolderBeat] = {}
        self._files: dict[str, bytes] = {}
        self._watchers = Watchers()
        self._push_targets = MemoryPushTargets(cipher)
        self._cursors = MemoryFollowerCursors(
            lambda: [k.row for k in self._runs.values()], clock
        )
        self._audit: list[AuditLine] = []
        self._audit_end = AuditEnd()
        self._closed = False

    async def _write(self, operation: JournalWrite) -> AppendResult:
        await self._yield_and_check_open()
        run, stored_run = operation.run, self._runs.get(operation.run)
        if run in self._tombstones:
            raise explain_missing(run, self._tombstones[run])
        current = stored_run.stored_row if stored_run else None
        alive = current is not None and self._is_alive(current.holder)
        # The order of the checks is part of the contract: first those of the row, then the
        # halts, then the limits. The SQL stores refuse in the same order.
        change = operation.apply(current, self._clock, holder_alive=alive)
        if current is not None and operation.starts:
            validation.check_halts(run, current.stored_head.head, self._halts.values())
        if current is not None and isinstance(operation, TakeLeaseWrite):
            validation.check_limits(
                current, operation.holder, operation.limits, partial(self._count_held, run)
            )
        if isinstance(operation, CreateRunWrite):
            validation.check_quotas(run, operation.quotas, self._count_quota_runs)
        # All refusals come before the first change: no dictionary has a part of a refused
        # write.
        for key in operation.files.hashes:
            if key not in operation.files.bodies and key not in self._files:
                raise FileMissing(run, key)
        new = change.row
        row = RunRow(
            run=run,
            head=new.stored_head.head,
            seq=new.seq,
            hash=new.hash,
            epoch=new.epoch,
            holder=new.holder,
            started_at=stored_run.row.started_at if stored_run else change.started_at or new.at,
            changed_at=new.at,
        )
        if stored_run is None:
            stored_run = _MemoryRun(
                number=next(self._numbers), row=row, lines=[], file_hashes=set()
            )
            self._runs[run] = stored_run
        stored_run.row = row
        stored_run.lines.extend(change.lines)
        stored_run.file_hashes.update(operation.files.hashes)
        # A body is stored once, under its hash, however many runs name it.
        self._files |= operation.files.bodies
        if operation.search_words:
            stored_run.words += operation.search_words.split(" ")
        self._watchers.notify([(run, new.seq)])
        return change.appended

    async def read(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[Record]:
        await self._yield_and_check_open()
        stored_lines, pairs = self._get_run(run).lines, self._select_lines(run, after, limit)
        # The chain of the part that is read starts with the hash of the entry before it.
        previous = stored_lines[after - 1][1] if after and pairs else None
        lines = self.chain.verify_lines(run, pairs, after=after, previous=previous)
        return decode_lines(
            run, self.cipher.decrypt_lines(run, lines, after=after), after=after
        )

    async def read_lines(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[tuple[bytes, bytes]]:
        await self._yield_and_check_open()
        return self._select_lines(run, after, limit)

    def _select_lines(
        self, run: RunId, after: Seq, limit: int | None
    ) -> list[tuple[bytes, bytes]]:
        validation.check_read_range(after, limit)
        pairs = self._get_run(run).lines
        return pairs[after:] if limit is None else pairs[after : after + limit]

    async def read_file(self, run: RunId, file_hash: str) -> bytes:
        await self._yield_and_check_open()
        if file_hash not in self._get_run(run).file_hashes:
            raise FileMissing(run, file_hash)
        return self.cipher.decrypt_file(run, file_hash, self._files[file_hash])

    async def get_row(self, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
        await self._yield_and_check_open()
        validation.check_visibility(seen_by)
        stored_run = self._runs.get(run)
        if stored_run is None or not seen_by.includes(stored_run.row.head):
            raise explain_missing(run, self._tombstones.get(run), seen_by)
        return stored_run.row

    async def save_snapshot(self, run: RunId, snapshot: Snapshot) -> None:
        await self._yield_and_check_open()
        validation.check_snapshot(snapshot)
        stored_run = self._get_run(run)
        if stored_run.snapshot is None or stored_run.snapshot.seq <= snapshot.seq:
            stored_run.snapshot = snapshot

    async def load_snapshot(self, run: RunId) -> Snapshot | None:
        await self._yield_and_check_open()
        stored_run = self._get_run(run)
        # A snapshot is only a cache. One whose hash is not that of the journal is ignored.
        snapshot = stored_run.snapshot
        if snapshot is None or not 0 < snapshot.seq <= len(stored_run.lines):
            return None
        return snapshot if stored_run.lines[snapshot.seq - 1][1] == snapshot.hash else None

    async def record_heartbeat(self, holder: str, *, ttl: timedelta, lag: float = 0.0) -> None:
        await self._yield_and_check_open()
        ttl_micros = validation.check_heartbeat(holder, ttl, lag)
        now = self._clock()
        self._beats[holder] = _HolderBeat(at=now, ttl_micros=ttl_micros, lag_s=lag)
        for name, beat in tuple(self._beats.items()):
            if beat.at - beat.ttl_micros >= now and name != holder:
                # Its beat lies further ahead than its `ttl`: the clock was set back. Without
                # this the dead holder would count as alive when the clock gets there again.
                del self._beats[name]

    async def release_leases(self, holder: str) -> None:
        await self._yield_and_check_open()
        validation.check_holder(holder)
        # The rows still name the holder. Without a beat it counts as dead: all are free.
        self._beats.pop(holder, None)

    async def drop_leases(self) -> None:
        await self._yield_and_check_open()
        self._beats.clear()
        for stored_run in self._runs.values():
            if stored_run.row.holder:
                stored_run.row = replace(stored_run.row, holder=validation.DROPPED_HOLDER)

    async def list_holders(self) -> Mapping[str, float]:
        await self._yield_and_check_open()
        return {name: beat.lag_s for name, beat in self._beats.items() if self._is_alive(name)}

    async def list_runs(self, query: RunQuery) -> Page[RunRow]:
        await self._yield_and_check_open()
        limit, before = validation.check_query(query), INTEGER_MAX
        if query.cursor:
            # Runs are numbered in order of creation, and a deleted run keeps its number. So
            # "older than the last run of the previous page" stays a stable position whatever is
            # created or deleted meanwhile.
            before = self._find_number(query.cursor, query.tenant)
        wanted = parse_search(query.search)
        rows = [
            stored_run.row
            for stored_run in reversed(self._runs.values())
            if stored_run.number < before
            and _matches_query(stored_run.row, query)
            and (not query.search or match_words(stored_run.words, wanted))
        ]
        items = tuple(rows[:limit])
        return Page(items=items, cursor=items[-1].run if len(rows) > len(items) else "")

    async def get_usage(
        self, owner: str, *, since: Micros, sizes: bool = True, tenant: str = ""
    ) -> OwnerUsage:
        await self._yield_and_check_open()
        seen_by = Visibility(tenant=tenant, owner=owner)
        validation.check_visibility(seen_by)
        runs = self._runs.values()
        owned = [stored_run for stored_run in runs if seen_by.includes(stored_run.row.head)]
        recent = [each.row for each in owned if each.row.started_at >= since]
        recent_heads = [row.head for row in recent]
        return OwnerUsage(
            open_runs=sum(
                stored_run.row.head.phase not in TERMINAL_PHASES for stored_run in owned
            ),
            runs=len(recent_heads),
            cost=sum(head.cost for head in recent_heads),
            tokens=sum(head.tokens for head in recent_heads),
            oldest_start=min((row.started_at for row in recent), default=None),
            stored_bytes=sum(map(self._count_bytes, owned)) if sizes else 0,
        )

    async def count_runs_by_phase(self, tenant: str | None = None) -> Mapping[Phase, int]:
        await self._yield_and_check_open()
        heads = (stored_run.row.head for stored_run in self._runs.values())
        return Counter(head.phase for head in heads if tenant in {None, head.tenant})

    async def count_open_runs(self) -> Sequence[RunGroup]:
        await self._yield_and_check_open()
        groups: defaultdict[tuple[str, Phase], list[RunRow]] = defaultdict(list)
        for stored_run in self._runs.values():
            head = stored_run.row.head
            if head.phase not in TERMINAL_PHASES:
                groups[head.agent, head.phase].append(stored_run.row)
        return [
            RunGroup(
                agent=agent,
                phase=phase,
                runs=len(rows),
                asks=sum(row.head.asks for row in rows),
                oldest_change=min(row.changed_at for row in rows),
                oldest_asking=min(
                    (row.changed_at for row in rows if row.head.asks), default=None
                ),
            )
            for (agent, phase), rows in sorted(groups.items())
        ]

    async def list_drivable(self, *, limit: int, agents: Sequence[str] = ()) -> Sequence[RunId]:
        await self._yield_and_check_open()
        limit = validation.clamp_limit(limit)
        validation.check_agent_names(agents)
        return [
            run
            for run, stored_run in self._runs.items()
            if stored_run.row.head.phase in DRIVABLE_PHASES
            and not self._is_alive(stored_run.row.holder)
            and (not agents or stored_run.row.head.agent in agents)
        ][:limit]

    async def list_due(self, *, limit: int) -> Sequence[RunId]:
        await self._yield_and_check_open()
        limit, now = validation.clamp_limit(limit), self._clock()
        waiting = (
            (stored_run.row.head.wake_at, stored_run.number, run)
            for run, stored_run in self._runs.items()
            if stored_run.row.head.wake_at is not None and stored_run.row.head.wake_at <= now
        )
        return [run for _, _, run in sorted(waiting)[:limit]]

    async def set_halt(self, halt: HaltRecord) -> None:
        await self._yield_and_check_open()
        validation.check_halt(halt)
        # The first halt of a scope stays: a second one must not replace its author and reason.
        key = (halt.tenant, halt.scope)
        self._halts.setdefault(key, replace(halt, at=self._clock()))
        self._watchers.notify([(HALTS_CHANGED, SEQ_ZERO)])

    async def remove_halt(self, scope: str, tenant: str | None = None) -> bool:
        await self._yield_and_check_open()
        validation.check_text("scope", scope)
        removed = self._halts.pop((tenant, scope), None) is not None
        self._watchers.notify([(HALTS_CHANGED, SEQ_ZERO)])
        return removed

    async def list_halts(self, tenant: str | None = None) -> Sequence[HaltRecord]:
        await self._yield_and_check_open()
        halts = self._halts.values()
        return tuple(h for h in halts if tenant is None or h.tenant in {None, tenant})

    async def append_audit(self, entry: AuditEntry) -> None:
        await self._yield_and_check_open()
        body, at = encode_audit(entry), self._clock()
        line, self._audit_end = make_audit_line(
            self.chain, self._audit_end, at, entry.tenant, body
        )
        self._audit.append(line)

    async def list_audit(
        self, *, since: Micros, until: Micros, after: int, limit: int, tenant: str | None = None
    ) -> Sequence[tuple[int, AuditEntry]]:
        await self._yield_and_check_open()
        return [
            (line.number, build_audit(line.at, line.body))
            for line in self._audit
            if line.number > after
            and since <= line.at < until
            and tenant in {None, line.tenant}
        ][: validation.clamp_limit(limit)]

    async def read_audit_lines(self, *, after: int, limit: int) -> Sequence[AuditLine]:
        await self._yield_and_check_open()
        lines = [line for line in self._audit if line.number > after]
        return lines[: validation.clamp_limit(limit)]

    async def read_audit_end(self) -> AuditEnd:
        await self._yield_and_check_open()
        return self._audit_end

    # ── deletion ──────────────────────────────────────────────────────────────────────────

    async def list_ended(self, query: EndedQuery) -> Page[RunRow]:
        await self._yield_and_check_open()
        limit, after = check_ended_query(query), parse_ended_cursor(query.cursor)
        found = sorted(
            (stored_run.row.changed_at, stored_run.number, stored_run.row)
            for stored_run in self._runs.values()
            if self._matches_ended(stored_run.row, query)
            and (stored_run.row.changed_at, stored_run.number) > after
        )[: limit + 1]
        rows = [(number, row) for _, number, row in found]
        items = tuple(row for _, row in rows[:limit])
        return Page(items=items, cursor=make_ended_cursor(rows, limit))

    async def delete_runs(
        self, runs: Sequence[RunId], *, by: str, reason: str = "", tenant: str | None = None
    ) -> DeletedRuns:
        await self._yield_and_check_open()
        check_delete(runs, by, reason)
        tombstones: list[Tombstone] = []
        refusals: list[StoreError] = []
        for run in runs:
            stored_run, seen_by = self._runs.get(run), Visibility(tenant=tenant)
            if stored_run is None or not seen_by.includes(stored_run.row.head):
                refusals.append(explain_missing(run, self._tombstones.get(run), seen_by))
                continue
            family = [run]
            for member in family:  # grows while it is read
                family += [
                    child
                    for child, stored_child in self._runs.items()
                    if stored_child.row.head.parent == member and child not in family
                ]
            heads = [(member, self._runs[member].row.head) for member in family]
            has_parent = heads[0][1].parent in self._runs
            if (refusal := find_refusal(heads, has_parent=has_parent)) is not None:
                refusals.append(refusal)
                continue
            tombstones += [self._bury(self._runs[member], by, reason) for member in family]
        self._watchers.notify([(t.run, Seq(t.seq + 1)) for t in tombstones])
        return DeletedRuns(tombstones=tuple(tombstones), refusals=tuple(refusals))

    def _bury(self, stored_run: _MemoryRun, by: str, reason: str) -> Tombstone:
        """Replace a run by its tombstone."""
        row, at = stored_run.stored_row, self._clock()
        tombstone = make_tombstone(self.chain, row, by=by, at=at, reason=reason)
        self._tombstones[row.run] = tombstone
        self._numbers_of_deleted[row.run] = stored_run.number
        del self._runs[row.run]
        self._cursors.remove_run(row.run)
        self._push_targets.remove_run(row.run)
        used = {key for other in self._runs.values() for key in other.file_hashes}
        for key in stored_run.file_hashes - used:
            self._files.pop(key, None)
        return tombstone

    async def remove_leftovers(self) -> bool:
        await self._yield_and_check_open()
        return False  # the journal goes with its run

    async def get_tombstone(self, run: RunId, tenant: str | None = None) -> Tombstone:
        await self._yield_and_check_open()
        tombstone = self._tombstones.get(run)
        if tombstone is None or tenant not in {None, tombstone.tenant}:
            raise RunNotFound(run)
        return tombstone

    def _matches_ended(self, row: RunRow, query: EndedQuery) -> bool:
        head = row.head
        return (
            head.phase in DELETABLE_PHASES
            and head.parent not in self._runs
            and row.changed_at < query.before
            and query.agent in {"", head.agent}
            and query.thread in {"", head.thread}
            and query.owner in {"", head.owner}
            and query.tenant in {None, head.tenant}
            and (not query.label or query.label in head.labels)
        )

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[Change]]:
        await self._yield_and_check_open()
        with self._watchers.subscribe() as watch:
            yield watch

    def follower_cursors(self) -> FollowerCursors:
        return self._cursors

    def push_targets(self) -> PushTargets:
        return self._push_targets

    async def close(self) -> None:
        self._closed = True
        self._watchers.end_watches()
        await checkpoint()

    async def _yield_and_check_open(self) -> None:
        # Every method yields once, before it reads anything. So tasks race for this store as
        # they race for one that waits for a disk, and tests on it find the same bugs.
        await checkpoint()
        if self._closed:
            raise StoreClosed("memory")

    def _get_run(self, run: RunId) -> _MemoryRun:
        try:
            return self._runs[run]
        except KeyError:
            raise explain_missing(run, self._tombstones.get(run)) from None

    def _find_number(self, cursor: str, tenant: str | None) -> int:
        run, stored_run = RunId(cursor), self._runs.get(RunId(cursor))
        if stored_run is not None and tenant in {None, stored_run.row.head.tenant}:
            return stored_run.number
        tombstone = self._tombstones.get(run)
        if tombstone is None or tenant not in {None, tombstone.tenant}:
            raise CursorRefused(cursor)
        return self._numbers_of_deleted[run]

    def _count_bytes(self, stored_run: _MemoryRun) -> int:
        lines = sum(len(line) for line, _ in stored_run.lines)
        return lines + sum(len(self._files[key]) for key in stored_run.file_hashes)

    def _count_held(self, excluded: RunId, scope: str) -> int:
        rows = (
            stored_run.row
            for stored_run in self._runs.values()
            if stored_run.row.run != excluded
        )
        return sum(
            bool(select_limits({scope: 1}, row.head)) and self._is_alive(row.holder)
            for row in rows
        )

    def _count_quota_runs(self, quota: RunQuota) -> tuple[int, int]:
        seen_by = Visibility(tenant=quota.tenant, owner=quota.owner)
        rows = [each.row for each in self._runs.values() if seen_by.includes(each.row.head)]
        open_runs = sum(row.head.phase not in TERMINAL_PHASES for row in rows)
        return open_runs, sum(row.started_at >= quota.since for row in rows)

    def _is_alive(self, holder: str) -> bool:
        beat = self._beats.get(holder)
        return beat is not None and validation.is_holder_alive(
            self._clock(), beat.at, beat.ttl_micros
        )


def _matches_query(row: RunRow, query: RunQuery) -> bool:
    head = row.head
    return (
        (not query.phases or head.phase in query.phases)
        and query.agent in {"", head.agent}
        and query.thread in {"", head.thread}
        and query.parent in {"", head.parent}
        and validation.get_visibility(query).includes(head)
        and (
            query.decider in {"", head.owner}
            or query.decider in head.addressees
            or (head.team != "" and head.team in query.teams)
        )
        and (not query.label or query.label in head.labels)
        and (not query.attention or head.attention != "")
    )
