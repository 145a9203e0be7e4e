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

from typing import Final

import apsw

from midrun.core.ids import SEQ_ZERO, Epoch, Micros, RunId, Seq
from midrun.errors import RunNotFound
from midrun.ports.store import AppendResult, HaltRecord
from midrun.stores import validation
from midrun.stores.chunks import split_line
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import check_schema_version
from midrun.stores.validation import RunRowVersion, StampedLines, StoredHead, decode_head
from midrun.stores.watchers import HALTS_CHANGED

CACHED_RUNS_MAX: Final = 4096
"""The cache is dropped at the next transaction when it holds more rows than this."""

FIRST_SEQ: Final = SEQ_ZERO + 1
"""The seq of a run's first entry, the only one that is split into chunks."""


class RunRowState(RunRowVersion, frozen=True, kw_only=True, gc=False):
    """The row of a run, with its number and its head."""

    number: int
    stored_head: StoredHead


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
        self._cached: dict[RunId, RunRowState] = {}
        self._halts: tuple[HaltRecord, ...] | None = None
        self._data_version = -1

    def begin(self) -> None:
        """Begin a write transaction; drop the cache if another connection has written.

        Raises:
            SchemaTooNew: the other connection has upgraded the schema.
        """
        self._execute("BEGIN IMMEDIATE")
        self.changes.clear()
        # The comparison comes after BEGIN IMMEDIATE. From here until the commit no other
        # connection can write, so a version that matches now cannot become stale in this
        # transaction. A newer midrun that upgraded the file also changed the version: the
        # schema is checked only then.
        if self.db.data_version() != self._data_version:
            self._clear()
            check_schema_version(self.db)
        elif len(self._cached) > CACHED_RUNS_MAX:
            self._clear()

    def commit(self) -> None:
        """Commit the transaction and note the data version that it led to."""
        self._execute("COMMIT")
        # The version is that of the pages in this connection's own cache. A commit by another
        # process between these two statements does not change it; the next `begin` loads the
        # new pages, and the version moves then.
        self._data_version = self.db.data_version()

    def roll_back(self) -> None:
        """Roll back everything since `begin` and drop the cache."""
        self._clear()
        if self.db.in_transaction:
            self._execute("ROLLBACK")

    def _clear(self) -> None:
        self._cached.clear()
        self._halts = None

    def find_row(self, run: RunId) -> RunRowState:
        """Return the row of `run` as this transaction sees it.

        Raises:
            RunNotFound: no such run.
        """
        cached = self._cached.get(run)
        if cached is not None:
            return cached
        validation.check_run_id(run)
        row = self.db.execute(queries.RUN_ROW_STATE, (run,)).get
        if row is None:
            raise RunNotFound(run)
        number, seq, link, at, epoch, holder, body = row
        return RunRowState(
            run=run,
            seq=seq,
            hash=link,
            at=at,
            epoch=epoch,
            holder=holder,
            number=number,
            stored_head=StoredHead(decode_head(body), body),
        )

    def add_lines(self, run: RunId, number: int, stamped: StampedLines) -> None:
        """Insert stamped entries of `run`; `number` is its primary key."""
        end = stamped.appended.seq
        for seq, (data, link) in enumerate(stamped.lines, end - len(stamped.lines) + 1):
            line = self._store_chunks(data) if seq == FIRST_SEQ else data
            self._execute(queries.ADD_ENTRY, (number, seq, line, link))
        self.changes.append((run, end))

    def _store_chunks(self, data: bytes) -> bytes:
        """Store the chunks of a first line; return the line in its stored form."""
        line, chunks = split_line(data)
        for digest, body in chunks.items():
            self._execute(queries.ADD_CHUNK, (digest, body))
        return line

    def update_row(
        self,
        current: RunRowState,
        new: AppendResult,
        stored_head: StoredHead,
        epoch: Epoch,
        holder: str,
    ) -> None:
        """Update the row of a run to `new`; write only the columns that changed."""
        head, old = stored_head.head, current.stored_head.head
        # Three statements of growing cost. Most appends change neither the lease nor a column
        # with an index; then no index page is written.
        if (
            epoch != current.epoch
            or holder != current.holder
            or head.phase != old.phase
            or head.attention != old.attention
            or head.wake_at != old.wake_at
        ):
            indexed = (head.phase.value, head.attention, head.wake_at)
            row = (new.seq, new.hash, new.at, stored_head.body, epoch, holder, *indexed)
            self._execute(queries.UPDATE_ROW, (*row, current.number))
        elif stored_head.body != current.stored_head.body:
            grown = (new.seq, new.hash, new.at, stored_head.body, current.number)
            self._execute(queries.ADVANCE_ROW_AND_HEAD, grown)
        else:
            self._execute(queries.ADVANCE_ROW, (new.seq, new.hash, new.at, current.number))
        self._cached[current.run] = RunRowState(
            run=current.run,
            seq=new.seq,
            hash=new.hash,
            at=new.at,
            epoch=epoch,
            holder=holder,
            number=current.number,
            stored_head=stored_head,
        )

    def count_held(self, scope: str, excluded: RunId, now: Micros) -> int:
        """Count the other runs of `scope` that are held by a live holder."""
        return int(self.db.execute(queries.COUNT_HELD, (now, excluded, scope)).get)

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


def select_halts(db: apsw.Connection) -> tuple[HaltRecord, ...]:
    """Return the halts that are in force, oldest first."""
    return tuple(
        HaltRecord(scope=scope, by=by, reason=reason, at=at)
        for scope, by, reason, at in db.execute(queries.HALTS)
    )
