"""Write operations of the SQLite store, which the writer calls in a transaction.

An operation is a frozen struct with everything that was checked and encoded before the
transaction. Calling it with the `RowCache` of the writer reads the run's row, raises a refusal
before the first change, and then writes. Two properties follow. A refused operation does not
disturb the other requests of its group. And an operation can be called again: when a group is
rolled back, each request is committed alone.
"""

from typing import Final

import apsw
from msgspec import Struct

from midrun.codec.hash_chain import HashChain
from midrun.core.ids import MICROS_PER_SECOND, RunId
from midrun.errors import StoreError
from midrun.ports.environment import Clock
from midrun.ports.store import (
    AppendResult,
    DeletedRuns,
    HaltRecord,
    Snapshot,
    Tombstone,
    Visibility,
)
from midrun.stores import validation
from midrun.stores.audit import find_audit_end, make_audit_line
from midrun.stores.deletion import (
    LEFTOVERS_MAX_BYTES,
    LEFTOVERS_MAX_ENTRIES,
    explain_missing,
    find_refusal,
    make_tombstone,
)
from midrun.stores.operations import CreateRunWrite, JournalWrite, StoredRow, TakeLeaseWrite
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.reader import select_audit_end
from midrun.stores.sqlite.row_cache import RowCache, select_tombstone

DAY_MICROS: Final = 86_400 * MICROS_PER_SECOND
"""One day in microseconds."""

INCREMENTAL_VACUUM: Final = 2
"""The value of `PRAGMA auto_vacuum` in a file whose free pages can be given back in steps."""

