"""Write operations of the SQLite store, which the writer calls in a transaction.

An operation is a frozen struct with everything that was checked and encoded before the
transaction. Calling it with the `RowCache` of the writer reads the run's row, raises a refusal
before the first change, and then writes. Two properties follow. A refused operation does not
disturb the other requests of its group. And an operation can be called again: when a group is
rolled back, each request is committed alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec import UNSET, Struct, UnsetType

from midrun.codec.hash_chain import HashChain
from midrun.core.ids import MICROS_PER_SECOND, Epoch, Micros, RunId, Seq
from midrun.errors import RunExists
from midrun.ports.environment import Clock
from midrun.ports.store import AppendResult, HaltRecord, Lease, Snapshot
from midrun.stores import validation
from midrun.stores.cross_thread import Waiter
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import FILE_ERRORS
from midrun.stores.sqlite.row_cache import RowCache
from midrun.stores.validation import AdoptedJournal, StampedLines, StoredHead

# Requests on their way to the writer, and their results.

T_co = TypeVar("T_co", covariant=True)


class PartialWrite(Exception):
    """A request failed after its first change: its transaction must not be committed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class PendingWrite(Struct, Generic[T_co], eq=False):
    """A write on its way through the writer: operation, waiter and outcome.

    `waiter` is None while the task that wrote it is also the one that commits it.
    """

    operation: Callable[[RowCache], T_co]
    waiter: Waiter | None = None
    failure: Exception | None = None
    outcome: T_co | UnsetType = UNSET

    def run_operation(self, rows: RowCache) -> None:
        """Carry out the operation in the open transaction.

        A refusal is stored as the outcome of this request. An error of the file is raised: it
        concerns the whole transaction.

        Raises:
            PartialWrite: the operation failed after its first change.
        """
        # A request may be attempted twice, in a group and then alone.
        self.failure = None
        before = rows.db.total_changes()
        try:
            self.outcome = self.operation(rows)
        except FILE_ERRORS:
            raise
        except Exception as failure:
            # `total_changes` counts every row that this connection has changed. Equal counts
            # prove that the operation raised before its first write, so the transaction can go
            # on.
            if rows.db.total_changes() != before:
                raise PartialWrite(failure) from failure
            self.failure = failure

    def get_result(self) -> T_co:
        """Return the result of the operation, or raise its failure."""
        if self.failure is not None:
            raise self.failure
        assert self.outcome is not UNSET
        return self.outcome


WriteGroup: TypeAlias = list[PendingWrite[object]]
"""Requests that are committed in one transaction."""

DAY_MICROS: Final = 86_400 * MICROS_PER_SECOND
"""One day in microseconds."""


class CreateRunWrite(Struct, frozen=True, kw_only=True):
    """Begin a journal with new entries, or with the lines of another store."""

    run: RunId
    stored_head: StoredHead
    bodies: Sequence[bytes] = ()
    adopted: AdoptedJournal | None = None
    chain: HashChain
    clock: Clock

    def __call__(self, rows: RowCache) -> AppendResult:
        """Insert the run and its first entries.

        Raises:
            RunExists: the id is taken.
        """
        head = self.stored_head.head
        if rows.db.execute(queries.RUN_EXISTS, (self.run,)).get is not None:
            raise RunExists(self.run)
        stamped, epoch, started_at = self._stamp_first_lines()
        new = stamped.appended
        number = rows.db.execute(
            queries.INSERT_RUN,
            (
                self.run,
                new.seq,
                new.hash,
                new.at,
                started_at,
                epoch,
                self.stored_head.body,
                head.phase.value,
                head.attention,
                head.wake_at,
                head.agent,
                head.thread,
                head.parent,
                head.owner,
            ),
        ).get
        for label in head.labels:
            rows.db.execute(queries.ADD_LABEL, (label, number))
        rows.add_lines(self.run, number, stamped)
        return new

    def _stamp_first_lines(self) -> tuple[StampedLines, Epoch, Micros]:
        now, adopted = self.clock(), self.adopted
        if adopted is not None:
            return (
                adopted.stamp_with_import(self.chain, now),
                adopted.last_version.epoch,
                adopted.started_at,
            )
        empty = validation.make_first_version(self.run, self.chain)
        stamped = validation.stamp_lines(
            empty, self.bodies, chain=self.chain, now=now, epoch=None
        )
        return stamped, empty.epoch, stamped.appended.at


