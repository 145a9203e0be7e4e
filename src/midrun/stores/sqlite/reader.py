"""Reads of the SQLite store, in the event loop's thread if they are short.

Long reads go to a worker thread. In WAL mode readers never wait for the writer, nor the writer
for them. A read of a journal takes the run's row first and then the entries up to the row's
seq. Entries are never removed, so both together are one consistent view even though they are
two statements.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import anyio.to_thread
import apsw
import msgspec

from midrun.codec.hash_chain import Chain
from midrun.codec.journal import decode_lines
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core.entries import Record
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.values import Phase
from midrun.errors import CursorRefused, JournalCorrupt, RunNotFound, StoreClosed
from midrun.ports.store import Page, Query, RunRow, Snapshot, Usage
from midrun.stores import validation
from midrun.stores.chunks import join_line, list_chunks
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import DAMAGE, check_version, meaning, open_reader
from midrun.stores.validation import ROW_COLUMNS, index_of, row_of

T = TypeVar("T")
Pair = tuple[bytes, bytes]

QUICK_MAX: Final = 64
"""A read of at most this many entries stays in the event loop's thread."""

QUICK_BYTES: Final = 256 * 1024
"""A read of at most this many bytes does, too: to hash and decode them takes about 1 ms."""


READERS: Final = 8
"""The most threads that may wait for one connection."""


class Reader:
    """A read-only connection for one thread at a time."""

    def __init__(self, path: Path, *, busy_ms: int) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._turn = Lock()
        self._threads = anyio.CapacityLimiter(READERS)
        self._db: apsw.Connection | None = open_reader(path, busy_ms=busy_ms)

    def now(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `read` on the connection in this thread and return its result."""
        with self._turn, meaning(self._path, self._busy_ms):
            if self._db is None:
                raise StoreClosed(str(self._path))
            try:
                return work(self._db)
            except DAMAGE:
                # A statement also fails after a newer midrun has upgraded the schema. Then
                # `SchemaTooNew` says so, and the file is not reported as damaged.
                check_version(self._db)
                raise

    async def aside(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `read` on the connection in a worker thread and return its result."""
        # A limiter of its own: AnyIO's default limiter is shared with everything that the
        # process does in threads, and blocking tools could use it up.
        return await anyio.to_thread.run_sync(self.now, work, limiter=self._threads)

    def close(self) -> None:
        """Close the connection when the current read has finished."""
        with self._turn:
            if self._db is not None:
                self._db.close()
                self._db = None


def row(db: apsw.Connection, run: RunId) -> RunRow:
    """Return the row of `run`."""
    validation.check_id(run)
    found = db.execute(queries.ROW, (run,)).get
    if found is None:
        raise RunNotFound(run)
    return row_of(*found)


def indexed_row(db: apsw.Connection, run: RunId) -> tuple[RunRow, dict[str, object]]:
    """Return the row of `run`, and its indexed columns by name."""
    validation.check_id(run)
    found = db.execute(queries.INDEXED_ROW, (run,)).get
    if found is None:
        raise RunNotFound(run)
    index = index_of(found[ROW_COLUMNS:])
    labels = msgspec.json.decode(str(index["labels"]), type=list[str])
    return row_of(*found[:ROW_COLUMNS]), index | {"labels": sorted(labels)}


def tail(db: apsw.Connection, run: RunId, after: Seq, limit: int | None) -> "Tail":
    """Fix the range of entries after `after`, up to the run's current end."""
    validation.check_stretch(after, limit)
    validation.check_id(run)
    found = db.execute(queries.PLACE, (run,)).get
    if found is None:
        raise RunNotFound(run)
    number, seq, link = found
    # The hash of the run's row can be compared only with the last entry of the journal. A range
    # that ends earlier has none to compare.
    end = seq if limit is None else min(seq, after + limit)
    return Tail(run, number, min(after, INTEGER_MAX), end, link if end == seq else None)


def is_quick(db: apsw.Connection, tail: "Tail") -> bool:
    """Tell whether `tail` is small enough to be read in the event loop's thread."""
    if len(tail) > QUICK_MAX:
        return False
    return not len(tail) or tail.weight(db) <= QUICK_BYTES


class Tail:
    """The range of one journal after `after`, up to and including `end`.

    `end_hash` is the hash in the run's row if the range ends with the journal, else None.
    """

    def __init__(
        self, run: RunId, number: int, after: int, end: int, link: bytes | None
    ) -> None:
        self._run = run
        self._number = number
        self._after = after
        self._end = end
        self._link = link

    def __len__(self) -> int:
        return max(0, self._end - self._after)

    def weight(self, db: apsw.Connection) -> int:
        """Return the total length of the lines in bytes, without reading them."""
        size: int = db.execute(queries.WEIGHT, (self._number, self._after, self._end)).get
        return size

    def pairs(self, db: apsw.Connection) -> list[Pair]:
        """Return the lines with their stored hashes, unchecked."""
        bounds = (self._number, self._after, self._end)
        found: list[Pair] = list(db.execute(queries.LINES, bounds))
        return [(_read_line(db, stored), link) for stored, link in found]

    def records(self, db: apsw.Connection, chain: Chain) -> list[Record]:
        """Return the entries; verify their hash chain and their number.

        Raises:
            JournalCorrupt: an entry is missing or was changed.
        """
        if not len(self):
            return []
        # The chain of the range starts with the hash of the entry before it.
        previous = None
        if self._after:
            previous = db.execute(queries.LINK, (self._number, self._after)).get
            if previous is None:
                raise JournalCorrupt(self._run, self._after, "the entry is missing")
        pairs = self.pairs(db)
        after = Seq(self._after)
        # The chain proves that the lines follow each other. It cannot show that lines at the
        # end are missing; the count and the hash in the run's row do.
        lines = chain.verified(self._run, pairs, after=after, previous=previous)
        if len(pairs) != len(self):
            raise JournalCorrupt(self._run, after + len(pairs) + 1, "the entry is missing")
        if self._link is not None and pairs[-1][1] != self._link:
            raise JournalCorrupt(self._run, self._end, "the run's head has another hash")
        return decode_lines(self._run, lines, after=after)


def _read_line(db: apsw.Connection, stored: bytes) -> bytes:
    chunks: dict[bytes, bytes] = {}
    for digest in list_chunks(stored):
        chunks[digest] = db.execute(queries.CHUNK, (digest,)).get or b""
    return join_line(stored, chunks)


def snapshot_weight(db: apsw.Connection, run: RunId) -> int:
    """Return the length of the snapshot of `run` in bytes; 0 if there is none."""
    size: int | None = db.execute(queries.SNAPSHOT_WEIGHT, (run,)).get
    return size or 0


def snapshot(db: apsw.Connection, run: RunId) -> Snapshot | None:
    """Return the snapshot of `run` if its hash matches the journal's at that seq."""
    validation.check_id(run)
    if db.execute(queries.EXISTS, (run,)).get is None:
        raise RunNotFound(run)
    found = db.execute(queries.SNAPSHOT, (run,)).get
    if found is None:
        return None
    seq, link, body = found
    return Snapshot(seq=seq, hash=link, body=body)


def page(db: apsw.Connection, query: Query) -> Page[RunRow]:
    """Return a page of runs, newest first."""
    limit, before = validation.page_limit(query), _find_start(db, query.cursor)
    filters = (query.agent, query.thread, query.parent, query.attention)
    people = (query.owner, query.decider)
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
        )
        for number, *columns in db.execute(_statement(query), bound):
            found.append((number, row_of(*columns)))
    if len(query.phases) > 1:
        found.sort(key=itemgetter(0), reverse=True)
    # One row more than the page was requested: it tells whether there is a next page.
    items = tuple(row for _, row in found[:limit])
    return Page(items=items, cursor=items[-1].run if len(found) > len(items) else "")


