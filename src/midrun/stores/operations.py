"""The writes that extend a journal, as values that all stores share.

A write goes through three stages. `prepare_…` checks and encodes the arguments of the caller,
before any transaction: nothing can fail for its content afterwards. `apply` compares the
prepared operation with the row of the run and returns the change, the new lines and the new
row, or raises the refusal. It is a pure function, so a store can call it again: with a newer
row, or in a second transaction. Then the store writes the change.

Halts and limits concern several runs. The store checks them itself, between `apply` and the
first change.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import anyio.to_thread
from msgspec import Struct

from midrun.codec.hash_chain import HashChain
from midrun.codec.strict_json import DEFAULT_LIMITS, JsonLimits
from midrun.core.entries import Entry, RunImported
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.errors import RunExists, RunNotFound, TooLarge
from midrun.ports.environment import Clock
from midrun.ports.store import AppendResult, Lease
from midrun.stores import validation
from midrun.stores.validation import (
    AdoptedJournal,
    RunRowVersion,
    StampedLines,
    StoredHead,
    encode_first_head,
    encode_head,
    verify_adopted_lines,
)

INLINE_ENTRY_LIMITS: Final = JsonLimits(max_bytes=32 * 1024)
"""Size limit of an entry that is encoded in the event loop's thread: 3 ms at worst."""

INLINE_MAX_ENTRIES: Final = 64
"""At most this many entries are encoded or decoded there; a thread would cost more."""

INLINE_MAX_BYTES: Final = 256 * 1024
"""At most this many bytes are decoded there: to hash and decode them takes about 1 ms."""


class StoredRow(RunRowVersion, frozen=True, kw_only=True, gc=False):
    """The row of a run as a write compares it, with its head.

    `number` is the primary key in SQLite; the other stores do not use it.
    """

    stored_head: StoredHead
    number: int = 0


class RowChange(Struct, frozen=True, kw_only=True, gc=False):
    """The lines that a write adds, and the row after them."""

    lines: tuple[tuple[bytes, bytes], ...]
    appended: AppendResult
    row: StoredRow
    started_at: Micros | None = None  # of a new run


class JournalWrite(Struct, frozen=True, kw_only=True, gc=False):
    """A prepared write: the encoded entries, and the conditions under which they are added.

    `starts` means that an entry starts a call, so no halt may be in force. A write that
    `is_large` was encoded in a thread and should be written there.
    """

    run: RunId
    chain: HashChain
    bodies: Sequence[bytes] = ()
    starts: bool = False
    is_large: bool = False

    @abstractmethod
    def apply(
        self, current: StoredRow | None, clock: Clock, *, holder_alive: bool = False
    ) -> RowChange:
        """Return the change of the row `current`; None means that there is no run.

        `holder_alive` tells whether the holder of the row is alive.

        Raises:
            RunExists, RunNotFound, StaleEpoch, SeqConflict, LeaseHeld: see `Store`.
        """
        raise NotImplementedError


class CreateRunWrite(JournalWrite, frozen=True, kw_only=True):
    """Begin a journal with new entries, or with the lines of another store."""

    stored_head: StoredHead
    adopted: AdoptedJournal | None = None

    def apply(
        self, current: StoredRow | None, clock: Clock, *, holder_alive: bool = False
    ) -> RowChange:
        del holder_alive
        if current is not None:
            raise RunExists(self.run)
        version, now = validation.make_first_version(self.run, self.chain), clock()
        if self.adopted is None:
            stamped = validation.stamp_lines(
                version, self.bodies, chain=self.chain, now=now, epoch=None
            )
            started_at = stamped.appended.at
        else:
            version, started_at = self.adopted.last_version, self.adopted.started_at
            stamped = self.adopted.stamp_with_import(self.chain, now)
        row = _make_row(self.run, 0, stamped, self.stored_head, version.epoch, "")
        return RowChange(
            lines=stamped.lines, appended=stamped.appended, row=row, started_at=started_at
        )


class AppendWrite(JournalWrite, frozen=True, kw_only=True, gc=False):
    """Add entries to a journal under the conditions that the writer named.

    `at` is the time at which the caller decided, if it has folded the entries with that time.
    """

    after: Seq | None
    lease: Lease | None
    stored_head: StoredHead | None
    at: Micros | None = None

    def apply(
        self, current: StoredRow | None, clock: Clock, *, holder_alive: bool = False
    ) -> RowChange:
        del holder_alive
        if current is None:
            raise RunNotFound(self.run)
        validation.check_append(current, self.after, self.lease)
        stamped = validation.stamp_lines(
            current,
            self.bodies,
            chain=self.chain,
            now=clock() if self.at is None else self.at,
            epoch=self.lease.epoch if self.lease else None,
        )
        # Without a head the row keeps its head and its holder. A head that is not `leased`
        # gives the lease back in the same transaction as the entry that ends the drive.
        stored_head, holder = current.stored_head, current.holder
        if self.stored_head is not None:
            stored_head = self.stored_head
            holder = holder if stored_head.head.leased else ""
        row = _make_row(self.run, current.number, stamped, stored_head, current.epoch, holder)
        return RowChange(lines=stamped.lines, appended=stamped.appended, row=row)


