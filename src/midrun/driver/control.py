"""Controls: how what a person asks of a run gets into its journal."""

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from midrun.core.controls import Control
from midrun.core.entries import Entry
from midrun.core.evidence import AskMoot, Late, TakeBack, Wake
from midrun.core.head import head_of
from midrun.core.ids import Seq
from midrun.core.machine import apply
from midrun.core.state import State
from midrun.core.verdicts import Refused, Verdict
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


Given: TypeAlias = Control | Wake | Late | AskMoot | TakeBack


async def bring(store: Store, state: State, given: Given, clock: Clock) -> Ruled:
    """Decide `given` on what the journal says, and append what it means, without a lease.

    `state` is where to start reading from. Durable when this returns; in a race there is one
    winner, and whoever lost has been decided on what the winner left.

    Raises:
        StoreError: nothing was applied.
    """
    return (await bring_all(store, state, [given], clock))[-1]


async def bring_all(
    store: Store, state: State, givens: Sequence[Given], clock: Clock
) -> list[Ruled]:
    """Decide one after the other, and append all of it in one go, or nothing.

    The last of what is returned is a refusal if there was one; then nothing was applied.
    """
    while True:
        batch = Batch(state, clock())
        ruled = rule(batch, givens)
        refused = isinstance(ruled[-1].verdict, Refused)
        if not batch.entries or (refused and len(givens) > 1):
            # A refusal, or a no-op, is only as good as what it was decided on.
            newer = await read_on(store, state)
            if newer.seq == state.seq:
                return ruled
            state = newer
            continue
        try:
            appended = await store.append(
                state.run, batch.entries, after=state.seq, lease=None, head=head_of(batch.state)
            )
        except SeqConflict:
            state = await read_on(store, state)
            continue
        after = apply(state, batch.entries, appended.at)
        return [replace(one, after=after) for one in ruled]


def rule(batch: Batch, givens: Sequence[Given]) -> list[Ruled]:
    """Decide `givens` one after the other, up to the first that is refused."""
    ruled: list[Ruled] = []
    for given in givens:
        before = batch.state
        verdict = batch.add(given)
        ruled.append(Ruled(verdict=verdict, before=before, after=batch.state))
        if isinstance(verdict, Refused):
            break
    return ruled
