"""The rules of deletion that all stores share: refusals, tombstones, and sizes of steps.

A run is deleted in two stages. The first is one transaction: it writes the tombstones of the
run and of its child runs, and removes their rows. The run is gone for every reader from then
on. The second removes the entries in small transactions (`remove_leftovers`), so that no writer
waits long, however long the journal is. A database refuses to remove entries of a run without
a tombstone. So a process that is killed leaves either the whole run or its tombstone.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from midrun.codec.hash_chain import HashChain
from midrun.codec.strict_json import INTEGER_MAX
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import DELETABLE_PHASES
from midrun.errors import CursorRefused, DeleteRefused, RunErased, RunNotFound
from midrun.ports.store import ALL_RUNS, EndedQuery, RunRow, Tombstone, Visibility
from midrun.stores import validation
from midrun.stores.operations import StoredRow

DELETE_MAX_RUNS: Final = 200
"""The most runs that one call deletes; a caller with more calls again."""

LEFTOVERS_MAX_ENTRIES: Final = 128
"""The most entries that one step removes."""

LEFTOVERS_MAX_BYTES: Final = 128 * 1024
"""A step ends with the entry that makes it this long."""

_PROOF_PREFIX: Final = b"midrun tombstone\n"


def check_delete(runs: Sequence[RunId], by: str, reason: str) -> None:
    """Refuse arguments of `delete_runs` that no store can keep."""
    validation.check_text("by", by)
    validation.check_text("reason", reason)
    if not by:
        raise ValueError("by must not be empty")
    if len(runs) > DELETE_MAX_RUNS:
        raise ValueError(f"runs must have at most {DELETE_MAX_RUNS} items, got {len(runs)}")


def find_refusal(
    family: Sequence[tuple[RunId, Head]], *, has_parent: bool
) -> DeleteRefused | None:
    """Return the reason why a run must not be deleted, if there is one.

    `family` is the run and all its child runs, each with its head. `has_parent` means that the
    parent of the run is in the store.
    """
    run, head = family[0]
    # The parent's journal names its child runs and waits for their results. A child may go
    # only together with its parent.
    if has_parent:
        return DeleteRefused(run, "has_parent", head.parent)
    # One member that has not ended keeps the whole family: a deletion in parts would leave a
    # child without the parent that may still cancel it.
    for member, member_head in family:
        if member_head.phase not in DELETABLE_PHASES:
            return DeleteRefused(run, f"is_{member_head.phase}", member)
    return None


def make_tombstone(
    chain: HashChain, row: StoredRow, *, by: str, at: Micros, reason: str
) -> Tombstone:
    """Return the tombstone of the run that ends with `row`."""
    tombstone = Tombstone(
        run=row.run,
        seq=row.seq,
        hash=row.hash,
        by=by,
        # Never before the last entry, even if this clock is behind the one that stamped it.
        at=Micros(max(at, row.at)),
        reason=reason,
        proof=b"",
        tenant=row.stored_head.head.tenant,
    )
    return msgspec.structs.replace(tombstone, proof=compute_proof(chain, tombstone))


def build_tombstone(
    run: RunId,
    seq: Seq,
    link: bytes,
    by: str,
    at: Micros,
    reason: str,
    proof: bytes,
    tenant: str,
) -> Tombstone:
    """Build a tombstone from its columns, in the order of the stores' queries."""
    return Tombstone(
        run=run, seq=seq, hash=link, by=by, at=at, reason=reason, proof=proof, tenant=tenant
    )


def compute_proof(chain: HashChain, tombstone: Tombstone) -> bytes:
    """Return the link that follows the last entry of the run, for the tombstone's fields."""
    fields: tuple[object, ...] = (
        tombstone.run,
        tombstone.seq,
        tombstone.by,
        tombstone.at,
        tombstone.reason,
    )
    # Left out if it is empty: tombstones of stores without tenants keep their proofs.
    fields += (tombstone.tenant,) if tombstone.tenant else ()
    # A line of a journal begins with a brace, so no entry has the same link.
    # The proof continues the chain of the deleted run, so with a key only the store can make
    # one: an attacker who removes a run cannot claim that an operator erased it.
    return chain.make_next_link(tombstone.hash, _PROOF_PREFIX + msgspec.json.encode(fields))


def explain_missing(
    run: RunId, tombstone: Tombstone | None, seen_by: Visibility = ALL_RUNS
) -> RunNotFound:
    """Return the error for a run that is not in the store, or that `seen_by` excludes.

    A tombstone has no owner, so only a caller who sees all runs of the tenant learns of it.
    """
    # To all others a deleted run looks as if it had never existed: its id must not tell them
    # that there was one.
    if tombstone is None or seen_by.owner or seen_by.tenant not in {None, tombstone.tenant}:
        return RunNotFound(run)
    return RunErased(run, tombstone.by, tombstone.at, tombstone.reason)


def check_ended_query(query: EndedQuery) -> int:
    """Refuse a query that no store can answer; return the limit."""
    for name in ("agent", "label", "thread", "owner", "cursor"):
        validation.check_text(name, getattr(query, name))
    validation.check_text("tenant", query.tenant or "")
    return validation.clamp_limit(query.limit, at_least=1)


def parse_ended_cursor(cursor: str) -> tuple[int, int]:
    """Return time and number of the run after which the page of `cursor` begins.

    Raises:
        CursorRefused: no list returned this cursor.
    """
    if not cursor:
        return -1, -1
    at, _, number = cursor.partition(".")
    if not (at.isascii() and at.isdecimal() and number.isascii() and number.isdecimal()):
        raise CursorRefused(cursor)
    # SQL has 64-bit integers. A longer number would be an error of the database, not a
    # refusal.
    if max(int(at), int(number)) > INTEGER_MAX:
        raise CursorRefused(cursor)
    return int(at), int(number)


def make_ended_cursor(rows: Sequence[tuple[int, RunRow]], limit: int) -> str:
    """Return the cursor of the next page; `rows` has one row more than fits, if there is one.

    It names time and number, not the run: the caller may have deleted the run by then.
    """
    if len(rows) <= limit:
        return ""
    number, last = rows[limit - 1]
    return f"{last.changed_at}.{number}"
