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

from midrun.codec.hash_chain import HashChain
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.errors import NotJson, RunExists, RunNotFound
from midrun.ports.store import AppendResult, Lease
from midrun.stores import validation
from midrun.stores.chunks import split_line
from midrun.stores.validation import (
    AdoptedJournal,
    RunRowVersion,
    StampedLines,
    StoredHead,
    decode_head,
    encode_first_head,
    encode_head,
)


class CachedRow(RunRowVersion, frozen=True, kw_only=True):
    """The row of a run with its head, as last seen by this process."""

    stored_head: StoredHead


class WriteRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    owner: str | None = None
    labels: tuple[str, ...] | None = None
    started_at: Micros | None = None


class WriteAnswer(Struct, frozen=True, kw_only=True):
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

    def get_row_state(self, run: RunId) -> "CachedRow | None":
        """Return the current row of the run; None if there is no such run."""
        if self.seq is None:
            return None
        body = self.head.encode()
        return CachedRow(
            run=run,
            seq=self.seq,
            hash=bytes.fromhex(self.hash),
            at=self.at,
            epoch=self.epoch,
            holder=self.holder,
            stored_head=StoredHead(decode_head(body), body),
        )


class WriteAnswers(Struct, frozen=True, kw_only=True):
    """The answers to all requests of one call, and the server's time in microseconds."""

    now: Micros
    answers: tuple[WriteAnswer, ...]


class WriteResult(Struct, frozen=True, kw_only=True):
    """A request, and the row of the run after it was applied."""

    request: WriteRequest
    row: CachedRow

    @property
    def appended(self) -> AppendResult:
        """The result that the caller of the write gets."""
        return AppendResult(seq=self.row.seq, at=self.row.at, hash=self.row.hash)


class CreateRunRequest(Struct, frozen=True, kw_only=True):
    """Begin a journal with new entries, or with the lines of another store.

    The chunks of its first line are already in the store, see `stores/chunks.py`.
    """

    run: RunId
    stored_head: StoredHead
    bodies: Sequence[bytes] = ()
    adopted: AdoptedJournal | None = None
    chain: HashChain

    def build_write(
        self, current: CachedRow | None, now: Micros, *, holder_alive: bool = False
    ) -> WriteResult:
        """Build the request that creates the run.

        Raises:
            RunExists: `current` is a row.
        """
        del holder_alive
        if current is not None:
            raise RunExists(self.run)
        empty = validation.make_first_version(self.run, self.chain)
        if self.adopted is not None:
            stamped = self.adopted.stamp_with_import(self.chain, now)
            epoch, started_at = self.adopted.last_version.epoch, self.adopted.started_at
        else:
            stamped = validation.stamp_lines(
                empty, self.bodies, chain=self.chain, now=now, epoch=None
            )
            epoch, started_at = empty.epoch, stamped.appended.at
        head = self.stored_head.head
        result = _build_result(empty, stamped, self.stored_head, epoch=epoch, holder="")
        # The hash is that of the complete line; the stored line refers to its chunks.
        (first, link), *rest = stamped.lines
        request = replace(
            result.request,
            lines=_encode_lines([(split_line(first)[0], link), *rest]),
            agent=head.agent,
            thread=head.thread,
            parent=head.parent,
            owner=head.owner,
            labels=head.labels,
            started_at=started_at,
        )
        return replace(result, request=request)


class AppendRequest(Struct, frozen=True, kw_only=True, gc=False):
    """Add entries to a journal under the conditions that the writer named."""

    run: RunId
    bodies: Sequence[bytes]
    after: Seq | None
    lease: Lease | None
    stored_head: StoredHead | None
    starts: bool
    chain: HashChain
    at: Micros | None = None

    def build_write(
        self, current: CachedRow | None, now: Micros, *, holder_alive: bool = False
    ) -> WriteResult:
        """Build the request that appends after the row `current`.

        Raises:
            RunNotFound, StaleEpoch, SeqConflict: see `Store.append`.
        """
        del holder_alive
        if current is None:
            raise RunNotFound(self.run)
        validation.check_append(current, self.after, self.lease)
        # `now` is the server's time as last heard. A driver passes `at`, the time by which it
        # decided, because its state is already folded with that time.
        epoch = self.lease.epoch if self.lease else None
        now = now if self.at is None else self.at
        stamped = validation.stamp_lines(
            current, self.bodies, chain=self.chain, now=now, epoch=epoch
        )
        # Without a head the row keeps its holder. A head that is not `leased` gives the lease
        # back with the same append.
        stored_head = current.stored_head if self.stored_head is None else self.stored_head
        holder = current.holder if self.stored_head is None or stored_head.head.leased else ""
        return _build_result(
            current,
            stamped,
            stored_head,
            epoch=current.epoch,
            holder=holder,
            starts=self.starts,
        )


