"""Reads of the Postgres store: rows of the server turned into values."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from midrun.codec.hash_chain import HashChain
from midrun.codec.journal import decode_lines
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core.entries import Record
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.values import Phase
from midrun.errors import (
    CursorRefused,
    FileMissing,
    JournalCorrupt,
    RunNotFound,
    StoreError,
)
from midrun.ports.follower_cursors import FollowerCursor
from midrun.ports.push_targets import PushTarget
from midrun.ports.store import (
    ALL_RUNS,
    EndedQuery,
    HaltRecord,
    OwnerUsage,
    Page,
    RunGroup,
    RunQuery,
    RunRow,
    Snapshot,
    Visibility,
)
from midrun.stores import validation
from midrun.stores.chunks import join_line, list_chunk_hashes
from midrun.stores.cursors import check_cursor, check_follower_name, check_push_target
from midrun.stores.deletion import (
    check_ended_query,
    find_refusal,
    make_ended_cursor,
    parse_ended_cursor,
)
from midrun.stores.encryption import PayloadCipher
from midrun.stores.operations import StoredRow
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import ServerClock
from midrun.stores.postgres.operations import check_no_nul
from midrun.stores.postgres.pool import ConnectionPool
from midrun.stores.postgres.writer import (
    build_row_state,
    read_missing_error,
    read_tombstone,
)
from midrun.stores.search import format_tsquery, parse_search
from midrun.stores.validation import (
    ROW_COLUMN_COUNT,
    build_halt,
    build_row,
    build_run_group,
    name_indexed_columns,
)

# Follower cursors in Postgres.
#
# The first time a follower comes, the server notes the number of the newest run (`since`). A
# run up to that number without a cursor has not grown since; `midrun_write` adds its cursor
# when it grows.


class PostgresFollowerCursors:
    """The follower cursors of one schema."""

    def __init__(self, pool: ConnectionPool, server_clock: ServerClock) -> None:
        self._pool = pool
        self._server_clock = server_clock

    async def acquire_leadership(self, follower: str, *, holder: str, ttl: timedelta) -> bool:
        check_follower_name(follower)
        ttl_micros = validation.check_heartbeat(holder, ttl, 0.0)
        values = {"follower": follower, "holder": holder, "ttl": ttl_micros}
        values |= {"now": self._server_clock.get_override()}
        ((acquired,),) = await self._pool.execute(queries.ACQUIRE_LEADERSHIP, values)
        return bool(acquired)

    async def release_leadership(self, follower: str, *, holder: str) -> None:
        await self._pool.execute(
            queries.RELEASE_LEADERSHIP, {"follower": follower, "holder": holder}
        )

    async def list_behind(self, follower: str, *, limit: int) -> Sequence[FollowerCursor]:
        check_follower_name(follower)
        rows = await self._pool.execute(queries.SELECT_SINCE, {"follower": follower})
        since = rows[0][0] if rows else 0
        values = {"follower": follower, "since": since, "limit": validation.clamp_limit(limit)}
        behind = await self._pool.execute(queries.SELECT_BEHIND, values, prepare=False)
        return [FollowerCursor(run=run, seq=seq, note=note) for run, seq, note in behind]

    async def get_cursor(self, follower: str, run: RunId) -> FollowerCursor:
        check_follower_name(follower)
        validation.check_run_id(run)
        found = await self._pool.execute(
            queries.SELECT_CURSOR, {"follower": follower, "run": run}
        )
        if not found:
            raise await read_missing_error(self._pool, run)
        seq, note = found[0]
        return FollowerCursor(run=run, seq=seq, note=note)

    async def advance_cursor(self, follower: str, cursor: FollowerCursor) -> None:
        check_cursor(follower, cursor)
        check_no_nul("note", cursor.note)
        validation.check_run_id(cursor.run)
        values = {
            "follower": follower,
            "run": cursor.run,
            "seq": cursor.seq,
            "note": cursor.note,
        }
        if not await self._pool.execute(queries.ADVANCE_CURSOR, values):
            raise await read_missing_error(self._pool, cursor.run)


class PostgresPushTargets:
    """The push targets of one schema."""

    def __init__(self, pool: ConnectionPool, cipher: PayloadCipher) -> None:
        self._pool = pool
        self._cipher = cipher

    async def put_target(self, run: RunId, target: PushTarget) -> None:
        check_push_target(run, target)
        check_no_nul("id", target.id)
        body = self._cipher.encrypt_target(run, target.body)
        values = {"run": run, "id": target.id, "body": body}
        await self._pool.execute(queries.PUT_TARGET, values)

    async def list_targets(self, run: RunId) -> Sequence[PushTarget]:
        validation.check_run_id(run)
        return [
            PushTarget(id=name, body=self._cipher.decrypt_target(run, bytes(body)))
            for name, body in await self._pool.execute(queries.SELECT_TARGETS, {"run": run})
        ]

    async def remove_target(self, run: RunId, target_id: str) -> None:
        validation.check_run_id(run)
        check_no_nul("id", target_id)
        await self._pool.execute(queries.REMOVE_TARGET, {"run": run, "id": target_id})


LineAndHash = tuple[bytes, bytes]

ENTRIES_PER_QUERY: Final = 2000
"""The most entries in one query, because a statement has a time limit."""


class JournalRange:
    """The entries of one journal after `after`, as of its last query.

    A long journal is read with several queries. Entries are removed only with their run, so all
    parts together are one consistent view, up to the run's seq in the last part.
    """

    def __init__(self, run: RunId, after: Seq) -> None:
        self._run = run
        self._after = after
        self._previous_hash: bytes | None = None
        self._row: StoredRow | None = None
        self._end = 0  # seq of the last entry that the range must contain
        self.pairs: list[LineAndHash] = []

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def total_bytes(self) -> int:
        """Total length of the lines in bytes."""
        return sum(len(line) for line, _ in self.pairs)

    def decode_records(self, chain: HashChain, cipher: PayloadCipher) -> list[Record]:
        """Return the entries; verify their hash chain and their number.

        Raises:
            JournalCorrupt: an entry is missing or was changed.
            JournalKeyMissing: `cipher` does not have the key of an entry.
        """
        run, after, pairs = self._run, self._after, self.pairs
        if self._end <= after:
            return []
        if after and self._previous_hash is None:
            raise JournalCorrupt(run, after, "the entry is missing")
        # The chain proves that the lines follow each other. It cannot show that lines at the
        # end are missing; the count and the hash in the run's row do.
        lines = chain.verify_lines(run, pairs, after=after, previous=self._previous_hash)
        if len(pairs) != self._end - after:
            raise JournalCorrupt(run, after + len(pairs) + 1, "the entry is missing")
        row_state = self._row
        if (
            row_state is not None
            and self._end == row_state.seq
            and pairs[-1][1] != row_state.hash
        ):
            raise JournalCorrupt(run, self._end, "the run's head has another hash")
        return decode_lines(run, cipher.decrypt_lines(run, lines, after=after), after=after)

    async def read(self, pool: ConnectionPool, limit: int | None) -> StoredRow:
        """Read all parts and return the run's row.

        Raises:
            RunNotFound: no such run.
        """
        last = INTEGER_MAX if limit is None else min(INTEGER_MAX, self._after + limit)
        position = min(self._after, INTEGER_MAX)
        while True:
            # Each part is a statement of its own, so the run may grow between two parts. The
            # end is taken from the row of the last part; a journal only grows, so the parts
            # before it stay valid.
            part_end = min(last, position + ENTRIES_PER_QUERY)
            values = {"run": self._run, "after": position, "end": part_end}
            rows = await pool.execute(queries.JOURNAL, values)
            if not rows:
                raise await read_missing_error(pool, self._run)
            # One statement returns the run's row first and then the entries up to its seq, so
            # both are of one snapshot. The entry at `after` itself comes along, because the
            # chain needs its hash.
            run_row, *entries = rows
            seq, link, head, changed_at, epoch, holder = run_row
            row_state = build_row_state(self._run, seq, link, changed_at, epoch, holder, head)
            self._row = row_state
            for seq, link, line, *_ in entries:
                if seq > position:
                    self.pairs.append((line, link))
                elif seq == self._after:
                    self._previous_hash = link
            self._end = min(row_state.seq, part_end)
            if self._end >= min(row_state.seq, last):
                await self._join_first(pool)
                return row_state
            position = self._end

    async def _join_first(self, pool: ConnectionPool) -> None:
        """Join the run's first line with its chunks, if the range contains it."""
        if self._after or not self.pairs:
            return
        stored, link = self.pairs[0]
        if hashes := list_chunk_hashes(stored):
            chunks: dict[bytes, bytes] = dict(
                await pool.execute(queries.CHUNKS, {"hashes": hashes})
            )
            # The run may have been deleted since its entries were read, and its chunks with it.
            if len(chunks) < len(set(hashes)) and await read_tombstone(pool, self._run):
                raise await read_missing_error(pool, self._run)
            self.pairs[0] = join_line(stored, chunks), link


