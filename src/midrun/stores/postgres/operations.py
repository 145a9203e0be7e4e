"""Bids: what is put to the server in one write, and what it answers.

Somebody wants an append or a new run written; its `bid` says how, if the run stands where it is
believed to stand, or raises why not. The server compares, under the lock of the run's row, and
answers with where it really stands if that is elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.hash_chain import Chain
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.errors import NotJson, RunExists, RunNotFound
from midrun.ports.store import Appended, Lease
from midrun.stores import validation
from midrun.stores.chunks import split_line
from midrun.stores.validation import (
    Adopted,
    Stamped,
    Standing,
    StoredHead,
    read_head,
    stored,
    stored_first,
)


class Found(Standing, frozen=True, kw_only=True):
    """Where a run stands, with its head."""

    top: StoredHead


class Bid(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One append or new run, as `midrun_write` takes it; `after` 0 begins a journal."""

    run: RunId
    after: Seq
    seq: Seq
    hash: str
    at: Micros
    lines: tuple[tuple[str, str], ...]
    starts: bool = False
    taker: str | None = None
    limits: Mapping[str, int] | None = None
    epoch: Epoch
    holder: str
    head: str
    phase: str
    attention: str
    wake_at: Micros | None = None
    # of new runs only; the same for ever
    agent: str | None = None
    thread: str | None = None
    parent: str | None = None
    labels: tuple[str, ...] | None = None
    started_at: Micros | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """What became of one bid: done, or where the run stands instead."""

    done: bool
    seq: Seq | None = None  # None: there is no such run
    hash: str = ""
    at: Micros = Micros(0)
    epoch: Epoch = Epoch(0)
    holder: str = ""
    head: str = ""
    alive: bool = False  # of a holder in whose place somebody wants the lease
    scope: str = ""  # of the latch that forbids it
    by: str = ""
    reason: str = ""
    full: str = ""  # the scope of the limit that is reached

    def found(self, run: RunId) -> "Found | None":
        """Return where the run stands."""
        if self.seq is None:
            return None
        body = self.head.encode()
        return Found(
            run=run,
            seq=self.seq,
            hash=bytes.fromhex(self.hash),
            at=self.at,
            epoch=self.epoch,
            holder=self.holder,
            top=StoredHead(read_head(body), body),
        )


class Answers(Struct, frozen=True, kw_only=True):
    """All answers to one list of bids, and the server's time."""

    now: Micros
    answers: tuple[Answer, ...]


class Written(Struct, frozen=True, kw_only=True):
    """A bid, and where the run stands once it is done."""

    bid: Bid
    stands: Found

    @property
    def appended(self) -> Appended:
        """What the one who wanted it is told."""
        return Appended(seq=self.stands.seq, at=self.stands.at, hash=self.stands.hash)


