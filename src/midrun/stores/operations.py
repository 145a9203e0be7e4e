"""The writes that extend a journal, in the form that all stores share.

A write goes through three stages. The methods of `JournalStore` check and encode the arguments
of the caller, before any transaction: nothing can fail for its content afterwards. The result
is an operation. Its `apply` compares it with the row of the run and returns the change, the new
lines and the new row, or raises the refusal. It is a pure function, so a store can call it
again: with a newer row, or in a second transaction. Then the store writes the change.

Halts, limits and files concern several runs. The store checks them itself, between `apply` and
the first change.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.hash_chain import HashChain
from midrun.codec.strict_json import DEFAULT_LIMITS, JsonLimits
from midrun.core.entries import Entry, RunImported
from midrun.core.files import may_name_files
from midrun.core.ids import Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import TERMINAL_PHASES
from midrun.errors import RunExists, RunNotFound, StoreEncrypted, TooLarge
from midrun.ports.environment import Clock
from midrun.ports.store import AppendResult, Lease, RunQuota
from midrun.stores import validation
from midrun.stores.encryption import UNENCRYPTED, PayloadCipher
from midrun.stores.search import collect_words
from midrun.stores.validation import (
    NO_FILES,
    START_ENTRY_TYPES,
    AdoptedJournal,
    NamedFiles,
    RunRowVersion,
    StoredHead,
    collect_files,
    encode_first_head,
    encode_head,
    encrypt_files,
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

    Without a `stored_head` the row keeps its head. `starts` means that an entry starts a call,
    so no halt may be in force. `files` are checked and written by the store. A write that
    `is_large` was encoded in a thread and should be written there.
    """

    run: RunId
    chain: HashChain
    bodies: Sequence[bytes]
    stored_head: StoredHead | None
    starts: bool = False
    is_large: bool = False
    files: NamedFiles = NO_FILES
    search_words: str = ""  # to add to the index of the search

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
    quotas: Sequence[RunQuota] = ()

    @property
    def first_body(self) -> bytes:
        """The first entry; it has the same chunks as the complete line."""
        return self.bodies[0] if self.adopted is None else self.adopted.lines[0][0]

    def apply(
        self, current: StoredRow | None, clock: Clock, *, holder_alive: bool = False
    ) -> RowChange:
        del holder_alive
        if current is not None:
            raise RunExists(self.run)
        # An adopted journal keeps its own times, links and epoch: they are part of its hash
        # chain. Only the entry that records the import is stamped here.
        version, now = validation.make_first_version(self.run, self.chain), clock()
        if self.adopted is None:
            stamped = validation.stamp_lines(
                version, self.bodies, chain=self.chain, now=now, epoch=None
            )
            started_at = stamped.appended.at
        else:
            version, started_at = self.adopted.last_version, self.adopted.started_at
            stamped = self.adopted.stamp_with_import(self.chain, now)
        end = stamped.appended
        row = StoredRow(
            run=self.run,
            seq=end.seq,
            hash=end.hash,
            at=end.at,
            epoch=version.epoch,
            holder="",
            stored_head=self.stored_head,
        )
        return RowChange(lines=stamped.lines, appended=end, row=row, started_at=started_at)


class AppendWrite(JournalWrite, frozen=True, kw_only=True, gc=False):
    """Add entries to a journal under the conditions that the writer named.

    `at` is the time at which the caller decided, if it has folded the entries with that time.
    """

    after: Seq | None
    lease: Lease | None
    at: Micros | None = None

    def apply(
        self, current: StoredRow | None, clock: Clock, *, holder_alive: bool = False
    ) -> RowChange:
        del holder_alive
        if current is None:
            raise RunNotFound(self.run)
        # The whole safety of a run is in this line and in the transaction around it. It
        # compares the seq that the writer has seen and the epoch of its lease with the row,
        # and no other writer can change the row before the commit. See `check_append` for the
        # writes without a seq.
        validation.check_append(current, self.after, self.lease)
        stamped = validation.stamp_lines(
            current,
            self.bodies,
            chain=self.chain,
            now=clock() if self.at is None else self.at,
            epoch=self.lease.epoch if self.lease else None,
        )
        # Without a head the row keeps its head and its holder. A head that is not `leased`
        # gives the lease back in the same transaction as the entry with which the run rests.
        stored_head, holder = current.stored_head, current.holder
        if self.stored_head is not None:
            stored_head = self.stored_head
            holder = holder if stored_head.head.leased else ""
        end = stamped.appended
        row = replace(
            current,
            seq=end.seq,
            hash=end.hash,
            at=end.at,
            holder=holder,
            stored_head=stored_head,
        )
        return RowChange(lines=stamped.lines, appended=end, row=row)


