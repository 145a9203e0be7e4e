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

from midrun.codec.hash_chain import Chain
from midrun.core.ids import SECOND, Epoch, Micros, RunId, Seq
from midrun.errors import RunExists
from midrun.ports.environment import Clock
from midrun.ports.store import Appended, Halt, Lease, Snapshot
from midrun.stores import validation
from midrun.stores.cross_thread import Waiter
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import DAMAGE
from midrun.stores.sqlite.row_cache import Standings
from midrun.stores.validation import Adopted, Stamped, StoredHead

# Requests on their way to the writer, and their results.

T_co = TypeVar("T_co", covariant=True)


class Torn(Exception):
    """A request failed after its first change: its transaction must not be committed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class Request(Struct, Generic[T_co], eq=False):
    """A write on its way through the writer: operation, waiter and outcome.

    `waiter` is None while the task that wrote it is also the one that commits it.
    """

    work: Callable[[Standings], T_co]
    waiter: Waiter | None = None
    failure: Exception | None = None
    outcome: T_co | UnsetType = UNSET

    def attempt(self, at: Standings) -> None:
        """Carry out the operation in the open transaction.

        A refusal is stored as the outcome of this request. An error of the file is raised: it
        concerns the whole transaction.

        Raises:
            PartialWrite: the operation failed after its first change.
        """
        # A request may be attempted twice, in a group and then alone.
        self.failure = None
        before = at.db.total_changes()
        try:
            self.outcome = self.work(at)
        except DAMAGE:
            raise
        except Exception as failure:
            # `total_changes` counts every row that this connection has changed. Equal counts
            # prove that the operation raised before its first write, so the transaction can go
            # on.
            if at.db.total_changes() != before:
                raise Torn(failure) from failure
            self.failure = failure

    def result(self) -> T_co:
        """Return the result of the operation, or raise its failure."""
        if self.failure is not None:
            raise self.failure
        assert self.outcome is not UNSET
        return self.outcome


Group: TypeAlias = list[Request[object]]
"""Requests that are committed in one transaction."""

DAY: Final = 86_400 * SECOND
"""One day in microseconds."""


class Create(Struct, frozen=True, kw_only=True):
    """Begin a journal with new entries, or with the lines of another store."""

    run: RunId
    top: StoredHead
    bodies: Sequence[bytes] = ()
    adopted: Adopted | None = None
    chain: Chain
    clock: Clock

    def __call__(self, at: Standings) -> Appended:
        """Insert the run and its first entries.

        Raises:
            RunExists: the id is taken.
        """
        head = self.top.head
        if at.db.execute(queries.EXISTS, (self.run,)).get is not None:
            raise RunExists(self.run)
        stamped, epoch, started_at = self._first()
        new = stamped.appended
        number = at.db.execute(
            queries.BEGIN_RUN,
            (
                self.run,
                new.seq,
                new.hash,
                new.at,
                started_at,
                epoch,
                self.top.body,
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
            at.db.execute(queries.ADD_LABEL, (label, number))
        at.add(self.run, number, stamped)
        return new

    def _first(self) -> tuple[Stamped, Epoch, Micros]:
        now, adopted = self.clock(), self.adopted
        if adopted is not None:
            return adopted.stamp(self.chain, now), adopted.end.epoch, adopted.started_at
        empty = validation.nothing_yet(self.run, self.chain)
        stamped = validation.stamp(empty, self.bodies, chain=self.chain, now=now, epoch=None)
        return stamped, empty.epoch, stamped.appended.at


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """Add entries to a journal under the conditions that the writer named.

    The checks and the write share one transaction, and SQLite has one writer at a time. So a
    lease that is in force here is in force when the entries are committed: an old epoch is
    fenced off whatever the clock of its holder says.
    """

    run: RunId
    bodies: Sequence[bytes]
    after: Seq | None
    lease: Lease | None
    top: StoredHead | None
    starts: bool
    chain: Chain
    now: Micros

    def __call__(self, at: Standings) -> Appended:
        """Check the conditions, then insert the entries and update the row.

        Raises:
            RunNotFound, StaleEpoch, SeqConflict, HaltInForce: see `Store.append`.
        """
        current = at.find(self.run)
        validation.check_append(current, self.after, self.lease)
        if self.starts and (halts := at.halts()):
            validation.check_halts(self.run, current.top.head, halts)
        epoch = self.lease.epoch if self.lease else None
        stamped = validation.stamp(
            current, self.bodies, chain=self.chain, now=self.now, epoch=epoch
        )
        at.add(self.run, current.number, stamped)
        stored_head = current.top if self.top is None else self.top
        # Without a head the row keeps its holder. A head that is not `leased` gives the lease
        # back in the same transaction as the entry that ends the drive.
        holder = current.holder if self.top is None or stored_head.head.leased else ""
        at.move(current, stamped.appended, stored_head, current.epoch, holder)
        return stamped.appended


class Take(Struct, frozen=True, kw_only=True):
    """Take the lease of a run and append the first entries under it."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq
    holder: str
    epoch: Epoch
    top: StoredHead
    starts: bool
    limits: Mapping[str, int]
    chain: Chain
    clock: Clock

    def __call__(self, at: Standings) -> Appended:
        """Check that the lease can be taken, then insert the entries under it.

        Raises:
            RunNotFound, LeaseHeld, SeqConflict, HaltInForce, NoRoom: see `Store.take_lease`.
        """
        current, now = at.find(self.run), self.clock()
        # Liveness, halts and limits are read inside the write transaction. However many
        # processes try at once, each one sees the lease that the one before it took.
        alive = at.db.execute(queries.FRESH, (current.holder, now)).get is not None
        validation.check_take(
            current, after=self.after, holder=self.holder, epoch=self.epoch, alive=alive
        )
        if self.starts and (halts := at.halts()):
            validation.check_halts(self.run, current.top.head, halts)
        validation.check_room(
            current, self.holder, self.limits, lambda scope: at.held(scope, self.run, now)
        )
        stamped = validation.stamp(
            current, self.bodies, chain=self.chain, now=now, epoch=self.epoch
        )
        at.add(self.run, current.number, stamped)
        holder = self.holder if self.top.head.leased else ""
        at.move(current, stamped.appended, self.top, self.epoch, holder)
        return stamped.appended


