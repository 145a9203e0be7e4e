"""Reading and writing journals: load a state, append inputs without a lease.

- `load_run_state` and `refresh_state` fold a journal into its `State`, from a snapshot if there
  is one.
- `append_input` and `append_inputs` bring a control, or another input that needs no lease, into
  a journal: decide, append, and on a conflict read on and decide again.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from midrun.codec import snapshot as codec
from midrun.core.controls import Control
from midrun.core.driver_inputs import CloseChildAsk, ReportLateResult, TakeBack, Wake
from midrun.core.entries import Entry
from midrun.core.evolve import apply_entries, fold
from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.core.run_head import build_head
from midrun.core.session import Batch
from midrun.core.state import State
from midrun.core.transitions import Refused, Verdict
from midrun.driver.sanitize import run_in_slices
from midrun.errors import SeqConflict, StoreError
from midrun.ports.environment import Clock
from midrun.ports.store import AppendResult, Snapshot, Store


async def load_run_state(store: Store, run: RunId, *, until: Seq | None = None) -> State:
    """Return the current state of `run`, or that after entry `until`.

    A snapshot only makes it faster: one that is missing, damaged or written by another version
    is ignored, and the result is the same.

    Raises:
        RunNotFound: no such run.
        JournalCorrupt, JournalTooNew: the journal cannot be read by this process.
    """
    state = await _load_snapshot_state(store, run)
    if until is None:
        return await refresh_state(store, state)
    # The snapshot is newer than the wanted state, and entries cannot be taken back: fold from
    # the beginning.
    if state.seq > until:
        state = State(run=run)
    records = await store.read(run, after=state.seq, limit=until - state.seq)
    return fold(run, records, state)


async def load_run_to_drive(store: Store, run: RunId) -> tuple[State, Seq]:
    """Return the current state of `run`, and the seq of the snapshot that it was loaded from.

    Raises: as `load_run_state` does.
    """
    base = await _load_snapshot_state(store, run)
    return await refresh_state(store, base), base.seq


async def _load_snapshot_state(store: Store, run: RunId) -> State:
    """Return the state in the snapshot of `run`; an empty one if no snapshot can be used."""
    snapshot = await store.load_snapshot(run)
    # The body is this version's own format: it may be unreadable, or of another run or seq.
    state = codec.decode_snapshot(snapshot.body) if snapshot is not None else None
    if state is None or state.run != run or snapshot is None or state.seq != snapshot.seq:
        return State(run=run)
    return state


async def refresh_state(store: Store, state: State) -> State:
    """Return the current state of a run that was last read at `state`."""
    return fold(state.run, await store.read(state.run, after=state.seq), state)


async def save_snapshot_if_due(
    store: Store, state: State, appended: AppendResult, *, last_snapshot_seq: Seq = SEQ_ZERO
) -> Seq:
    """Save a snapshot if one is due, and return the seq of the newest snapshot.

    The last one is at `last_snapshot_seq`. `appended` is the append that led to `state`. A
    snapshot is a cache: leaving one out costs time only.
    """
    if appended.seq != state.seq or not codec.is_snapshot_due(
        seq=state.seq, snapshot=last_snapshot_seq
    ):
        return last_snapshot_seq
    # A large state takes longer to encode than the event loop may be blocked. `state` is
    # immutable, so the run may continue meanwhile without changing the bytes.
    body = await run_in_slices(codec.encode_in_steps(state))
    snapshot = Snapshot(seq=state.seq, hash=appended.hash, body=body)
    # After a failure, `state.seq` is returned all the same: the next attempt comes when the
    # next snapshot is due, not with the next append.
    with suppress(StoreError):
        await store.save_snapshot(state.run, snapshot)
    return state.seq


class InputResult(Struct, frozen=True, kw_only=True):
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


UnleasedInput: TypeAlias = Control | Wake | ReportLateResult | CloseChildAsk | TakeBack
"""The inputs that are appended without a lease."""


async def append_input(
    store: Store,
    state: State,
    new_input: UnleasedInput,
    clock: Clock,
    files: Mapping[str, bytes] | None = None,
) -> InputResult:
    """Decide `new_input` and append its entries without a lease; retry on conflict.

    `state` may be outdated: it is where reading starts. The entries are durable when this
    returns. If several writers race, one append wins, and the others decide again on the
    journal that it left. `files` has the bodies of the files that the input names.

    Raises:
        StoreError: nothing was applied.
    """
    return (await append_inputs(store, state, [new_input], clock, files))[-1]


async def append_inputs(
    store: Store,
    state: State,
    new_inputs: Sequence[UnleasedInput],
    clock: Clock,
    files: Mapping[str, bytes] | None = None,
) -> list[InputResult]:
    """Decide `new_inputs` in order and append all their entries at once, or none.

    If one is refused, nothing is appended and its verdict is the last one returned.
    """
    while True:
        # Each round has a new time: a decision that was made again must not be older than the
        # entries that made it necessary.
        batch = Batch(state, clock())
        results = decide_inputs(batch, new_inputs)
        refused = isinstance(results[-1].verdict, Refused)
        if not batch.entries or (refused and len(new_inputs) > 1):
            # Nothing to append, so no append can conflict and reveal that `state` is outdated.
            # Read on, and return the verdict only if the journal has not grown.
            newer = await refresh_state(store, state)
            if newer.seq == state.seq:
                return results
            state = newer
            continue
        try:
            # Without a lease: the run may be driven by another process, or by none. The seq
            # alone orders this append and those of the worker. If this one is first, the next
            # append of the worker conflicts, and it reads these entries before it continues.
            appended = await store.append(
                state.run,
                batch.entries,
                after=state.seq,
                lease=None,
                head=build_head(batch.state),
                files=files,
            )
        except SeqConflict:
            # Another writer was first. Decide all of it again: the answer may be another one.
            state = await refresh_state(store, state)
            continue
        # At the time that the store has stamped, which may differ from the time of the batch.
        after = apply_entries(state, batch.entries, appended.at)
        return [replace(result, after=after) for result in results]


def decide_inputs(batch: Batch, new_inputs: Sequence[UnleasedInput]) -> list[InputResult]:
    """Decide `new_inputs` in order, up to the first that is refused."""
    results: list[InputResult] = []
    for new_input in new_inputs:
        before = batch.state
        verdict = batch.add(new_input)
        results.append(InputResult(verdict=verdict, before=before, after=batch.state))
        # The inputs after it were meant for a state that will not exist.
        if isinstance(verdict, Refused):
            break
    return results
