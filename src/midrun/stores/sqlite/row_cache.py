"""The write transaction of the SQLite store, with a cache of its rows.

An append needs the run's row: its seq, hash, time, epoch, holder and head. Usually this process
wrote that row itself a moment ago, so `RowCache` keeps the rows that it has written and saves
the read.

A cached row is valid only if no other connection has committed since. SQLite can tell: the data
version of a connection changes with every commit to the file, its own or another's. `commit`
notes the version after its own commit; `begin` compares it once it holds the write lock. If
they differ, another process has written, and the whole cache is dropped. So the cache is never
trusted across a foreign write, and no invalidation message is needed.
"""

from typing import Final, TypeAlias

import apsw
from msgspec.structs import replace

from midrun.core.ids import SEQ_ZERO, Micros, RunId, Seq
from midrun.core.values import DRIVABLE_PHASES
from midrun.errors import FileMissing
from midrun.ports.store import HaltRecord, RunQuota, Tombstone
from midrun.stores import validation
from midrun.stores.chunks import split_line
from midrun.stores.deletion import build_tombstone, explain_missing
from midrun.stores.operations import RowChange, StoredRow
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import check_migrated_schema
from midrun.stores.validation import NamedFiles, StoredHead, build_halt, decode_head
from midrun.stores.watchers import HALTS_CHANGED

LineAndHash: TypeAlias = tuple[bytes, bytes]

CACHED_RUNS_MAX: Final = 4096
"""The cache is dropped at the next transaction when it holds more rows than this."""


