"""Verifying a stored run: its chain, then its invariants; and its head, for who kept one."""

from midrun.codec.chain import PLAIN, chain_of
from midrun.core.ids import RunId
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.handles.verdict import Verdict
from midrun.ports.store import RunRow, Store
from midrun.verify.chain import check_chain
from midrun.verify.journal import check_journal
from midrun.verify.problems import Problem


async def verdict_on(store: Store, run: RunId) -> Verdict:
    """Check the chain over the stored bytes, then the invariants over the entries."""
    row = await store.row(run)
    pairs = (await store.lines(run))[: row.seq]
    head, chain = (row.seq, row.hash), chain_of(store)
    found = list(check_chain(pairs, chain=chain.next, first=chain.first(run), head=head))
    if not found:
        try:
            records = (await store.read(run))[: row.seq]
        except (JournalCorrupt, JournalTooNew) as error:
            found.append(Problem(invariant="I4", seq=error.seq, text=str(error)))
        else:
            found += check_journal(records, run=run, head=row.head)
    return Verdict(run_id=run, entries=len(pairs), problems=tuple(found))


async def bare_head(store: Store, row: RunRow) -> bytes:
    """Return the hash of a run's head as checkpoints have it: without the store's key."""
    if chain_of(store) == PLAIN:
        return row.hash
    pairs = (await store.lines(row.run))[: row.seq]
    return PLAIN.head(row.run, (line for line, _ in pairs))