class Create(Struct, frozen=True, kw_only=True):
    """Begin a journal, with fresh entries or with another store's lines.

    The chunks of its first line are in the store already, see `stores/chunks.py`.
    """

    run: RunId
    top: StoredHead
    bodies: Sequence[bytes] = ()
    adopted: Adopted | None = None
    chain: Chain

    def bid(self, found: Found | None, now: Micros, *, alive: bool = False) -> Written:
        """Raises: RunExists."""
        del alive
        if found is not None:
            raise RunExists(self.run)
        nothing = validation.nothing_yet(self.run, self.chain)
        if self.adopted is not None:
            stamped = self.adopted.stamp(self.chain, now)
            epoch, started_at = self.adopted.end.epoch, self.adopted.started_at
        else:
            stamped = validation.stamp(
                nothing, self.bodies, chain=self.chain, now=now, epoch=None
            )
            epoch, started_at = nothing.epoch, stamped.appended.at
        head = self.top.head
        written = _written(nothing, stamped, self.top, epoch=epoch, holder="")
        (first, link), *rest = stamped.lines
        bid = replace(
            written.bid,
            lines=_texts([(split_line(first)[0], link), *rest]),
            agent=head.agent,
            thread=head.thread,
            parent=head.parent,
            labels=head.labels,
            started_at=started_at,
        )
        return replace(written, bid=bid)


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """Add to a journal under the conditions that its writer named."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq | None
    lease: Lease | None
    top: StoredHead | None
    starts: bool
    chain: Chain
    at: Micros | None = None

    def bid(self, found: Found | None, now: Micros, *, alive: bool = False) -> Written:
        """Raises: RunNotFound, StaleEpoch, SeqConflict."""
        del alive
        if found is None:
            raise RunNotFound(self.run)
        validation.check_append(found, self.after, self.lease)
        epoch = self.lease.epoch if self.lease else None
        now = now if self.at is None else self.at
        stamped = validation.stamp(found, self.bodies, chain=self.chain, now=now, epoch=epoch)
        top = found.top if self.top is None else self.top
        holder = found.holder if self.top is None or top.head.leased else ""
        return _written(
            found, stamped, top, epoch=found.epoch, holder=holder, starts=self.starts
        )


class Take(Struct, frozen=True, kw_only=True):
    """Take a lease, and append what its new holder has to say at once."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq
    holder: str
    epoch: Epoch
    top: StoredHead
    starts: bool
    limits: Mapping[str, int]
    chain: Chain

    def bid(self, found: Found | None, now: Micros, *, alive: bool = False) -> Written:
        """Raises: RunNotFound, LeaseHeld, SeqConflict."""
        if found is None:
            raise RunNotFound(self.run)
        validation.check_take(
            found, after=self.after, holder=self.holder, epoch=self.epoch, alive=alive
        )
        stamped = validation.stamp(
            found, self.bodies, chain=self.chain, now=now, epoch=self.epoch
        )
        holder = self.holder if self.top.head.leased else ""
        written = _written(
            found, stamped, self.top, epoch=self.epoch, holder=holder, starts=self.starts
        )
        bid = replace(written.bid, taker=self.holder, limits=self.limits or None)
        return replace(written, bid=bid)


Write: TypeAlias = Create | Append | Take
"""What somebody wants written. `alive` is whether the run's present holder is."""


def _written(
    found: Standing,
    stamped: Stamped,
    top: StoredHead,
    *,
    epoch: Epoch,
    holder: str,
    starts: bool = False,
) -> Written:
    new, head = stamped.appended, top.head
    bid = Bid(
        run=found.run,
        after=found.seq,
        seq=new.seq,
        hash=new.hash.hex(),
        at=new.at,
        lines=_texts(stamped.lines),
        starts=starts,
        epoch=epoch,
        holder=holder,
        head=top.body.decode(),
        phase=head.phase.value,
        attention=head.attention,
        wake_at=head.wake_at,
    )
    stands = Found(
        run=found.run,
        seq=new.seq,
        hash=new.hash,
        at=new.at,
        epoch=epoch,
        holder=holder,
        top=top,
    )
    return Written(bid=bid, stands=stands)


def _texts(lines: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((data.decode(), link.hex()) for data, link in lines)


def storable(head: Head, *, first: bool = False) -> StoredHead:
    """Return `head` as it is kept here; `first` is that of a new run.

    Raises:
        NotJson: a field of it cannot be stored; in Postgres that includes the character NUL.
        TooLarge: a name of a new run is too long.
    """
    top = stored_first(head) if first else stored(head)
    for name in ("agent", "thread", "parent", "owner", "attention"):
        if "\0" in getattr(head, name):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres does not keep")
    for name in ("labels", "addressees"):
        if any("\0" in text for text in getattr(head, name)):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres does not keep")
    return top


def check_nul(name: str, text: str) -> None:
    """Refuse text that Postgres does not keep."""
    if "\0" in text:
        raise ValueError(f"{name}: the character NUL, which Postgres does not keep")
