"""What is done inside a write transaction: each class is one request; calling carries it out.

A request reads where things stand, refuses before it has changed anything, then writes. So one
refused request cannot spoil the others of its group, and each can be carried out again alone.
"""

from collections.abc import Sequence
from datetime import timedelta

import apsw
import msgspec
from msgspec import Struct

from midrun.core.head import Head
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.errors import RunExists, RunNotFound
from midrun.ports.clock import Clock
from midrun.ports.store import Appended, Halt, Lease, Snapshot
from midrun.stores import rules
from midrun.stores.rules import Stamped, Standing
from midrun.stores.sqlite import queries

HEADS = msgspec.json.Decoder(Head)
_ENCODER = msgspec.json.Encoder(order="sorted")


def encode_head(head: Head) -> bytes:
    """Return `head` as it is stored."""
    return _ENCODER.encode(head)


class Create(Struct, frozen=True, kw_only=True):
    """Begin a journal, with fresh entries or with another store's lines."""

    run: RunId
    head: Head
    bodies: Sequence[bytes] = ()
    adopted: Stamped | None = None
    epoch: Epoch = Epoch(0)
    started_at: Micros | None = None
    clock: Clock

    def __call__(self, db: apsw.Connection) -> Appended:
        """Raises: RunExists."""
        if db.execute(queries.EXISTS, (self.run,)).get is not None:
            raise RunExists(self.run)
        stamped = self.adopted or rules.stamp(
            rules.nothing_yet(self.run), self.bodies, now=self.clock(), epoch=None
        )
        new, head = stamped.appended, self.head
        number = db.execute(
            queries.BEGIN_RUN,
            (
                self.run,
                new.seq,
                new.hash,
                new.at,
                new.at if self.started_at is None else self.started_at,
                self.epoch,
                encode_head(head),
                head.phase.value,
                head.attention,
                head.wake_at,
                head.agent,
                head.thread,
                head.parent,
            ),
        ).get
        for label in head.labels:
            db.execute(queries.ADD_LABEL, (label, number))
        _add(db, number, 0, stamped)
        return new


class Append(Struct, frozen=True, kw_only=True):
    """Add to a journal under the conditions that its writer named."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq | None
    lease: Lease | None
    head: Head | None
    starts: bool
    clock: Clock

    def __call__(self, db: apsw.Connection) -> Appended:
        """Raises: RunNotFound, StaleEpoch, SeqConflict, HaltInForce."""
        found = _Found(db, self.run)
        standing = found.standing
        rules.check_append(standing, after=self.after, lease=self.lease)
        if self.starts and (halts := all_halts(db)):
            rules.check_halts(self.run, HEADS.decode(found.head), halts)
        epoch = self.lease.epoch if self.lease else None
        stamped = rules.stamp(standing, self.bodies, now=self.clock(), epoch=epoch)
        _add(db, found.number, standing.seq, stamped)
        holder = standing.holder if self.head is None or self.head.leased else ""
        found.move(db, stamped.appended, self.head, standing.epoch, holder)
        return stamped.appended


class Take(Struct, frozen=True, kw_only=True):
    """Take a lease, and append what its new holder has to say at once."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq
    holder: str
    epoch: Epoch
    head: Head
    clock: Clock

    def __call__(self, db: apsw.Connection) -> Appended:
        """Raises: RunNotFound, LeaseHeld, SeqConflict."""
        found = _Found(db, self.run)
        standing, now = found.standing, self.clock()
        alive = db.execute(queries.FRESH, (standing.holder, now)).get is not None
        rules.check_take(
            standing, after=self.after, holder=self.holder, epoch=self.epoch, alive=alive
        )
        stamped = rules.stamp(standing, self.bodies, now=now, epoch=self.epoch)
        _add(db, found.number, standing.seq, stamped)
        holder = self.holder if self.head.leased else ""
        found.move(db, stamped.appended, self.head, self.epoch, holder)
        return stamped.appended


