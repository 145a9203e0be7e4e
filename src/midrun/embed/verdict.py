"""Verification of a stored run: its chain, its invariants, its row, and its imports."""

from collections.abc import Sequence

from midrun.codec.chain import PLAIN, chain_of
from midrun.core.entries import Record, RunImported
from midrun.core.ids import RunId, Seq
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.handles.verdict import Import, Verdict
from midrun.ports.store import Store
from midrun.verify.chain import check_chain, check_imports
from midrun.verify.journal import check_journal
from midrun.verify.problems import Problem


async def verdict_on(store: Store, run: RunId) -> Verdict:
    """Check the chain over the stored bytes, then the invariants over the entries."""
    row = await store.row(run)
    pairs = (await store.lines(run))[: row.seq]
    head, chain = (row.seq, row.hash), chain_of(store)
    imported: Import | None = None
    found = list(check_chain(pairs, chain=chain.next, first=chain.first(run), head=head))
    if not found:
        try:
            records = (await store.read(run))[: row.seq]
        except (JournalCorrupt, JournalTooNew) as error:
            found.append(Problem(invariant="I4", seq=error.seq, text=str(error)))
        else:
            found += check_journal(records, run=run, head=row.head)
            lines = (line for line, _ in pairs)
            found += check_imports(lines, records, chain=PLAIN.next, first=PLAIN.first(run))
            imported = import_in(records)
    return Verdict(run_id=run, entries=len(pairs), problems=tuple(found), imported=imported)


def import_in(records: Sequence[Record]) -> Import | None:
    """Return the last import of a journal: it covers every entry before it."""
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
