"""Reading and writing journals: build a batch, load a state, append inputs without a lease.

- A `Batch` collects the entries of one append. The run loop fills one in each iteration.
- `load_run_state` and `refresh_state` fold a journal into its `State`, from a snapshot if there
  is one.
- `append_input` and `append_inputs` bring a control, or another input that needs no lease, into
  a journal: decide, append, and on a conflict read on and decide again.
"""

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


class Batch:
    """The entries of one append, decided on top of `base`.

    Each input is decided on the state that the inputs before it led to. The batch is valid only
    if it is appended directly after `base.seq`, as a whole.
    """

    __slots__ = ("base", "entries", "now", "state")

    def __init__(self, base: State, now: Micros) -> None:
        self.base = base
        self.now = now
        self.state = base
        self.entries: list[Entry] = []

    def add(self, given: Input) -> Verdict:
        """Decide `new_input` on the state so far, and add the entries if it is accepted."""
        verdict = decide(self.state, given, self.now)
        if verdict.entries:
            self.entries += verdict.entries
            self.state = apply(self.state, verdict.entries, self.now)
        return verdict


async def load(store: Store, run: RunId) -> State:
    """Return the current state of `run`.

    A snapshot only makes it faster: one that is missing, damaged or written by another version
    is ignored, and the result is the same.

    Raises:
        RunNotFound: no such run.
        JournalCorrupt, JournalTooNew: the journal cannot be read by this process.
    """
    snapshot = await store.load_snapshot(run)
    # The body is this version's own format: it may be unreadable, or of another run or seq.
    state = codec.thaw(snapshot.body) if snapshot is not None else None
    if state is None or state.run != run or snapshot is None or state.seq != snapshot.seq:
        state = State(run=run)
    return await read_on(store, state)


async def read_on(store: Store, state: State) -> State:
    """Return the current state of a run that was last read at `state`."""
    return fold(state.run, await store.read(state.run, after=state.seq), state)


async def snapshot_if_due(
    store: Store, state: State, appended: Appended, *, last: Seq = START
) -> Seq:
    """Save a snapshot if one is due, and return the seq of the newest snapshot.

    The last one is at `last_snapshot_seq`. `appended` is the append that led to `state`. A
    snapshot is a cache: leaving one out costs time only.
    """
    if appended.seq != state.seq or not codec.due(seq=state.seq, snapshot=last):
        return last
    body = codec.freeze(state)
    snapshot = Snapshot(seq=state.seq, hash=appended.hash, body=body)
    # After a failure, `state.seq` is returned all the same: the next attempt comes when the
    # next snapshot is due, not with the next append.
    with suppress(StoreError):
        await store.save_snapshot(state.run, snapshot)
    return state.seq


class Ruled(Struct, frozen=True, kw_only=True):
    """The verdict on an input, and the state before and after it."""

    verdict: Verdict
    before: State
    after: State

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries that were appended."""
        return self.verdict.entries

    @property
    def seq(self) -> Seq:
        """The seq of the first entry that was appended; without one, the end of the journal."""
        return Seq(self.before.seq + bool(self.entries))


Given: TypeAlias = Control | Wake | Late | AskMoot | TakeBack
"""The inputs that are appended without a lease."""


async def bring(store: Store, state: State, given: Given, clock: Clock) -> Ruled:
    """Decide `new_input` and append its entries without a lease; retry on conflict.

    `state` may be outdated: it is where reading starts. The entries are durable when this
    returns. If several writers race, one append wins, and the others decide again on the
    journal that it left.

    Raises:
        StoreError: nothing was applied.
    """
    return (await bring_all(store, state, [given], clock))[-1]


async def bring_all(
    store: Store, state: State, givens: Sequence[Given], clock: Clock
) -> list[Ruled]:
    """Decide `new_inputs` in order and append all their entries at once, or none.

    If one is refused, nothing is appended and its verdict is the last one returned.
    """
    while True:
        batch = Batch(state, clock())
        results = rule(batch, givens)
        refused = isinstance(results[-1].verdict, Refused)
        if not batch.entries or (refused and len(givens) > 1):
            # Nothing to append, so no append can conflict and reveal that `state` is outdated.
            # Read on, and return the verdict only if the journal has not grown.
            newer = await read_on(store, state)
            if newer.seq == state.seq:
                return results
            state = newer
            continue
        try:
            appended = await store.append(
                state.run, batch.entries, after=state.seq, lease=None, head=head_of(batch.state)
            )
        except SeqConflict:
            # Another writer was first. Decide all of it again: the answer may be another one.
            state = await read_on(store, state)
            continue
        # At the time that the store has stamped, which may differ from the time of the batch.
        after = apply(state, batch.entries, appended.at)
        return [replace(result, after=after) for result in results]


def rule(batch: Batch, givens: Sequence[Given]) -> list[Ruled]:
    """Decide `new_inputs` in order, up to the first that is refused."""
    results: list[Ruled] = []
    for new_input in givens:
        before = batch.state
        verdict = batch.add(new_input)
        results.append(Ruled(verdict=verdict, before=before, after=batch.state))
        if isinstance(verdict, Refused):
            break
    return results
