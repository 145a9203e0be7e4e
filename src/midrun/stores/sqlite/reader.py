"""Reading: what is quick is read at once, what may take long in a thread.

Readers never wait for the writer nor it for them. A run's row is read first, then its entries
up to the seq of the row: entries are never removed, so together they are one consistent view.
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
"""So many entries are read in the event loop's thread; a hop would cost more than they do."""

QUICK_BYTES: Final = 256 * 1024
"""Nor may they be longer than this together: hashing and decoding takes about a millisecond."""


READERS: Final = 8
"""How many threads may wait for one connection."""


class Reader:
    """A connection that only reads, for one thread at a time."""

    def __init__(self, path: Path, *, busy_ms: int) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._turn = Lock()
        self._threads = anyio.CapacityLimiter(READERS)
        self._db: apsw.Connection | None = open_reader(path, busy_ms=busy_ms)

    def now(self, work: Callable[[apsw.Connection], T]) -> T:
        """Return what `work` reads, in this thread."""
        with self._turn, meaning(self._path, self._busy_ms):
            if self._db is None:
                raise StoreClosed(str(self._path))
            try:
                return work(self._db)
            except DAMAGE:
                check_version(self._db)  # then it is no damage
                raise

    async def aside(self, work: Callable[[apsw.Connection], T]) -> T:
        """Return what `work` reads, in a thread of its own."""
        # A limiter of its own: what else this process does in threads must not hold it up.
        return await anyio.to_thread.run_sync(self.now, work, limiter=self._threads)

    def close(self) -> None:
        """Close the connection once nobody reads."""
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
    """Return where the entries after `after` are, up to the head as it is now."""
    validation.check_stretch(after, limit)
    validation.check_id(run)
    found = db.execute(queries.PLACE, (run,)).get
    if found is None:
        raise RunNotFound(run)
    number, seq, link = found
    end = seq if limit is None else min(seq, after + limit)
    return Tail(run, number, min(after, INTEGER_MAX), end, link if end == seq else None)


def is_quick(db: apsw.Connection, tail: "Tail") -> bool:
    """Tell whether reading `tail` would not keep an event loop from its work."""
    if len(tail) > QUICK_MAX:
        return False
    return not len(tail) or tail.weight(db) <= QUICK_BYTES


class Tail:
    """A stretch of one journal: after `after`, up to `end`; `link` is the head's hash there."""

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
        """Return about how long the lines are together, without reading them."""
        size: int = db.execute(queries.WEIGHT, (self._number, self._after, self._end)).get
        return size

    def pairs(self, db: apsw.Connection) -> list[Pair]:
        """Return the lines and their stored hashes."""
        bounds = (self._number, self._after, self._end)
        found: list[Pair] = list(db.execute(queries.LINES, bounds))
        return [(_read_line(db, stored), link) for stored, link in found]

    def records(self, db: apsw.Connection, chain: Chain) -> list[Record]:
        """Return the entries, checked against the chain and the head."""
        if not len(self):
            return []
        previous = None
        if self._after:
            previous = db.execute(queries.LINK, (self._number, self._after)).get
            if previous is None:
                raise JournalCorrupt(self._run, self._after, "the entry is missing")
        pairs = self.pairs(db)
        after = Seq(self._after)
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
    """Return how long the snapshot of `run` is, without reading it; 0 if there is none."""
    size: int | None = db.execute(queries.SNAPSHOT_WEIGHT, (run,)).get
    return size or 0


def snapshot(db: apsw.Connection, run: RunId) -> Snapshot | None:
    """Return the snapshot of `run` if it fits the chain."""
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
    rest = (query.agent, query.thread, query.parent, query.attention)
    people = (query.owner, query.decider)
    found: list[tuple[int, RunRow]] = []
    for phase in dict.fromkeys(query.phases) or (None,):
        bound = (
            before,
            limit + 1,
            query.label or None,
            phase,
            *(v or None for v in (*rest, *people)),
        )
        for number, *values in db.execute(_statement(query), bound):
            found.append((number, row_of(*values)))
    if len(query.phases) > 1:
        found.sort(key=itemgetter(0), reverse=True)
    items = tuple(row for _, row in found[:limit])
    return Page(items=items, cursor=items[-1].run if len(found) > len(items) else "")


def _find_start(db: apsw.Connection, cursor: str) -> int:
    """Return the number before which a page begins.

    Raises:
        CursorRefused: there is no such run.
    """
    if not cursor:
        return INTEGER_MAX
    number: int | None = db.execute(queries.NUMBER, (cursor,)).get
    if number is None:
        raise CursorRefused(cursor)
    return number


def usage(db: apsw.Connection, owner: str, since: Micros, *, sizes: bool) -> Usage:
    """Return how much the runs of `owner` take."""
    found = db.execute(queries.USAGE, (owner, since, sizes)).get
    open_runs, runs, cost, tokens, size = found
    return Usage(open_runs=open_runs, runs=runs, cost=cost, tokens=tokens, stored_bytes=size)


def counts(db: apsw.Connection) -> Mapping[Phase, int]:
    """Return the number of runs in each phase."""
    return msgspec.convert(dict(db.execute(queries.COUNTS)), dict[Phase, int])


def drivable(
    db: apsw.Connection, now: Micros, limit: int, agents: Sequence[str]
) -> list[RunId]:
    """Return runs that need a driver and have none alive."""
    names = msgspec.json.encode(agents).decode() if agents else None
    return [run for (run,) in db.execute(queries.DRIVABLE, (now, names, limit))]


def due(db: apsw.Connection, now: Micros, limit: int) -> list[RunId]:
    """Return runs whose time has come."""
    return [run for (run,) in db.execute(queries.DUE, (now, limit))]


def holders(db: apsw.Connection, now: Micros) -> Mapping[str, float]:
    """Return the holders that are alive, with their lag."""
    return dict(db.execute(queries.HOLDERS, (now,)))


def _statement(query: Query) -> str:
    """Choose the filter that leads: the one that is likely to leave the fewest."""
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