class TakeLeaseWrite(JournalWrite, frozen=True, kw_only=True):
    """Take the lease of a run and append the first entries under it."""

    after: Seq
    holder: str
    epoch: Epoch
    stored_head: StoredHead
    limits: Mapping[str, int]
    at: Micros | None = None

    def apply(
        self, current: StoredRow | None, clock: Clock, *, holder_alive: bool = False
    ) -> RowChange:
        if current is None:
            raise RunNotFound(self.run)
        # Several workers may try at once. The seq decides between them, as for any other
        # append. A holder that is alive keeps its lease, whatever the seq is.
        validation.check_take(
            current,
            after=self.after,
            holder=self.holder,
            epoch=self.epoch,
            holder_alive=holder_alive,
        )
        stamped = validation.stamp_lines(
            current,
            self.bodies,
            chain=self.chain,
            now=clock() if self.at is None else self.at,
            epoch=self.epoch,
        )
        # If the same entries also end the work, the head is not `leased`, and the lease is
        # given back at once.
        holder = self.holder if self.stored_head.head.leased else ""
        end = stamped.appended
        row = replace(
            current,
            seq=end.seq,
            hash=end.hash,
            at=end.at,
            epoch=self.epoch,
            holder=holder,
            stored_head=self.stored_head,
        )
        return RowChange(lines=stamped.lines, appended=end, row=row)


