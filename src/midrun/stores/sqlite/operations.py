"""Write operations of the SQLite store, which the writer calls in a transaction.

An operation is a frozen struct with everything that was checked and encoded before the
transaction. Calling it with the `RowCache` of the writer reads the run's row, raises a refusal
before the first change, and then writes. Two properties follow. A refused operation does not
disturb the other requests of its group. And an operation can be called again: when a group is
rolled back, each request is committed alone.
"""

from typing import Final

from msgspec import Struct

from midrun.core.ids import MICROS_PER_SECOND, RunId
from midrun.ports.environment import Clock
from midrun.ports.store import AppendResult, HaltRecord, Snapshot
from midrun.stores import validation
from midrun.stores.operations import JournalWrite, TakeLeaseWrite
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.row_cache import RowCache

DAY_MICROS: Final = 86_400 * MICROS_PER_SECOND
"""One day in microseconds."""


class WriteJournal(Struct, frozen=True, gc=False):
    """Create or extend a journal if the row, the halts and the limits allow it.

    The checks and the write share one transaction, and SQLite has one writer at a time. So a
    lease that is in force here is in force when the entries are committed: an old epoch is
    fenced off whatever the clock of its holder says. And however many processes try to take a
    lease at once, each one sees the lease that the one before it took.
    """

    operation: JournalWrite
    clock: Clock

    def __call__(self, rows: RowCache) -> AppendResult:
        """Check the conditions, then write the entries and the row.

        Raises:
            HaltInForce, NoRoom, FileMissing: see `Store`. Others: see `JournalWrite.apply`.
        """
        operation = self.operation
        taken = operation if isinstance(operation, TakeLeaseWrite) else None
        current = rows.find_row(operation.run)
        alive = (
            taken is not None
            and current is not None
            and rows.is_holder_alive(current.holder, self.clock())
        )
        change = operation.apply(current, self.clock, holder_alive=alive)
        if current is not None and operation.starts and (halts := rows.load_halts()):
            validation.check_halts(operation.run, current.stored_head.head, halts)
        if current is not None and taken is not None:
            now = self.clock()
            validation.check_limits(
                current,
                taken.holder,
                taken.limits,
                lambda scope: rows.count_held(scope, taken.run, now),
            )
        rows.check_files(operation.run, operation.files)
        rows.write_change(current, change)
        rows.write_files(operation.run, operation.files)
        if operation.search_words:
            rows.add_words(operation.run, operation.search_words, is_new=current is None)
        return change.appended


class SaveSnapshot(Struct, frozen=True, kw_only=True):
    """Store a snapshot unless a newer one is stored."""

    run: RunId
    snapshot: Snapshot

    def __call__(self, rows: RowCache) -> None:
        """Insert or replace the snapshot.

        Raises:
            RunNotFound: no such run.
        """
        rows.check_run_exists(self.run)
        snapshot = self.snapshot
        rows.db.execute(
            queries.SAVE_SNAPSHOT, (self.run, snapshot.seq, snapshot.hash, snapshot.body)
        )


class RecordHeartbeat(Struct, frozen=True, kw_only=True):
    """Extend the leases of a holder; delete holders that are long dead.

    A holder is deleted a day after its last beat expired. It is also deleted if its last beat
    lies further in the future than its `ttl`, because the clock was set back: otherwise it
    would count as alive again when the clock reaches that time.
    """

    holder: str
    ttl_micros: int
    lag_s: float
    clock: Clock

    def __call__(self, rows: RowCache) -> None:
        now = self.clock()
        rows.db.execute(
            queries.UPSERT_HEARTBEAT, (self.holder, now, self.ttl_micros, self.lag_s)
        )
        rows.db.execute(queries.DELETE_DEAD_HOLDERS, (now, DAY_MICROS))


class ReleaseHolder(Struct, frozen=True, kw_only=True):
    """Free every lease of a holder."""

    holder: str

    def __call__(self, rows: RowCache) -> None:
        rows.db.execute(queries.DELETE_HOLDER, (self.holder,))


class SetHalt(Struct, frozen=True, kw_only=True):
    """Set a halt unless its scope has one."""

    halt: HaltRecord
    clock: Clock

    def __call__(self, rows: RowCache) -> None:
        halt = self.halt
        rows.db.execute(queries.INSERT_HALT, (halt.scope, halt.by, halt.reason, self.clock()))
        rows.record_halts_changed()


class RemoveHalt(Struct, frozen=True, kw_only=True):
    """Remove the halt of a scope; return whether there was one."""

    scope: str

    def __call__(self, rows: RowCache) -> bool:
        rows.db.execute(queries.DELETE_HALT, (self.scope,))
        removed = rows.db.changes() > 0
        rows.record_halts_changed()
        return removed