class TakeLeaseWrite(JournalWrite, frozen=True, kw_only=True):
    """Take the lease of a run and append the first entries under it."""

    after: Seq
    holder: str
    epoch: Epoch
    stored_head: StoredHead
    limits: Mapping[str, int]

    def apply(
        self, current: StoredRow | None, clock: Clock, *, holder_alive: bool = False
    ) -> RowChange:
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
            current, self.bodies, chain=self.chain, now=clock(), epoch=self.epoch
        )
        # If the same entries also end the work, the head is not `leased`, and the lease is
        # given back at once.
        holder = self.holder if self.stored_head.head.leased else ""
        row = _make_row(self.run, current.number, stamped, self.stored_head, self.epoch, holder)
        return RowChange(lines=stamped.lines, appended=stamped.appended, row=row)


def _make_row(
    run: RunId,
    number: int,
    stamped: StampedLines,
    stored_head: StoredHead,
    epoch: Epoch,
    holder: str,
) -> StoredRow:
    end = stamped.appended
    return StoredRow(
        run=run,
        number=number,
        seq=end.seq,
        hash=end.hash,
        at=end.at,
        epoch=epoch,
        holder=holder,
        stored_head=stored_head,
    )


# ── Preparation ──────────────────────────────────────────────────────────────────────────


async def prepare_create(
    chain: HashChain, run: RunId, entries: Sequence[Entry], head: Head
) -> CreateRunWrite:
    """Check and encode the first entries of a new run."""
    encode = partial(validation.encode_first_entries, run, entries)
    bodies, is_large = await _encode_bodies(encode, entries)
    return CreateRunWrite(
        run=run,
        chain=chain,
        bodies=bodies,
        is_large=is_large,
        stored_head=encode_first_head(head),
    )


async def prepare_adopt(
    chain: HashChain, run: RunId, lines: Sequence[bytes], imported: RunImported, head: Head
) -> CreateRunWrite:
    """Verify the lines of another store in a thread."""
    stored_head = encode_first_head(head)
    adopted = await anyio.to_thread.run_sync(verify_adopted_lines, run, lines, imported, chain)
    return CreateRunWrite(
        run=run, chain=chain, is_large=True, stored_head=stored_head, adopted=adopted
    )


async def prepare_append(
    chain: HashChain,
    run: RunId,
    entries: Sequence[Entry],
    *,
    after: Seq | None,
    lease: Lease | None,
    head: Head | None,
    starts: bool,
    at: Micros | None,
) -> AppendWrite:
    """Check and encode entries that follow `after`."""
    if after is None:
        validation.check_append_without_after(
            run, entries, lease=lease, head=head, starts=starts
        )
    encode = partial(validation.encode_entries, run, entries, lease)
    bodies, is_large = await _encode_bodies(encode, entries)
    return AppendWrite(
        run=run,
        chain=chain,
        bodies=bodies,
        starts=starts or validation.has_starts(entries),
        is_large=is_large,
        after=after,
        lease=lease,
        stored_head=None if head is None else encode_head(head),
        at=at,
    )


async def prepare_take(
    chain: HashChain,
    run: RunId,
    entries: Sequence[Entry],
    *,
    after: Seq,
    holder: str,
    head: Head,
    limits: Mapping[str, int] | None,
) -> TakeLeaseWrite:
    """Check and encode the entries of a new lease holder."""
    epoch = validation.read_taken_epoch(run, entries, holder)
    encode = partial(validation.encode_lease_entries, run, entries, holder)
    bodies, is_large = await _encode_bodies(encode, entries)
    return TakeLeaseWrite(
        run=run,
        chain=chain,
        bodies=bodies,
        starts=validation.has_starts(entries),
        is_large=is_large,
        after=after,
        holder=holder,
        epoch=epoch,
        stored_head=encode_head(head),
        limits=validation.select_valid_limits(head, limits),
    )


async def _encode_bodies(
    encode: Callable[[JsonLimits], list[bytes]], entries: Sequence[Entry]
) -> tuple[list[bytes], bool]:
    """Encode `entries`, in a thread if they are large; tell whether they are.

    A caller that changes its entries meanwhile gets a mixture of both versions, or a refusal.
    """
    if len(entries) <= INLINE_MAX_ENTRIES:
        try:
            return encode(INLINE_ENTRY_LIMITS), False
        except TooLarge:
            pass
    return await anyio.to_thread.run_sync(encode, DEFAULT_LIMITS), True
