"""Controls: how what a person asks of a run gets into its journal."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from midrun.codec import snapshot as codec
from midrun.core.controls import Control
from midrun.core.decide import decide
from midrun.core.decision import Refused, Verdict
from midrun.core.driver_inputs import AskMoot, Late, TakeBack, Wake
from midrun.core.entries import Entry
from midrun.core.evolve import apply, fold
from midrun.core.ids import START, Micros, RunId, Seq
from midrun.core.run_head import head_of
from midrun.core.state import State
from midrun.core.transitions import Input
from midrun.errors import SeqConflict, StoreError
from midrun.ports.environment import Clock
from midrun.ports.store import Appended, Snapshot, Store

# A batch: what one append will hold. Each part is decided on what the parts before led to.


class Batch:
    """Grows on top of `base`; must be appended after exactly that, all of it or nothing."""

    __slots__ = ("base", "entries", "now", "state")

    def __init__(self, base: State, now: Micros) -> None:
        self.base = base
        self.now = now
        self.state = base
        self.entries: list[Entry] = []

    def add(self, given: Input) -> Verdict:
        """Decide `given` on what the batch has led to so far, and add what it means."""
        verdict = decide(self.state, given, self.now)
        if verdict.entries:
            self.entries += verdict.entries
            self.state = apply(self.state, verdict.entries, self.now)
        return verdict


# Reading a run's journal into its state, with the help of a snapshot where there is one.


async def load(store: Store, run: RunId) -> State:
    """Return what the journal of `run` means now.

    A snapshot only makes it faster: one that is missing, damaged or written by other code is
    passed over, and the result is the same.

    Raises:
        RunNotFound: no such run.
        JournalCorrupt, JournalTooNew: the journal cannot be read by this process.
    """
    kept = await store.load_snapshot(run)
    state = codec.thaw(kept.body) if kept is not None else None
    if state is None or state.run != run or kept is None or state.seq != kept.seq:
        state = State(run=run)
    return await read_on(store, state)


async def read_on(store: Store, state: State) -> State:
    """Return what the journal means now to somebody who knew it at `state`."""
    return fold(state.run, await store.read(state.run, after=state.seq), state)


async def snapshot_if_due(
    store: Store, state: State, appended: Appended, *, last: Seq = START
) -> Seq:
    """Keep a snapshot if the journal outgrew the one at `last`; return the newest one's seq.

    `appended` is what led to `state`. Nothing waits for this: it may be left out at any time.
    """
    if appended.seq != state.seq or not codec.due(seq=state.seq, snapshot=last):
        return last
    body = codec.freeze(state)
    kept = Snapshot(seq=state.seq, hash=appended.hash, body=body)
    with suppress(StoreError):  # it is a cache: what cannot be kept now is not tried at once
        await store.save_snapshot(state.run, kept)
    return state.seq


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
