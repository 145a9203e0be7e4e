"""Write operations of the Postgres store, and the messages of `midrun_write`.

Each operation builds an optimistic write from the cached row of a run: stamped lines, hashes
and the new row, as a `WriteRequest`. The server applies it if the row still matches, else it
answers with the current row (`WriteAnswer`), and the operation builds a new request from that.
An operation raises the refusal if the row itself does not allow it. The field names of the
messages are those of the SQL procedure.
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
    """The row of a run with its head, as last seen by this process."""

    top: StoredHead


class Bid(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One append or new run in the form that `midrun_write` takes.

    `after` is 0 for a new run.
    """

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
    # Only for new runs. These columns never change.
    agent: str | None = None
    thread: str | None = None
    parent: str | None = None
    labels: tuple[str, ...] | None = None
    started_at: Micros | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """The server's answer to one request: done, or the current row."""

    done: bool
    seq: Seq | None = None  # None: no such run
    hash: str = ""
    at: Micros = Micros(0)
    epoch: Epoch = Epoch(0)
    holder: str = ""
    head: str = ""
    alive: bool = False  # the present holder, if another one wants the lease
    scope: str = ""  # of the halt that forbids the write
    by: str = ""
    reason: str = ""
    full: str = ""  # scope of the limit that is reached

    def found(self, run: RunId) -> "Found | None":
        """Return the current row of the run; None if there is no such run."""
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
    """The answers to all requests of one call, and the server's time in microseconds."""

    now: Micros
    answers: tuple[Answer, ...]


class Written(Struct, frozen=True, kw_only=True):
    """A request, and the row of the run after it was applied."""

    bid: Bid
    stands: Found

    @property
    def appended(self) -> Appended:
        """The result that the caller of the write gets."""
        return Appended(seq=self.stands.seq, at=self.stands.at, hash=self.stands.hash)


class Create(Struct, frozen=True, kw_only=True):
    """Begin a journal with new entries, or with the lines of another store.

    The chunks of its first line are already in the store, see `stores/chunks.py`.
    """

    run: RunId
    top: StoredHead
    bodies: Sequence[bytes] = ()
    adopted: Adopted | None = None
    chain: Chain

    def bid(self, found: Found | None, now: Micros, *, alive: bool = False) -> Written:
        """Build the request that creates the run.

        Raises:
            RunExists: `current` is a row.
        """
        del alive
        if found is not None:
            raise RunExists(self.run)
        empty = validation.nothing_yet(self.run, self.chain)
        if self.adopted is not None:
            stamped = self.adopted.stamp(self.chain, now)
            epoch, started_at = self.adopted.end.epoch, self.adopted.started_at
        else:
            stamped = validation.stamp(
                empty, self.bodies, chain=self.chain, now=now, epoch=None
            )
            epoch, started_at = empty.epoch, stamped.appended.at
        head = self.top.head
        result = _written(empty, stamped, self.top, epoch=epoch, holder="")
        # The hash is that of the complete line; the stored line refers to its chunks.
        (first, link), *rest = stamped.lines
        request = replace(
            result.bid,
            lines=_texts([(split_line(first)[0], link), *rest]),
            agent=head.agent,
            thread=head.thread,
            parent=head.parent,
            labels=head.labels,
            started_at=started_at,
        )
        return replace(result, bid=request)


class Append(Struct, frozen=True, kw_only=True, gc=False):
    """Add entries to a journal under the conditions that the writer named."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq | None
    lease: Lease | None
    top: StoredHead | None
    starts: bool
    chain: Chain
    at: Micros | None = None

    def bid(self, found: Found | None, now: Micros, *, alive: bool = False) -> Written:
        """Build the request that appends after the row `current`.

        Raises:
            RunNotFound, StaleEpoch, SeqConflict: see `Store.append`.
        """
        del alive
        if found is None:
            raise RunNotFound(self.run)
        validation.check_append(found, self.after, self.lease)
        epoch = self.lease.epoch if self.lease else None
        now = now if self.at is None else self.at
        stamped = validation.stamp(found, self.bodies, chain=self.chain, now=now, epoch=epoch)
        # Without a head the row keeps its holder. A head that is not `leased` gives the lease
        # back with the same append.
        stored_head = found.top if self.top is None else self.top
        holder = found.holder if self.top is None or stored_head.head.leased else ""
        return _written(
            found, stamped, stored_head, epoch=found.epoch, holder=holder, starts=self.starts
        )


class Take(Struct, frozen=True, kw_only=True):
    """Take the lease of a run and append the first entries under it.

    Halts and limits are checked by the server. `holder_alive` is known only from its answer;
    the first attempt assumes that the lease is free, and the server refuses it if it is not.
    """

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
        """Build the request that takes the lease after the row `current`.

        Raises:
            RunNotFound, LeaseHeld, SeqConflict: see `Store.take_lease`.
        """
        if found is None:
            raise RunNotFound(self.run)
        validation.check_take(
            found, after=self.after, holder=self.holder, epoch=self.epoch, alive=alive
        )
        stamped = validation.stamp(
            found, self.bodies, chain=self.chain, now=now, epoch=self.epoch
        )
        holder = self.holder if self.top.head.leased else ""
        result = _written(
            found, stamped, self.top, epoch=self.epoch, holder=holder, starts=self.starts
        )
        request = replace(result.bid, taker=self.holder, limits=self.limits or None)
        return replace(result, bid=request)


Write: TypeAlias = Create | Append | Take
"""An operation; its `build_write` makes a `WriteResult` from the row, or raises a refusal."""


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
    request = Bid(
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
    row = Found(
        run=found.run,
        seq=new.seq,
        hash=new.hash,
        at=new.at,
        epoch=epoch,
        holder=holder,
        top=top,
    )
    return Written(bid=request, stands=row)


def _texts(lines: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((data.decode(), link.hex()) for data, link in lines)


def storable(head: Head, *, first: bool = False) -> StoredHead:
    """Encode `head` for Postgres; `new_run` marks the head of a new run.

    Raises:
        NotJson: a field cannot be stored; in Postgres that includes the character NUL.
        TooLarge: a name of a new run is too long.
    """
    stored_head = stored_first(head) if first else stored(head)
    for name in ("agent", "thread", "parent", "owner", "attention"):
        if "\0" in getattr(head, name):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres cannot store")
    for name in ("labels", "addressees"):
        if any("\0" in text for text in getattr(head, name)):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres cannot store")
    return stored_head


def check_nul(name: str, text: str) -> None:
    """Refuse text with the character NUL, which Postgres cannot store."""
    if "\0" in text:
        raise ValueError(f"{name} must not contain the character NUL: Postgres cannot store it")