async def read_row(pool: ConnectionPool, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
    """Return the row of `run` if `seen_by` includes it."""
    validation.check_run_id(run)
    validation.check_visibility(seen_by)
    if "\0" in "".join((seen_by.tenant or "", seen_by.owner, *seen_by.teams)):
        raise RunNotFound(run)  # Postgres text has no NUL, so no run matches
    if seen_by == ALL_RUNS:
        rows = await pool.execute(queries.ROW, {"run": run})
    else:
        values = {
            "run": run,
            "tenant": seen_by.tenant,
            "owner": seen_by.owner or None,
            "teams": [team for team in seen_by.teams if team],
        }
        rows = await pool.execute(queries.VISIBLE_ROW, values)
    if not rows:
        raise await read_missing_error(pool, run, seen_by)
    return build_row(*rows[0])


async def read_indexed_row(
    pool: ConnectionPool, run: RunId
) -> tuple[RunRow, dict[str, object]]:
    """Return the row of `run` and its indexed columns by name."""
    validation.check_run_id(run)
    rows = await pool.execute(queries.INDEXED_ROW, {"run": run})
    if not rows:
        raise await read_missing_error(pool, run)
    *columns, labels = rows[0]
    index = name_indexed_columns((*columns[ROW_COLUMN_COUNT:], sorted(labels)))
    return build_row(*columns[:ROW_COLUMN_COUNT]), index


async def read_snapshot(pool: ConnectionPool, run: RunId) -> Snapshot | None:
    """Return the snapshot of `run` if its hash matches the journal's at that seq."""
    validation.check_run_id(run)
    rows = await pool.execute(queries.SNAPSHOT, {"run": run})
    if not rows:
        raise await read_missing_error(pool, run)
    seq, link, body = rows[0]
    return None if seq is None else Snapshot(seq=seq, hash=link, body=body)


async def read_file(pool: ConnectionPool, run: RunId, file_hash: str) -> bytes:
    """Return the body of a file of `run`."""
    validation.check_run_id(run)
    validation.check_file_hash(run, file_hash)
    rows = await pool.execute(queries.FILE, {"run": run, "hash": bytes.fromhex(file_hash)})
    if not rows:
        raise await read_missing_error(pool, run)
    body: bytes | None = rows[0][0]
    if body is None:
        raise FileMissing(run, file_hash)
    return body


async def read_page(pool: ConnectionPool, query: RunQuery) -> Page[RunRow]:
    """Return a page of runs, newest first."""
    limit = validation.check_query(query)
    texts = (query.agent, query.thread, query.parent, query.label, query.owner, query.decider)
    if "\0" in "".join((*texts, query.tenant or "", *query.teams)):
        return Page(items=())  # Postgres text has no NUL, so no run matches
    wanted = parse_search(query.search)
    if query.search and not wanted:
        return Page(items=())
    before = INTEGER_MAX
    if query.cursor:
        position = {"run": query.cursor, "tenant": query.tenant}
        found = await pool.execute(queries.RUN_NUMBER, position)
        if not found:
            raise CursorRefused(query.cursor)
        ((before,),) = found
    values = {
        "before": before,
        "limit": limit + 1,
        "phases": list(query.phases) or None,
        "agent": query.agent or None,
        "thread": query.thread or None,
        "parent": query.parent or None,
        "label": query.label or None,
        "tenant": query.tenant,
        "owner": query.owner or None,
        "teams": [team for team in query.teams if team],
        "decider": query.decider or None,
        "attention": query.attention or None,
        "words": format_tsquery(wanted) or None,
    }
    statement = queries.LIST_RUNS
    if query.owner:
        statement += queries.LIST_OWNER_OR_TEAMS if query.teams else queries.LIST_OWNER
    if query.label:
        statement += queries.LIST_LABEL
    if wanted:
        statement += queries.LIST_WORDS
    found = await pool.execute(statement + queries.LIST_ORDER, values, prepare=False)
    items = tuple(build_row(*values) for _, *values in found[:limit])
    return Page(items=items, cursor=items[-1].run if len(found) > len(items) else "")


async def read_ended(pool: ConnectionPool, query: EndedQuery) -> Page[RunRow]:
    """Return a page of runs that may be deleted."""
    limit, (after_at, after_no) = check_ended_query(query), parse_ended_cursor(query.cursor)
    if "\0" in f"{query.agent}{query.thread}{query.label}{query.owner}{query.tenant}":
        return Page(items=())  # Postgres text has no NUL, so no run matches
    values = {
        "before": query.before,
        "after_at": after_at,
        "after_no": after_no,
        "limit": limit + 1,
        "agent": query.agent or None,
        "thread": query.thread or None,
        "label": query.label or None,
        "tenant": query.tenant,
        "owner": query.owner or None,
    }
    found = [
        (number, build_row(*columns))
        for number, *columns in await pool.execute(queries.ENDED, values, prepare=False)
    ]
    items = tuple(row for _, row in found[:limit])
    return Page(items=items, cursor=make_ended_cursor(found, limit))


async def read_families(
    pool: ConnectionPool, runs: Sequence[RunId], tenant: str | None
) -> tuple[list[list[StoredRow]], list[StoreError]]:
    """Return the rows of runs that may be deleted with their children, and the refusals."""
    families: dict[RunId, list[StoredRow]] = {}
    with_parent: set[RunId] = set()
    for root, *columns, has_parent in await pool.execute(
        queries.FAMILIES, {"runs": list(runs), "tenant": tenant}
    ):
        families.setdefault(root, []).append(build_row_state(*columns))
        if has_parent:
            with_parent.add(root)
    refusals: list[StoreError] = [
        await read_missing_error(pool, run, Visibility(tenant=tenant))
        for run in runs
        if run not in families
    ]
    allowed: list[list[StoredRow]] = []
    for root, family in families.items():
        heads = [(member.run, member.stored_head.head) for member in family]
        refusal = find_refusal(heads, has_parent=root in with_parent)
        if refusal is None:
            allowed.append(family)
        else:
            refusals.append(refusal)
    return allowed, refusals


async def read_usage(
    pool: ConnectionPool, tenant: str, owner: str, since: Micros, *, sizes: bool
) -> OwnerUsage:
    """Return the resources that the runs of `owner` in `tenant` use."""
    if "\0" in owner + tenant:
        return OwnerUsage()
    whose = {"tenant": tenant, "owner": owner or None}
    ((open_runs, runs, cost, tokens, oldest),) = await pool.execute(
        queries.USAGE, whose | {"since": since}, prepare=False
    )
    size = 0
    if sizes:
        ((size,),) = await pool.execute(queries.STORED_BYTES, whose, prepare=False)
    return OwnerUsage(
        open_runs=open_runs,
        runs=runs,
        cost=cost,
        tokens=tokens,
        oldest_start=oldest,
        stored_bytes=size,
    )


async def count_phases(pool: ConnectionPool, tenant: str | None) -> Mapping[Phase, int]:
    """Return the number of runs in each phase, of all tenants or of one."""
    found = await pool.execute(queries.COUNTS, {"tenant": tenant}, prepare=False)
    return msgspec.convert(dict(found), dict[Phase, int])


async def group_open_runs(pool: ConnectionPool) -> list[RunGroup]:
    """Return the runs that have not ended, by agent and phase."""
    return [build_run_group(*columns) for columns in await pool.execute(queries.OPEN_RUNS)]


async def read_halts(pool: ConnectionPool, tenant: str | None) -> Sequence[HaltRecord]:
    """Return the halts that are in force, oldest first."""
    found = await pool.execute(queries.HALTS, {"tenant": tenant})
    return [build_halt(*columns) for columns in found]