def _find_start(db: apsw.Connection, cursor: str) -> int:
    """Return the run number below which the page of `cursor` begins.

    Raises:
        CursorRefused: there is no such run.
    """
    if not cursor:
        return INTEGER_MAX
    start: int | None = db.execute(queries.NUMBER, (cursor,)).get
    if start is None:
        raise CursorRefused(cursor)
    return start


def usage(db: apsw.Connection, owner: str, since: Micros, *, sizes: bool) -> Usage:
    """Return the resources that the runs of `owner` use."""
    found = db.execute(queries.USAGE, (owner, since, sizes)).get
    open_runs, runs, cost, tokens, size = found
    return Usage(open_runs=open_runs, runs=runs, cost=cost, tokens=tokens, stored_bytes=size)


def counts(db: apsw.Connection) -> Mapping[Phase, int]:
    """Return the number of runs in each phase."""
    return msgspec.convert(dict(db.execute(queries.COUNTS)), dict[Phase, int])


def drivable(
    db: apsw.Connection, now: Micros, limit: int, agents: Sequence[str]
) -> list[RunId]:
    """Return runs that need a driver and have no live holder, oldest first."""
    names = msgspec.json.encode(agents).decode() if agents else None
    return [run for (run,) in db.execute(queries.DRIVABLE, (now, names, limit))]


def due(db: apsw.Connection, now: Micros, limit: int) -> list[RunId]:
    """Return runs whose `wake_at` has passed, the longest overdue first."""
    return [run for (run,) in db.execute(queries.DUE, (now, limit))]


def holders(db: apsw.Connection, now: Micros) -> Mapping[str, float]:
    """Return the live holders, each with the lag of its event loop."""
    return dict(db.execute(queries.HOLDERS, (now,)))


def _statement(query: Query) -> str:
    """Choose the statement whose leading filter is likely to match the fewest runs."""
    if query.parent:
        return queries.LIST_BY_PARENT
    if query.thread:
        return queries.LIST_BY_THREAD
    if query.label:
        return queries.LIST_BY_LABEL
    if query.owner:
        return queries.LIST_BY_OWNER
    if query.attention:
        return queries.LIST_BY_ATTENTION
    if query.phases:
        return queries.LIST_BY_PHASE
    return queries.LIST_BY_AGENT if query.agent else queries.LIST_ALL