class RowCache:
    """The writer's connection, its open transaction, and the rows it has written.

    Not thread-safe: the writer's connection lock guards it.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        self.changes: list[tuple[RunId, Seq]] = []  # for the watchers, after the commit
        # One cursor serves every statement that returns no rows. That saves creating one each
        # time.
        self._execute = db.cursor().execute
        self._cached: dict[RunId, StoredRow] = {}
        self._halts: tuple[HaltRecord, ...] | None = None
        # Changes with every commit of another connection to the file, in this process or not.
        self._data_version = -1

    def begin(self) -> None:
        """Begin a write transaction; drop the cache if another connection has written.

        Raises:
            SchemaTooNew: the other connection has migrated the schema, and this process must
                not write to it.
        """
        self._execute("BEGIN IMMEDIATE")
        self.changes.clear()
        # The comparison comes after BEGIN IMMEDIATE. From here until the commit no other
        # connection can write, so a version that matches now cannot become stale in this
        # transaction. A newer midrun that upgraded the file also changed the version: the
        # schema is checked only then.
        if self.db.data_version() != self._data_version:
            self.drop_cache()
            check_migrated_schema(self.db)
        elif len(self._cached) > CACHED_RUNS_MAX:
            self.drop_cache()

    def commit(self) -> None:
        """Commit the transaction and note the data version that it led to."""
        self._execute("COMMIT")
        # The version is that of the pages in this connection's own cache. A commit by another
        # process between these two statements does not change it; the next `begin` loads the
        # new pages, and the version moves then.
        self._data_version = self.db.data_version()

    def roll_back(self) -> None:
        """Roll back everything since `begin` and drop the cache."""
        # The cache goes first: it has rows of this transaction, which are not in the file.
        # SQLite has already rolled back by itself after some errors, such as a full disk.
        self.drop_cache()
        if self.db.in_transaction:
            self._execute("ROLLBACK")

    def drop_cache(self) -> None:
        """Drop all cached rows, because they were changed without the cache."""
        self._cached.clear()
        self._halts = None

    def find_row(self, run: RunId) -> StoredRow | None:
        """Return the row of `run` as this transaction sees it; None if there is none."""
        # A cached row may be newer than its row in the file: see `_must_update`.
        cached = self._cached.get(run)
        if cached is not None:
            return cached
        if not validation.RUN_ID_PATTERN.fullmatch(run):
            return None
        row = self.db.execute(queries.ROW, (run,)).get
        if row is None:
            return None
        number, _, body, seq, link, epoch, holder, _, at = row
        return StoredRow(
            run=run,
            seq=seq,
            hash=link,
            at=at,
            epoch=epoch,
            holder=holder,
            number=number,
            stored_head=StoredHead(decode_head(body), body),
        )

    def check_run_exists(self, run: RunId) -> None:
        """Refuse a write for a run that does not exist.

        Raises:
            RunNotFound, RunErased: no such run.
        """
        if self.find_row(run) is None:
            raise explain_missing(run, select_tombstone(self.db, run))

    def check_not_deleted(self, run: RunId) -> None:
        """Refuse a write for a run that was deleted.

        Raises:
            RunErased: it was.
        """
        if (tombstone := select_tombstone(self.db, run)) is not None:
            raise explain_missing(run, tombstone)

    def replace_by_tombstone(self, row: StoredRow, tombstone: Tombstone) -> None:
        """Remove the row of a run and everything that is found through it."""
        number = row.number
        self._execute(
            queries.ADD_TOMBSTONE,
            (
                number,
                tombstone.run,
                tombstone.seq,
                tombstone.hash,
                tombstone.by,
                tombstone.at,
                tombstone.reason,
                tombstone.proof,
                tombstone.tenant,
            ),
        )
        # The entries and files stay for `RemoveLeftovers`. From here on no query finds them,
        # because all queries start at the row.
        for label in row.stored_head.head.labels:
            self._execute(queries.DELETE_LABEL, (label, number))
        self._execute(queries.DELETE_SNAPSHOT, (number,))
        self._execute(queries.DELETE_CURSORS, (number,))
        self._execute(queries.DELETE_TARGETS, (row.run,))
        self._execute(queries.DELETE_ROW, (number,))
        self._cached.pop(row.run, None)
        self.changes.append((row.run, Seq(tombstone.seq + 1)))

    def write_change(self, current: StoredRow | None, change: RowChange) -> None:
        """Write the entries and the row of a run; `current` is None for a new run."""
        row, lines = change.row, change.lines
        head, is_updated = row.stored_head.head, True
        if current is None:
            row, lines = self._insert_run(change)
        elif is_updated := _must_update(current, row):
            values = (row.seq, row.hash, row.at, row.stored_head.body, row.epoch, row.holder)
            indexed = (head.phase.value, head.attention, head.wake_at)
            self._execute(queries.UPDATE_ROW, (*values, *indexed, row.number))
        number, seq = row.number, row.seq - len(lines)
        for line, link in lines:
            seq += 1
            # If the row is not written, the last entry carries the values that would be in it,
            # and a reader takes them from there.
            if is_updated or seq < row.seq:
                self._execute(queries.ADD_ENTRY, (number, seq, line, link))
            else:
                meter = (head.step, head.cost, head.tokens)
                self._execute(queries.ADD_LAST_ENTRY, (number, seq, line, link, row.at, *meter))
        # Before the commit: a later request of the same group may extend this run, and has to
        # see it. If the commit fails, `roll_back` drops it.
        self._cached[row.run] = row
        self.changes.append((row.run, row.seq))

    def _insert_run(self, change: RowChange) -> tuple[StoredRow, tuple[LineAndHash, ...]]:
        """Insert a run, its labels and its chunks; return its row and its stored lines."""
        row, head = change.row, change.row.stored_head.head
        number = self.db.execute(
            queries.INSERT_RUN,
            (
                row.run,
                row.seq,
                row.hash,
                row.at,
                change.started_at,
                row.epoch,
                row.stored_head.body,
                head.phase.value,
                head.attention,
                head.wake_at,
                head.agent,
                head.thread,
                head.parent,
                head.owner,
                head.tenant,
                head.team,
            ),
        ).get
        for label in head.labels:
            self._execute(queries.ADD_LABEL, (label, number))
        (first, link), *rest = change.lines
        line, chunks = split_line(first)
        for digest, body in chunks.items():
            # The tools in a first entry are the same in many runs of an agent. They are stored
            # once, under their hash.
            self._execute(queries.ADD_CHUNK, (digest, body))
            self._execute(queries.ADD_CHUNK_USE, (number, digest))
        return replace(row, number=number), ((line, link), *rest)

    def check_files(self, run: RunId, files: NamedFiles) -> None:
        """Refuse entries that name a file which is neither given nor stored.

        Raises:
            FileMissing: the first such file.
        """
        for key in files.hashes:
            if key not in files.bodies and (
                self.db.execute(queries.HAS_FILE, (bytes.fromhex(key),)).get is None
            ):
                raise FileMissing(run, key)

    def write_files(self, run: RunId, files: NamedFiles) -> None:
        """Write the given bodies, and note that `run` has all of the files."""
        for key in files.hashes:
            digest = bytes.fromhex(key)
            if key in files.bodies:
                self._execute(queries.ADD_FILE, (digest, files.bodies[key]))
            self._execute(queries.ADD_RUN_FILE, (self._cached[run].number, digest))

    def add_words(self, run: RunId, words: str, *, is_new: bool) -> None:
        """Add words of a run to the index of the search."""
        row = self.find_row(run)
        assert row is not None, "the run was just written"
        statement = queries.ADD_WORDS if is_new else queries.ADD_MORE_WORDS
        self._execute(statement, (row.number, words))

    def is_holder_alive(self, holder: str, now: Micros) -> bool:
        """Tell whether the last beat of `holder` is recent enough."""
        return self.db.execute(queries.HOLDER_ALIVE, (holder, now)).get is not None

    def count_held(self, scope: str, excluded: RunId, now: Micros) -> int:
        """Count the other runs of `scope` that are held by a live holder."""
        return int(self.db.execute(queries.COUNT_HELD, (now, excluded, scope)).get)

    def count_quota_runs(self, quota: RunQuota) -> tuple[int, int]:
        """Count the open and the recent runs of `quota`, each up to its bound."""
        recent = queries.COUNT_RECENT_OF_OWNER if quota.owner else queries.COUNT_RECENT
        whose, counts = (quota.tenant, quota.owner, quota.since), [0, 0]
        for place, (statement, bound) in enumerate(
            ((queries.COUNT_OPEN, quota.open_runs), (recent, quota.recent_runs))
        ):
            if bound is not None:
                counts[place] = int(self.db.execute(statement, (*whose, bound)).get)
        return counts[0], counts[1]

    def load_halts(self) -> tuple[HaltRecord, ...]:
        """Return the halts that are in force in this transaction, oldest first."""
        if self._halts is None:
            self._halts = select_halts(self.db)
        return self._halts

    def record_halts_changed(self) -> None:
        """Record that the halts have changed, for the pollers of all processes."""
        self._halts = None
        self._execute(queries.BUMP_HALT_COUNTER)
        self.changes.append((HALTS_CHANGED, SEQ_ZERO))


def _must_update(current: StoredRow, row: StoredRow) -> bool:
    """Tell whether the row must be written because of a change from `current` to `row`.

    It need not if the run is driven and only values changed that its last entry can hold. Then
    an append writes one page less.
    """
    head, old = row.stored_head.head, current.stored_head.head
    # Lists and sweeps of all processes read the phase and the holder in the row itself, so
    # these must be right in the file.
    if not row.holder or head.phase not in DRIVABLE_PHASES:
        return True
    if row.epoch != current.epoch or row.holder != current.holder:
        return True
    return replace(head, step=old.step, cost=old.cost, tokens=old.tokens) != old


def select_tombstone(db: apsw.Connection, run: RunId) -> Tombstone | None:
    """Return the tombstone of `run`; None if it was not deleted."""
    found = db.execute(queries.TOMBSTONE, (run,)).get
    if found is None:
        return None
    return build_tombstone(*found)


def select_halts(db: apsw.Connection, tenant: str | None = None) -> tuple[HaltRecord, ...]:
    """Return the halts that are in force, oldest first."""
    found = (
        db.execute(queries.HALTS)
        if tenant is None
        else db.execute(queries.HALTS_OF_TENANT, (tenant,))
    )
    return tuple(build_halt(*columns) for columns in found)
