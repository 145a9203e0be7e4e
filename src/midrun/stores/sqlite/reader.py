"""Reads of the SQLite store, in the event loop's thread if they are short.

Long reads go to a worker thread. In WAL mode readers never wait for the writer, nor the writer
for them. A read of a journal takes the run's row first and then the entries up to the row's
seq. Entries are only removed after their run was deleted, so both together are one consistent
view even though they are two statements. If entries are missing, the tombstone is looked up.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import anyio.to_thread
import apsw
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
    StoreClosed,
)
from midrun.ports.audit import AuditEnd, AuditLine
from midrun.ports.store import (
    ALL_RUNS,
    EndedQuery,
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
from midrun.stores.chunks import join_line, list_chunk_hashes
from midrun.stores.deletion import (
    check_ended_query,
    explain_missing,
    make_ended_cursor,
    parse_ended_cursor,
)
from midrun.stores.encryption import PayloadCipher
from midrun.stores.operations import INLINE_MAX_BYTES, INLINE_MAX_ENTRIES
from midrun.stores.search import format_fts5_query, parse_search
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import (
    FILE_ERRORS,
    explain_failure,
    open_reader,
    translate_errors,
)
from midrun.stores.sqlite.row_cache import select_tombstone
from midrun.stores.validation import (
    ROW_COLUMN_COUNT,
    build_row,
    build_run_group,
    name_indexed_columns,
)

T = TypeVar("T")
LineAndHash = tuple[bytes, bytes]

READER_MAX_THREADS: Final = 8
"""The most threads that may wait for one connection."""


class ReadConnection:
    """A read-only connection for one thread at a time."""

    def __init__(self, path: Path, *, busy_ms: int) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._lock = Lock()
        self._threads = anyio.CapacityLimiter(READER_MAX_THREADS)
        self._db: apsw.Connection | None = open_reader(path, busy_ms=busy_ms)

    def read_inline(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run `read` on the connection in this thread and return its result."""
        with self._lock, translate_errors(self._path, self._busy_ms):
            if self._db is None:
                raise StoreClosed(str(self._path))
            try:
                return read(self._db)
            except FILE_ERRORS as error:
                raise explain_failure(self._db, error) from error

    async def read_in_thread(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run `read` on the connection in a worker thread and return its result."""
        # A limiter of its own: AnyIO's default limiter is shared with everything that the
        # process does in threads, and blocking tools could use it up.
        return await anyio.to_thread.run_sync(self.read_inline, read, limiter=self._threads)

    def close(self) -> None:
        """Close the connection when the current read has finished."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None


def read_row(db: apsw.Connection, run: RunId, seen_by: Visibility = ALL_RUNS) -> RunRow:
    """Return the row of `run` if `seen_by` includes it."""
    validation.check_run_id(run)
    validation.check_visibility(seen_by)
    if seen_by == ALL_RUNS:
        found = db.execute(queries.ROW, (run,)).get
    else:
        bound = (run, seen_by.tenant, seen_by.owner or None, _encode_names(seen_by.teams))
        found = db.execute(queries.VISIBLE_ROW, bound).get
    if found is None:
        raise explain_missing(run, select_tombstone(db, run), seen_by)
    return build_row(*found[1:])


def _encode_names(names: Sequence[str]) -> str:
    """Return names as a JSON array, a single parameter of a statement; leave out ""."""
    return msgspec.json.encode([name for name in names if name]).decode()


def read_indexed_row(db: apsw.Connection, run: RunId) -> tuple[RunRow, dict[str, object]]:
    """Return the row of `run`, and its indexed columns by name."""
    validation.check_run_id(run)
    found = db.execute(queries.INDEXED_ROW, (run,)).get
    if found is None:
        raise explain_missing(run, select_tombstone(db, run))
    _, *columns = found
    index = name_indexed_columns(columns[ROW_COLUMN_COUNT:])
    labels = msgspec.json.decode(str(index["labels"]), type=list[str])
    return build_row(*columns[:ROW_COLUMN_COUNT]), index | {"labels": sorted(labels)}


def find_tail(db: apsw.Connection, run: RunId, after: Seq, limit: int | None) -> "JournalTail":
    """Fix the range of entries after `after`, up to the run's current end."""
    validation.check_read_range(after, limit)
    validation.check_run_id(run)
    found = db.execute(queries.RUN_END, (run,)).get
    if found is None:
        raise explain_missing(run, select_tombstone(db, run))
    # The end is fixed here. Entries that are appended while the range is read belong to a later
    # range, and the hash of the row is compared with the entry that was last at this moment.
    number, seq, link = found
    # The hash of the run's row can be compared only with the last entry of the journal. A range
    # that ends earlier has none to compare.
    end = seq if limit is None else min(seq, after + limit)
    return JournalTail(run, number, min(after, INTEGER_MAX), end, link if end == seq else None)


def is_small_tail(db: apsw.Connection, tail: "JournalTail") -> bool:
    """Tell whether `tail` is small enough to be read in the event loop's thread."""
    if len(tail) > INLINE_MAX_ENTRIES:
        return False
    return not len(tail) or tail.measure_bytes(db) <= INLINE_MAX_BYTES


class JournalTail:
    """The range of one journal after `after`, up to and including `end`.

    `end_hash` is the hash in the run's row if the range ends with the journal, else None.
    """

    def __init__(
        self, run: RunId, number: int, after: int, end: int, end_hash: bytes | None
    ) -> None:
        self._run = run
        self._number = number
        self._after = after
        self._end = end
        self._end_hash = end_hash

    def __len__(self) -> int:
        return max(0, self._end - self._after)

    def measure_bytes(self, db: apsw.Connection) -> int:
        """Return the total length of the lines in bytes, without reading them."""
        size: int = db.execute(queries.LINES_BYTES, (self._number, self._after, self._end)).get
        return size

    def read_pairs(self, db: apsw.Connection) -> list[LineAndHash]:
        """Return the lines with their stored hashes, unchecked."""
        bounds = (self._number, self._after, self._end)
        pairs: list[LineAndHash] = list(db.execute(queries.SELECT_LINES, bounds))
        # Only the first line of a journal can refer to chunks.
        if pairs and not self._after:
            stored, link = pairs[0]
            pairs[0] = _join_stored_line(db, stored), link
        # The run may have been deleted since its end was read. Its entries and chunks are
        # removed later than its tombstone was written, so this check comes last.
        if (tombstone := select_tombstone(db, self._run)) is not None:
            raise explain_missing(self._run, tombstone)
        return pairs

    def read_records(
        self, db: apsw.Connection, chain: HashChain, cipher: PayloadCipher
    ) -> list[Record]:
        """Return the entries; verify their hash chain and their number.

        Raises:
            JournalCorrupt: an entry is missing or was changed.
            JournalKeyMissing: `cipher` does not have the key of an entry.
        """
        if not len(self):
            return []
        # The chain of the range starts with the hash of the entry before it.
        previous = None
        if self._after:
            previous = db.execute(queries.ENTRY_HASH, (self._number, self._after)).get
            if previous is None:
                if (tombstone := select_tombstone(db, self._run)) is not None:
                    raise explain_missing(self._run, tombstone)
                raise JournalCorrupt(self._run, self._after, "the entry is missing")
        pairs = self.read_pairs(db)
        after = Seq(self._after)
        # The chain proves that the lines follow each other. It cannot show that lines at the
        # end are missing; the count and the hash in the run's row do.
        lines = chain.verify_lines(self._run, pairs, after=after, previous=previous)
        if len(pairs) != len(self):
            raise JournalCorrupt(self._run, after + len(pairs) + 1, "the entry is missing")
        if self._end_hash is not None and pairs[-1][1] != self._end_hash:
            raise JournalCorrupt(self._run, self._end, "the run's head has another hash")
        opened = cipher.decrypt_lines(self._run, lines, after=after)
        return decode_lines(self._run, opened, after=after)


def _join_stored_line(db: apsw.Connection, stored: bytes) -> bytes:
    chunks: dict[bytes, bytes] = {}
    for digest in list_chunk_hashes(stored):
        chunks[digest] = db.execute(queries.CHUNK, (digest,)).get or b""
    return join_line(stored, chunks)


def measure_snapshot(db: apsw.Connection, run: RunId) -> int:
    """Return the length of the snapshot of `run` in bytes; 0 if there is none."""
    size: int | None = db.execute(queries.SNAPSHOT_BYTES, (run,)).get
    return size or 0


def read_snapshot(db: apsw.Connection, run: RunId) -> Snapshot | None:
    """Return the snapshot of `run` if its hash matches the journal's at that seq."""
    validation.check_run_id(run)
    if db.execute(queries.RUN_EXISTS, (run,)).get is None:
        raise explain_missing(run, select_tombstone(db, run))
    found = db.execute(queries.SNAPSHOT, (run,)).get
    if found is None:
        return None
    seq, link, body = found
    return Snapshot(seq=seq, hash=link, body=body)


def read_file(db: apsw.Connection, run: RunId, file_hash: str) -> bytes:
    """Return the body of a file of `run`."""
    validation.check_run_id(run)
    if db.execute(queries.RUN_EXISTS, (run,)).get is None:
        raise explain_missing(run, select_tombstone(db, run))
    validation.check_file_hash(run, file_hash)
    body: bytes | None = db.execute(queries.FILE, (run, bytes.fromhex(file_hash))).get
    if body is None:
        raise FileMissing(run, file_hash)
    return body


def read_page(db: apsw.Connection, query: RunQuery) -> Page[RunRow]:
    """Return a page of runs, newest first."""
    limit, before = validation.check_query(query), _find_page_start(db, query)
    filters = (query.agent, query.thread, query.parent, query.attention)
    people = (query.owner, query.decider)
    wanted = parse_search(query.search)
    if query.search and not wanted:
        return Page(items=())
    # SQLite counts the parameters of a statement, and only one of them has the words.
    words = (format_fts5_query(wanted),) if wanted else ()
    found: list[tuple[int, RunRow]] = []
    # One statement for each phase, each with the full limit, merged by creation order. Compared
    # with a single phase, the index gives the rows in that order already.
    for phase in dict.fromkeys(query.phases) or (None,):
        bound = (
            before,
            limit + 1,
            query.label or None,
            phase,
            *(v or None for v in (*filters, *people)),
            query.tenant,
            _encode_names(query.teams),
            *words,
        )
        for number, *columns in db.execute(_choose_list_statement(query), bound):
            found.append((number, build_row(*columns)))
    if len(query.phases) > 1:
        found.sort(key=itemgetter(0), reverse=True)
    # One row more than the page was requested: it tells whether there is a next page.
    items = tuple(row for _, row in found[:limit])
    return Page(items=items, cursor=items[-1].run if len(found) > len(items) else "")


def _find_page_start(db: apsw.Connection, query: RunQuery) -> int:
    """Return the run number below which the page of the query's cursor begins.

    Raises:
        CursorRefused: the tenant has no such run.
    """
    if not query.cursor:
        return INTEGER_MAX
    bound = (query.cursor, query.tenant)
    start: int | None = db.execute(queries.RUN_NUMBER, bound).get
    if start is None:
        raise CursorRefused(query.cursor)
    return start


def read_ended(db: apsw.Connection, query: EndedQuery) -> Page[RunRow]:
    """Return a page of runs that may be deleted."""
    limit, after = check_ended_query(query), parse_ended_cursor(query.cursor)
    filters = (query.label, query.agent, query.thread, query.owner)
    names = (value or None for value in filters)
    bound = (query.before, limit + 1, *names, *after, query.tenant)
    found = [
        (number, build_row(*columns)) for number, *columns in db.execute(queries.ENDED, bound)
    ]
    items = tuple(row for _, row in found[:limit])
    return Page(items=items, cursor=make_ended_cursor(found, limit))


def read_tombstone(db: apsw.Connection, run: RunId, tenant: str | None) -> Tombstone:
    """Return the tombstone of `run`, if the run was one of `tenant`."""
    validation.check_run_id(run)
    tombstone = select_tombstone(db, run)
    if tombstone is None or tenant not in {None, tombstone.tenant}:
        raise RunNotFound(run)
    return tombstone


def read_usage(
    db: apsw.Connection, tenant: str, owner: str, since: Micros, *, sizes: bool
) -> OwnerUsage:
    """Return the resources that the runs of `owner` in `tenant` use."""
    statement = queries.USAGE_OF_OWNER if owner else queries.USAGE_OF_TENANT
    open_runs, runs, cost, tokens, oldest = db.execute(statement, (tenant, owner, since)).get
    size = db.execute(queries.STORED_BYTES, (tenant, owner)).get if sizes else 0
    return OwnerUsage(
        open_runs=open_runs,
        runs=runs,
        cost=cost,
        tokens=tokens,
        oldest_start=oldest,
        stored_bytes=size,
    )


def count_phases(db: apsw.Connection, tenant: str | None) -> Mapping[Phase, int]:
    """Return the number of runs in each phase, of all tenants or of one."""
    if tenant:
        found = db.execute(queries.COUNTS_OF_TENANT, (tenant,))
    else:
        found = db.execute(queries.COUNTS if tenant is None else queries.COUNTS_OF_DEFAULT)
    return msgspec.convert(dict(found), dict[Phase, int])


def group_open_runs(db: apsw.Connection) -> list[RunGroup]:
    """Return the runs that have not ended, by agent and phase."""
    return [build_run_group(*columns) for columns in db.execute(queries.OPEN_RUNS)]


def find_drivable(
    db: apsw.Connection, now: Micros, limit: int, agents: Sequence[str]
) -> list[RunId]:
    """Return runs that need a driver and have no live holder, oldest first."""
    names = msgspec.json.encode(agents).decode() if agents else None
    return [run for (run,) in db.execute(queries.DRIVABLE, (now, names, limit))]


def find_due(db: apsw.Connection, now: Micros, limit: int) -> list[RunId]:
    """Return runs whose `wake_at` has passed, the longest overdue first."""
    return [run for (run,) in db.execute(queries.DUE, (now, limit))]


def find_live_holders(db: apsw.Connection, now: Micros) -> Mapping[str, float]:
    """Return the live holders, each with the lag of its event loop."""
    return dict(db.execute(queries.HOLDERS, (now,)))


def _choose_list_statement(query: RunQuery) -> str:
    """Choose the statement whose leading filter is likely to match the fewest runs."""
    if query.search:
        return queries.LIST_BY_WORDS
    if query.parent:
        return queries.LIST_BY_PARENT
    if query.thread:
        return queries.LIST_BY_THREAD
    if query.label:
        return queries.LIST_BY_LABEL
    # With teams, runs of other owners match, too.
    if query.owner and not query.teams:
        return queries.LIST_BY_OWNER
    if query.attention:
        return queries.LIST_BY_ATTENTION
    if query.tenant:
        return queries.LIST_BY_TENANT
    if query.phases:
        return queries.LIST_BY_PHASE
    return queries.LIST_BY_AGENT if query.agent else queries.LIST_ALL


def select_audit_end(db: apsw.Connection) -> AuditEnd:
    """Return the end of the audit log that is stored beside it."""
    found = db.execute(queries.AUDIT_END).get
    if found is None:
        return AuditEnd()
    number, link, seal = found
    return AuditEnd(number=number, hash=link, seal=seal)


def select_audit_lines(db: apsw.Connection, after: int, limit: int) -> list[AuditLine]:
    """Return stored lines of the audit log, in order."""
    return [
        AuditLine(number=number, at=at, tenant=tenant, body=body, hash=link)
        for number, at, tenant, body, link in db.execute(queries.AUDIT_LINES, (after, limit))
    ]
