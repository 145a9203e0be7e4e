"""Verification of one stored run, for `Midrun.verify`.

Checks in this order: the hash chain over the stored bytes, the decoding of every line, the
invariants of the journal (`midrun.verify`), the columns of the run's row, imports, and the
bytes of the files that entries name. A broken chain ends the checks, because the lines behind
it cannot be trusted. Of an encrypted run, everything after the chain needs its keys; without
them the verdict names the key.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import sha256

from anyio import to_thread
from msgspec.structs import replace

from midrun.codec.hash_chain import UNKEYED_CHAIN, HashChain, get_chain
from midrun.codec.journal import decode_lines
from midrun.core.entries import LeaseTaken, Record, RunImported
from midrun.core.files import iter_file_refs
from midrun.core.ids import RunId, Seq
from midrun.errors import (
    FileMissing,
    JournalCorrupt,
    JournalKeyMissing,
    JournalTooNew,
    RunErased,
)
from midrun.ports.store import HasIndexedRow, RunRow, Store, Tombstone
from midrun.runs.values import Erasure, Import, Verdict
from midrun.stores.deletion import compute_proof
from midrun.stores.encryption import PayloadCipher, get_cipher
from midrun.verify.checks import Problem
from midrun.verify.journal import check_chain, check_imports, check_journal


async def verify_run(store: Store, run: RunId) -> Verdict:
    """Check the chain, the journal and the row of `run`.

    Of a deleted run, the tombstone is checked.

    Raises:
        RunNotFound: There is no such run.
    """
    try:
        if isinstance(store, HasIndexedRow):
            row, index = await store.get_indexed_row(run)
        else:
            row, index = await store.get_row(run), {}
        # The run may have grown since the row was read.
        pairs = (await store.read_lines(run))[: row.seq]
    except RunErased:
        return check_tombstone(await store.get_tombstone(run), get_chain(store))
    # In a thread: for a long journal the checks would block the event loop too long.
    verdict, records = await to_thread.run_sync(
        _check_run, row, index, pairs, get_chain(store), get_cipher(store)
    )
    try:
        missing = [problem async for problem in check_files(store, run, records)]
    except JournalKeyMissing as error:  # an older run has the same file, under an older key
        return replace(verdict, missing_key=error.key_id)
    return replace(verdict, problems=(*verdict.problems, *missing))


async def check_files(
    store: Store, run: RunId, records: Sequence[Record]
) -> AsyncIterator[Problem]:
    """Check that the store has every file that an entry names, with the bytes of its hash."""
    seen: set[str] = set()
    for record in records:
        for ref in iter_file_refs(record.entry):
            if ref.hash in seen:
                continue
            seen.add(ref.hash)
            try:
                body = await store.read_file(run, ref.hash)
            except JournalCorrupt as error:  # of an encrypted file
                problem = f"The file “{ref.name}”: {error.problem}."
            except FileMissing:
                problem = f"The store does not have the file “{ref.name}”, {ref.hash[:12]}."
            else:
                digest = await to_thread.run_sync(lambda data: sha256(data).hexdigest(), body)
                if digest == ref.hash:
                    continue
                problem = f"The file “{ref.name}”, {ref.hash[:12]}, was changed in the store."
            yield Problem(invariant="I4", seq=record.seq, text=problem)


def check_tombstone(tombstone: Tombstone, chain: HashChain) -> Verdict:
    """Check that the fields of a tombstone are those that were written."""
    problems: tuple[Problem, ...] = ()
    if compute_proof(chain, tombstone) != tombstone.proof:
        text = "The tombstone was changed, or was not written with the key of this store."
        problems = (Problem(invariant="I4", seq=tombstone.seq, text=text),)
    erased = Erasure.from_tombstone(tombstone)
    return Verdict(
        run_id=tombstone.run, entries=tombstone.seq, problems=problems, erased=erased
    )


def _check_run(
    row: RunRow,
    index: Mapping[str, object],
    pairs: Sequence[tuple[bytes, bytes]],
    chain: HashChain,
    cipher: PayloadCipher,
) -> tuple[Verdict, Sequence[Record]]:
    run, head = row.run, (row.seq, row.hash)
    imported: Import | None = None
    missing_key = ""
    records: list[Record] = []
    found = list(
        check_chain(
            pairs, chain=chain.make_next_link, first_hash=chain.make_first_link(run), head=head
        )
    )
    if not found:  # lines with a broken chain are not worth decoding
        try:
            lines = list(cipher.decrypt_lines(run, (line for line, _ in pairs)))
            records = decode_lines(run, lines)
        except JournalKeyMissing as error:
            missing_key = error.key_id
        except (JournalCorrupt, JournalTooNew) as error:
            found.append(Problem(invariant="I4", seq=error.seq, text=str(error)))
        else:
            found += check_journal(records, run=run, head=row.head)
            found += check_row(row, index, records)
            # An import entry names the head of a chain without a key, whatever chain this
            # store uses, because the checkpoint came from another store.
            found += check_imports(
                lines,
                records,
                chain=UNKEYED_CHAIN.make_next_link,
                first_hash=UNKEYED_CHAIN.make_first_link(run),
            )
            imported = find_last_import(records)
    problems = tuple(found)
    verdict = Verdict(
        run_id=run,
        entries=len(pairs),
        problems=problems,
        imported=imported,
        missing_key=missing_key,
    )
    return verdict, records


def check_row(
    row: RunRow, index: Mapping[str, object], records: Sequence[Record]
) -> list[Problem]:
    """Compare the columns that lists, leases and wake-ups use with the journal.

    `index` has the copies of head fields that queries select by. The head itself was compared
    with the journal by `check_journal`.
    """
    epochs = [r.entry.epoch for r in records if isinstance(r.entry, LeaseTaken)]
    expected: dict[str, object] = {
        "epoch": max(epochs, default=0),
        "started_at": records[0].at,
        "changed_at": records[-1].at,
    }
    stored: dict[str, object] = {name: getattr(row, name) for name in expected}
    for name, value in index.items():
        expected[name], stored[name] = getattr(row.head, name), value
    if "labels" in expected:  # stored in a table of their own: each once, sorted
        expected["labels"] = sorted(set(row.head.labels))
    return [
        Problem(
            invariant="I2",
            seq=row.seq,
            text=(
                f"The row has {name} {stored[name]!r}, but the journal gives "
                f"{expected[name]!r}."
            ),
        )
        for name in expected
        if stored[name] != expected[name]
    ]


def find_last_import(records: Sequence[Record]) -> Import | None:
    """Return the last import in a journal, or None. It covers all entries before it."""
    for record in reversed(records):
        if isinstance(entry := record.entry, RunImported):
            return Import(
                upto=Seq(record.seq - 1),
                checkpoint=entry.checkpoint,
                head=entry.head,
                by=entry.by,
                at=record.at,
                kid=entry.kid,
            )
    return None
