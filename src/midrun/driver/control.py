"""Controls: how what a person asks of a run gets into its journal."""

from msgspec import Struct

from midrun.core.controls import Control
from midrun.core.entries import Entry
from midrun.core.evidence import AskMoot, Late, Wake
from midrun.core.head import head_of
from midrun.core.ids import Seq
from midrun.core.machine import apply
from midrun.core.state import State
from midrun.core.verdicts import Verdict
from midrun.driver.batch import Batch
from midrun.driver.journal import read_on
from midrun.errors import SeqConflict
from midrun.ports.clock import Clock
from midrun.ports.store import Store


class Ruled(Struct, frozen=True, kw_only=True):
    """What became of an input: the verdict, the run before and after it."""

    verdict: Verdict
    before: State
    after: State

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What was appended."""
        return self.verdict.entries

    @property
    def seq(self) -> Seq:
        """The seq of the first entry that was appended, or where the journal ended."""
        return Seq(self.before.seq + bool(self.entries))


async def bring(
    store: Store, state: State, given: Control | Wake | Late | AskMoot, clock: Clock
) -> Ruled:
    """Decide `given` on what the journal says, and append what it means, without a lease.

    `state` is where to start reading from. Durable when this returns; in a race there is one
    winner, and whoever lost has been decided on what the winner left.

    Raises:
        StoreError: nothing was applied.
    """
    while True:
        batch = Batch(state, clock())
        verdict = batch.add(given)
        if not batch.entries:
            # A refusal, or a no-op, is only as good as what it was decided on.
            newer = await read_on(store, state)
            if newer.seq == state.seq:
                return Ruled(verdict=verdict, before=state, after=state)
            state = newer
            continue
        try:
            appended = await store.append(
                state.run,
                batch.entries,
                after=state.seq,
                lease=None,
                head=head_of(batch.state),
            )
        except SeqConflict:
            state = await read_on(store, state)
            continue
        after = apply(state, batch.entries, appended.at)
        return Ruled(verdict=verdict, before=state, after=after)