class SaveSnapshot(Struct, frozen=True, kw_only=True):
    """Keep a snapshot unless a newer one is kept."""

    run: RunId
    snapshot: Snapshot

    def __call__(self, db: apsw.Connection) -> None:
        """Raises: RunNotFound."""
        _Found(db, self.run)
        kept = self.snapshot
        db.execute(queries.SAVE_SNAPSHOT, (self.run, kept.seq, kept.hash, kept.body))


class DropSnapshots(Struct, frozen=True, kw_only=True):
    """Forget the snapshots of a run."""

    run: RunId

    def __call__(self, db: apsw.Connection) -> None:
        """Raises: RunNotFound."""
        _Found(db, self.run)
        db.execute(queries.DROP_SNAPSHOTS, (self.run,))


class Beat(Struct, frozen=True, kw_only=True):
    """Keep a holder's leases alive; drop holders that nobody has heard of for a day."""

    holder: str
    ttl: timedelta
    lag: float
    clock: Clock

    def __call__(self, db: apsw.Connection) -> None:
        now = self.clock()
        db.execute(queries.BEAT, (self.holder, rules.later(now, self.ttl), self.lag))
        db.execute(queries.FORGET_HOLDERS, (rules.later(now, -timedelta(days=1)),))


class Rest(Struct, frozen=True, kw_only=True):
    """Free whatever a holder still holds."""

    holder: str

    def __call__(self, db: apsw.Connection) -> None:
        db.execute(queries.REST, (self.holder,))


class SetHalt(Struct, frozen=True, kw_only=True):
    """Set a latch, unless it is set."""

    halt: Halt
    clock: Clock

    def __call__(self, db: apsw.Connection) -> None:
        new = self.halt
        db.execute(queries.HALT, (new.scope, new.by, new.reason, self.clock()))
        db.execute(queries.TURN_LATCH)


class Lift(Struct, frozen=True, kw_only=True):
    """Take a latch away."""

    scope: str

    def __call__(self, db: apsw.Connection) -> bool:
        db.execute(queries.LIFT, (self.scope,))
        lifted = db.changes() > 0
        db.execute(queries.TURN_LATCH)
        return lifted


def all_halts(db: apsw.Connection) -> tuple[Halt, ...]:
    """Return the latches that hold, oldest first."""
    return tuple(
        Halt(scope=scope, by=by, reason=reason, at=at)
        for scope, by, reason, at in db.execute(queries.HALTS)
    )


class _Found:
    """A run's row as a write transaction has found it."""

    __slots__ = ("_indexed", "head", "number", "standing")

    def __init__(self, db: apsw.Connection, run: RunId) -> None:
        rules.check_id(run)
        row = db.execute(queries.STANDING, (run,)).get
        if row is None:
            raise RunNotFound(run)
        self.number: int
        self.head: bytes
        self.number, seq, link, at, epoch, holder, self.head, *self._indexed = row
        self.standing = Standing(run=run, seq=seq, hash=link, at=at, epoch=epoch, holder=holder)

    def move(
        self,
        db: apsw.Connection,
        new: Appended,
        head: Head | None,
        epoch: Epoch,
        holder: str,
    ) -> None:
        """Move the row to `new`, touching no more of it than has changed."""
        grown = (new.seq, new.hash, new.at)
        body = self.head if head is None else encode_head(head)
        if head is not None and (
            epoch != self.standing.epoch
            or holder != self.standing.holder
            or self._indexed != [head.phase, head.attention, head.wake_at]
        ):
            indexed = (head.phase.value, head.attention, head.wake_at)
            db.execute(queries.MOVE, (*grown, body, epoch, holder, *indexed, self.number))
        elif body != self.head:
            db.execute(queries.GROW_HEAD, (*grown, body, self.number))
        else:
            db.execute(queries.GROW, (*grown, self.number))


def _add(db: apsw.Connection, number: int, seq: int, stamped: Stamped) -> None:
    for data, link in stamped.lines:
        seq += 1
        db.execute(queries.ADD_ENTRY, (number, seq, data, link))