class SaveSnapshot(Struct, frozen=True, kw_only=True):
    """Store a snapshot unless a newer one is stored."""

    run: RunId
    snapshot: Snapshot

    def __call__(self, at: Standings) -> None:
        """Insert or replace the snapshot.

        Raises:
            RunNotFound: no such run.
        """
        at.find(self.run)
        snapshot = self.snapshot
        at.db.execute(
            queries.SAVE_SNAPSHOT, (self.run, snapshot.seq, snapshot.hash, snapshot.body)
        )


class DropSnapshots(Struct, frozen=True, kw_only=True):
    """Delete the snapshots of a run."""

    run: RunId

    def __call__(self, at: Standings) -> None:
        """Delete the rows.

        Raises:
            RunNotFound: no such run.
        """
        at.find(self.run)
        at.db.execute(queries.DROP_SNAPSHOTS, (self.run,))


class Beat(Struct, frozen=True, kw_only=True):
    """Extend the leases of a holder; delete holders that are long dead.

    A holder is deleted a day after its last beat expired. It is also deleted if its last beat
    lies further in the future than its `ttl`, because the clock was set back: otherwise it
    would count as alive again when the clock reaches that time.
    """

    holder: str
    ttl: int
    lag: float
    clock: Clock

    def __call__(self, at: Standings) -> None:
        now = self.clock()
        at.db.execute(queries.BEAT, (self.holder, now, self.ttl, self.lag))
        at.db.execute(queries.FORGET_HOLDERS, (now, DAY))


class Rest(Struct, frozen=True, kw_only=True):
    """Free every lease of a holder."""

    holder: str

    def __call__(self, at: Standings) -> None:
        at.db.execute(queries.REST, (self.holder,))


class SetHalt(Struct, frozen=True, kw_only=True):
    """Set a halt unless its scope has one."""

    halt: Halt
    clock: Clock

    def __call__(self, at: Standings) -> None:
        halt = self.halt
        at.db.execute(queries.HALT, (halt.scope, halt.by, halt.reason, self.clock()))
        at.turn_latch()


class Lift(Struct, frozen=True, kw_only=True):
    """Remove the halt of a scope; return whether there was one."""

    scope: str

    def __call__(self, at: Standings) -> bool:
        at.db.execute(queries.LIFT, (self.scope,))
        removed = at.db.changes() > 0
        at.turn_latch()
        return removed