class TakeLeaseRequest(Struct, frozen=True, kw_only=True):
    """Take the lease of a run and append the first entries under it.

    Halts and limits are checked by the server. `holder_alive` is known only from its answer;
    the first attempt assumes that the lease is free, and the server refuses it if it is not.
    """

    run: RunId
    bodies: Sequence[bytes]
    after: Seq
    holder: str
    epoch: Epoch
    stored_head: StoredHead
    starts: bool
    limits: Mapping[str, int]
    chain: HashChain

    def build_write(
        self, current: CachedRow | None, now: Micros, *, holder_alive: bool = False
    ) -> WriteResult:
        """Build the request that takes the lease after the row `current`.

        Raises:
            RunNotFound, LeaseHeld, SeqConflict: see `Store.take_lease`.
        """
        if current is None:
            raise RunNotFound(self.run)
        validation.check_take(
            current,
            after=self.after,
            holder=self.holder,
            epoch=self.epoch,
            holder_alive=holder_alive,
        )
        stamped = validation.stamp_lines(
            current, self.bodies, chain=self.chain, now=now, epoch=self.epoch
        )
        holder = self.holder if self.stored_head.head.leased else ""
        result = _build_result(
            current,
            stamped,
            self.stored_head,
            epoch=self.epoch,
            holder=holder,
            starts=self.starts,
        )
        request = replace(result.request, taker=self.holder, limits=self.limits or None)
        return replace(result, request=request)


WriteOperation: TypeAlias = CreateRunRequest | AppendRequest | TakeLeaseRequest
"""An operation; its `build_write` makes a `WriteResult` from the row, or raises a refusal."""


def _build_result(
    current: RunRowVersion,
    stamped: StampedLines,
    stored_head: StoredHead,
    *,
    epoch: Epoch,
    holder: str,
    starts: bool = False,
) -> WriteResult:
    # The new row is computed here and not read back. The server applies the request only if
    # the row is still `current`, so when it answers "done", the row is exactly this one, and
    # the next append can be built on it without a read.
    new, head = stamped.appended, stored_head.head
    request = WriteRequest(
        run=current.run,
        after=current.seq,
        seq=new.seq,
        hash=new.hash.hex(),
        at=new.at,
        lines=_encode_lines(stamped.lines),
        starts=starts,
        epoch=epoch,
        holder=holder,
        head=stored_head.body.decode(),
        phase=head.phase.value,
        attention=head.attention,
        wake_at=head.wake_at,
    )
    row = CachedRow(
        run=current.run,
        seq=new.seq,
        hash=new.hash,
        at=new.at,
        epoch=epoch,
        holder=holder,
        stored_head=stored_head,
    )
    return WriteResult(request=request, row=row)


def _encode_lines(lines: Sequence[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    return tuple((data.decode(), link.hex()) for data, link in lines)


def encode_storable_head(head: Head, *, new_run: bool = False) -> StoredHead:
    """Encode `head` for Postgres; `new_run` marks the head of a new run.

    Raises:
        NotJson: a field cannot be stored; in Postgres that includes the character NUL.
        TooLarge: a name of a new run is too long.
    """
    stored_head = encode_first_head(head) if new_run else encode_head(head)
    for name in ("agent", "thread", "parent", "owner", "attention"):
        if "\0" in getattr(head, name):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres cannot store")
    for name in ("labels", "addressees"):
        if any("\0" in text for text in getattr(head, name)):
            raise NotJson(f"$.head.{name}", "the character NUL, which Postgres cannot store")
    return stored_head


def check_no_nul(name: str, text: str) -> None:
    """Refuse text with the character NUL, which Postgres cannot store."""
    if "\0" in text:
        raise ValueError(f"{name} must not contain the character NUL: Postgres cannot store it")