class AppendWrite(Struct, frozen=True, kw_only=True, gc=False):
    """Add entries to a journal under the conditions that the writer named.

    The checks and the write share one transaction, and SQLite has one writer at a time. So a
    lease that is in force here is in force when the entries are committed: an old epoch is
    fenced off whatever the clock of its holder says.
    """

    run: RunId
    bodies: Sequence[bytes]
    after: Seq | None
    lease: Lease | None
    stored_head: StoredHead | None
    starts: bool
    chain: HashChain
    now: Micros

    def __call__(self, rows: RowCache) -> AppendResult:
        """Check the conditions, then insert the entries and update the row.

        Raises:
            RunNotFound, StaleEpoch, SeqConflict, HaltInForce: see `Store.append`.
        """
        current = rows.find_row(self.run)
        validation.check_append(current, self.after, self.lease)
        if self.starts and (halts := rows.load_halts()):
            validation.check_halts(self.run, current.stored_head.head, halts)
        epoch = self.lease.epoch if self.lease else None
        stamped = validation.stamp_lines(
            current, self.bodies, chain=self.chain, now=self.now, epoch=epoch
        )
        rows.add_lines(self.run, current.number, stamped)
        stored_head = current.stored_head if self.stored_head is None else self.stored_head
        # Without a head the row keeps its holder. A head that is not `leased` gives the lease
        # back in the same transaction as the entry that ends the drive.
        holder = current.holder if self.stored_head is None or stored_head.head.leased else ""
        rows.update_row(current, stamped.appended, stored_head, current.epoch, holder)
        return stamped.appended


class TakeLeaseWrite(Struct, frozen=True, kw_only=True):
    """Take the lease of a run and append the first entries under it."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq
    holder: str
    epoch: Epoch
    stored_head: StoredHead
    starts: bool
    limits: Mapping[str, int]
    chain: HashChain
    clock: Clock

    def __call__(self, rows: RowCache) -> AppendResult:
        """Check that the lease can be taken, then insert the entries under it.

        Raises:
            RunNotFound, LeaseHeld, SeqConflict, HaltInForce, NoRoom: see `Store.take_lease`.
        """
        current, now = rows.find_row(self.run), self.clock()
        # Liveness, halts and limits are read inside the write transaction. However many
        # processes try at once, each one sees the lease that the one before it took.
        alive = rows.db.execute(queries.HOLDER_ALIVE, (current.holder, now)).get is not None
        validation.check_take(
            current, after=self.after, holder=self.holder, epoch=self.epoch, holder_alive=alive
        )
        if self.starts and (halts := rows.load_halts()):
            validation.check_halts(self.run, current.stored_head.head, halts)
        validation.check_limits(
            current,
            self.holder,
            self.limits,
            lambda scope: rows.count_held(scope, self.run, now),
        )
        stamped = validation.stamp_lines(
            current, self.bodies, chain=self.chain, now=now, epoch=self.epoch
        )
        rows.add_lines(self.run, current.number, stamped)
        holder = self.holder if self.stored_head.head.leased else ""
        rows.update_row(current, stamped.appended, self.stored_head, self.epoch, holder)
        return stamped.appended


class SaveSnapshot(Struct, frozen=True, kw_only=True):
    """Store a snapshot unless a newer one is stored."""

    run: RunId
    snapshot: Snapshot

    def __call__(self, rows: RowCache) -> None:
        """Insert or replace the snapshot.

        Raises:
            RunNotFound: no such run.
        """
        rows.find_row(self.run)
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