class JournalStore(ABC):
    """The methods of a store that write journals: they prepare an operation and write it."""

    chain: HashChain
    cipher: PayloadCipher = UNENCRYPTED
    missing_keys: str = ""  # the ids of the keys of an encrypted store; "": it may be written
    name: str = "memory"  # of the store, for errors
    on_write: Callable[[float], None] | None = None

    async def _write_measured(self, operation: JournalWrite) -> AppendResult:
        """Write `operation`; report the time that it took, if that is wanted.

        Raises:
            StoreEncrypted: the store is encrypted, and this process has no key.
        """
        if self.missing_keys:
            raise StoreEncrypted(self.name, self.missing_keys, "")
        report = self.on_write
        if report is None:
            return await self._write(operation)
        # Refused and failed writes are reported, too: a store that is slow to refuse is slow.
        started = anyio.current_time()
        try:
            return await self._write(operation)
        finally:
            report(anyio.current_time() - started)

    @abstractmethod
    def _write(self, operation: JournalWrite) -> Awaitable[AppendResult]:
        """Apply `operation` in a transaction; return once it is committed."""

    async def create(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        head: Head,
        files: Mapping[str, bytes] | None = None,
        quotas: Sequence[RunQuota] = (),
    ) -> AppendResult:
        validation.check_quota_values(quotas)
        encode = partial(validation.encode_first_entries, run, entries)
        bodies, is_large = await self._encode_bodies(run, encode, entries, is_first=True)
        operation = CreateRunWrite(
            run=run,
            chain=self.chain,
            bodies=bodies,
            stored_head=encode_first_head(head, self.cipher, run),
            # To count runs may take milliseconds, so that is not done in the event loop.
            is_large=is_large or bool(files) or bool(quotas),
            files=await self._collect_files(entries, files),
            search_words=collect_words(entries, has_texts=not self.cipher),
            quotas=quotas,
        )
        return await self._write_measured(operation)

    async def adopt(
        self,
        run: RunId,
        lines: Sequence[bytes],
        imported: RunImported,
        *,
        head: Head,
        files: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        stored_head = encode_first_head(head, self.cipher, run)
        # The lines come from outside. They are checked before the transaction, with their hash
        # chain and their files. An import may have many megabytes, hence the thread.
        adopted = await anyio.to_thread.run_sync(
            verify_adopted_lines, run, lines, imported, self.chain, self.cipher, files
        )
        operation = CreateRunWrite(
            run=run,
            chain=self.chain,
            bodies=(),
            stored_head=stored_head,
            adopted=adopted,
            is_large=True,
            files=adopted.files,
            search_words=adopted.search_words,
        )
        return await self._write_measured(operation)

    async def append(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq | None,
        lease: Lease | None,
        head: Head | None,
        starts: bool = False,
        at: Micros | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        if after is None:
            validation.check_append_without_after(
                run, entries, lease=lease, head=head, starts=starts
            )
        encode = partial(validation.encode_entries, run, entries, lease)
        bodies, is_large = await self._encode_bodies(run, encode, entries)
        stored_head = None if head is None else encode_head(head, self.cipher, run)
        operation = AppendWrite(
            run=run,
            chain=self.chain,
            bodies=bodies,
            stored_head=stored_head,
            # As `has_starts`, without the call.
            starts=starts or not START_ENTRY_TYPES.isdisjoint(map(type, entries)),
            is_large=is_large or bool(files),
            # Nearly all appends of a worker name no file.
            files=await self._collect_files(entries, files)
            if files or may_name_files(entries)
            else NO_FILES,
            after=after,
            lease=lease,
            at=at,
            search_words=collect_words(entries, has_texts=not self.cipher)
            if head is not None and head.phase in TERMINAL_PHASES
            else "",
        )
        return await self._write_measured(operation)

    async def take_lease(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq,
        holder: str,
        head: Head,
        limits: Mapping[str, int] | None = None,
        at: Micros | None = None,
    ) -> tuple[Lease, AppendResult]:
        # The epoch is in the entry `LeaseTaken`, so it is part of the journal and of its
        # chain. The row only repeats it, for a comparison without reading the journal.
        epoch = validation.read_taken_epoch(run, entries, holder)
        encode = partial(validation.encode_lease_entries, run, entries, holder)
        bodies, is_large = await self._encode_bodies(run, encode, entries)
        operation = TakeLeaseWrite(
            run=run,
            chain=self.chain,
            bodies=bodies,
            stored_head=encode_head(head, self.cipher, run),
            starts=validation.has_starts(entries),
            is_large=is_large,
            after=after,
            holder=holder,
            epoch=epoch,
            limits=validation.select_valid_limits(head, limits),
            at=at,
            search_words=collect_words(entries, has_texts=not self.cipher)
            if head.phase in TERMINAL_PHASES
            else "",
        )
        appended = await self._write_measured(operation)
        return Lease(run=run, holder=holder, epoch=epoch), appended

    async def _collect_files(
        self, entries: Sequence[Entry], files: Mapping[str, bytes] | None
    ) -> NamedFiles:
        """Collect the files that `entries` name; hash and encrypt given bodies in a thread."""
        if not files:
            return collect_files(entries, None)
        named = await anyio.to_thread.run_sync(collect_files, entries, files)
        return await anyio.to_thread.run_sync(encrypt_files, self.cipher, named)

    async def _encode_bodies(
        self,
        run: RunId,
        encode: Callable[[JsonLimits], list[bytes]],
        entries: Sequence[Entry],
        *,
        is_first: bool = False,
    ) -> tuple[list[bytes], bool]:
        """Encode and encrypt `entries`, in a thread if they are large; tell whether they are.

        A caller that changes its entries meanwhile gets a mixture of both versions, or a
        refusal.
        """

        def encode_and_encrypt(limits: JsonLimits) -> list[bytes]:
            bodies, cipher = encode(limits), self.cipher
            return [
                cipher.encrypt_entry(run, body, is_first=is_first and not number)
                for number, body in enumerate(bodies)
            ]

        chosen = encode_and_encrypt if self.cipher.write_id else encode
        if len(entries) <= INLINE_MAX_ENTRIES:
            try:
                return chosen(INLINE_ENTRY_LIMITS), False
            except TooLarge:
                pass
        return await anyio.to_thread.run_sync(chosen, DEFAULT_LIMITS), True
