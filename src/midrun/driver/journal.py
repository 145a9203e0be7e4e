"""Reading a run's journal into its state, with the help of a snapshot where there is one."""

from contextlib import suppress

from midrun.codec import snapshot as codec
from midrun.core.evolve import fold
from midrun.core.ids import START, RunId, Seq
from midrun.core.state import State
from midrun.errors import StoreError
from midrun.ports.store import Appended, Snapshot, Store


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