FREE_PAGES_KEPT: Final = 1024
"""Free pages that stay in the file, for the next entries: about 2 MiB."""


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
            HaltInForce, NoRoom, QuotaReached, FileMissing: see `Store`.
            Others: see `JournalWrite.apply`.
        """
        operation = self.operation
        taken = operation if isinstance(operation, TakeLeaseWrite) else None
        current = rows.find_row(operation.run)
        if current is None:
            rows.check_not_deleted(operation.run)
        alive = (
            taken is not None
            and current is not None
            and rows.is_holder_alive(current.holder, self.clock())
        )
        # From here to `write_change` nothing is written: a refusal leaves the transaction as it
        # is, for the other requests of the group. Halts, limits and quotas are read inside of
        # the transaction. So a halt that is committed before this write is seen by it, in
        # whichever process it was set.
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
        if isinstance(operation, CreateRunWrite):
            validation.check_quotas(operation.run, operation.quotas, rows.count_quota_runs)
        has_files = bool(operation.files.hashes)
        if has_files:
            rows.check_files(operation.run, operation.files)
        rows.write_change(current, change)
        if has_files:
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


class DropLeases(Struct, frozen=True):
    """Take every lease from its holder."""

    def __call__(self, rows: RowCache) -> None:
        # The holder is replaced, not emptied: a row without a holder must be up to date, see
        # the schema.
        rows.db.execute(queries.REPLACE_HOLDERS, (validation.DROPPED_HOLDER,))
        rows.db.execute(queries.DELETE_HOLDERS)
        rows.drop_cache()


class SetHalt(Struct, frozen=True, kw_only=True):
    """Set a halt unless its scope has one."""

    halt: HaltRecord
    clock: Clock

    def __call__(self, rows: RowCache) -> None:
        halt = self.halt
        tenant = validation.encode_halt_tenant(halt.tenant)
        values = (halt.scope, halt.by, halt.reason, self.clock(), tenant)
        rows.db.execute(queries.INSERT_HALT, values)
        rows.record_halts_changed()


class AppendAudit(Struct, frozen=True, kw_only=True):
    """Append an entry to the audit log."""

    body: bytes
    tenant: str
    chain: HashChain
    clock: Clock

    def __call__(self, rows: RowCache) -> None:
        last = rows.db.execute(queries.LAST_AUDIT_LINE).get
        end = find_audit_end(self.chain, select_audit_end(rows.db), last)
        line, end = make_audit_line(self.chain, end, self.clock(), self.tenant, self.body)
        rows.db.execute(
            queries.ADD_AUDIT, (line.number, line.at, line.tenant, line.body, line.hash)
        )
        rows.db.execute(queries.SET_AUDIT_END, (end.number, end.hash, end.seal))


class RemoveHalt(Struct, frozen=True, kw_only=True):
    """Remove the halt of a scope and a tenant; return whether there was one."""

    scope: str
    tenant: str | None

    def __call__(self, rows: RowCache) -> bool:
        tenant = validation.encode_halt_tenant(self.tenant)
        rows.db.execute(queries.DELETE_HALT, (self.scope, tenant))
        removed = rows.db.changes() > 0
        rows.record_halts_changed()
        return removed


class DeleteRuns(Struct, frozen=True, kw_only=True):
    """Replace runs and their child runs by tombstones."""

    runs: tuple[RunId, ...]
    by: str
    reason: str
    tenant: str | None
    chain: HashChain
    clock: Clock

    def __call__(self, rows: RowCache) -> DeletedRuns:
        tombstones: list[Tombstone] = []
        refusals: list[StoreError] = []
        for run in self.runs:
            # A run is checked with its whole family before the first change.
            family = self._find_family(rows, run)
            if isinstance(family, StoreError):
                refusals.append(family)
                continue
            for row in family:
                tombstone = make_tombstone(
                    self.chain, row, by=self.by, at=self.clock(), reason=self.reason
                )
                rows.replace_by_tombstone(row, tombstone)
                tombstones.append(tombstone)
        return DeletedRuns(tombstones=tuple(tombstones), refusals=tuple(refusals))

    def _find_family(self, rows: RowCache, run: RunId) -> list[StoredRow] | StoreError:
        """Return the rows of `run` and its descendants, or the reason of a refusal."""
        row, seen_by = rows.find_row(run), Visibility(tenant=self.tenant)
        if row is None or not seen_by.includes(row.stored_head.head):
            return explain_missing(run, select_tombstone(rows.db, run), seen_by)
        family = {run: row}
        members = [run]
        # Breadth first, over the index of parents. The dict refuses a member that it has
        # already, so even a damaged store with a cycle ends the search.
        for member in members:  # grows while it is read
            for (name,) in rows.db.execute(queries.CHILDREN, (member,)).fetchall():
                found = rows.find_row(child := RunId(str(name)))
                if found is not None and child not in family:
                    family[child] = found
                    members.append(child)
        heads = [(member, found.stored_head.head) for member, found in family.items()]
        parent = row.stored_head.head.parent
        has_parent = bool(parent) and rows.find_row(parent) is not None
        return find_refusal(heads, has_parent=has_parent) or list(family.values())


class RemoveLeftovers(Struct, frozen=True):
    """Remove some entries of deleted runs, then free pages; return whether more is left."""

    def __call__(self, rows: RowCache) -> bool:
        db, last_id = rows.db, rows.db.execute(queries.LAST_ENTRY_ID).get
        # Both limits matter: many small entries cost index pages, one large entry costs
        # overflow pages. The step ends with the entry that exhausts one of them.
        budget = [LEFTOVERS_MAX_ENTRIES, LEFTOVERS_MAX_BYTES]
        has_removed = False
        while min(budget) > 0 and (number := db.execute(queries.NEXT_LEFTOVER).get) is not None:
            has_removed = True
            if _remove_entries(db, number, budget) and _remove_files(db, number, budget):
                db.execute(queries.DELETE_CHUNKS, (number,))
                db.execute(queries.DELETE_CHUNK_USES, (number,))
                db.execute(queries.SET_REMOVED, (number,))
        if has_removed:
            # Pollers find new entries by their ids. SQLite gives the highest id again after
            # its entry was removed, and a poller would miss the new one. So a row of run 0
            # keeps the highest id until a newer entry has a higher one.
            db.execute(queries.KEEP_LAST_ID, (last_id,))
            db.execute(queries.DELETE_KEPT_IDS)
        return has_removed or _free_pages(db)


def _remove_entries(db: apsw.Connection, number: int, budget: list[int]) -> bool:
    """Remove entries of a run, from the first one on; return whether none is left.

    `budget` has the entries and the bytes that this step may still remove.
    """
    last_seq, is_last = 0, True
    for seq, size in db.execute(queries.LEFTOVER_SIZES, (number, budget[0] + 1)):
        if min(budget) <= 0:
            is_last = False
            break
        last_seq, budget[0], budget[1] = int(seq), budget[0] - 1, budget[1] - int(size)
    db.execute(queries.DELETE_ENTRIES, (number, last_seq))
    return is_last


def _remove_files(db: apsw.Connection, number: int, budget: list[int]) -> bool:
    """Remove the files that no other run has; return whether none is left."""
    while (found := db.execute(queries.NEXT_RUN_FILE, (number,)).get) is not None:
        if budget[1] <= 0:
            return False
        digest, size = found
        db.execute(queries.DELETE_RUN_FILE, (number, digest))
        # A file may be named by several runs. It goes with the last one.
        db.execute(queries.DELETE_UNUSED_FILE, (digest,))
        budget[1] -= size
    return True


def _free_pages(db: apsw.Connection) -> bool:
    """Shorten the file by a few pages; return whether more of them are free."""
    if db.execute(queries.AUTO_VACUUM).get != INCREMENTAL_VACUUM:
        return False  # the file is older: its free pages are used again by later entries
    if db.execute(queries.FREE_PAGES).get <= FREE_PAGES_KEPT:
        return False
    db.execute(queries.VACUUM_STEP).fetchall()  # apsw frees a page for each row that is fetched
    return True
