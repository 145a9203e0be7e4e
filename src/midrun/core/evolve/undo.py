"""Fold undo and release: started, done, failed, unknown, given up.

`State.cleanup_in_flight` is the one undo or release in flight. All attempts use the same key,
so an attempt with an unknown outcome is safe to repeat.
"""

from msgspec.structs import replace

from midrun.core.entries import UndoDone, UndoFailed, UndoGaveUp, UndoStarted, UndoUnknown
from midrun.core.evolve.calls import call_of
from midrun.core.ids import Micros, number_of
from midrun.core.state import Arms, Cleaned, Cleanup, State
from midrun.core.values import Action, Residue


def undo_started(state: State, entry: UndoStarted) -> State:
    """Put the undo or release in flight."""
    state = _cleaned(state, entry.call, entry.action, "started", attempts=entry.attempt)
    return replace(state, cleaning=(number_of(entry.call), entry.action))


def undo_done(state: State, entry: UndoDone) -> State:
    """Mark the effect as undone, or the resource as released."""
    return replace(_cleaned(state, entry.call, entry.action, "done"), cleaning=None)


def undo_failed(state: State, entry: UndoFailed) -> State:
    """Store the error and the time of the retry."""
    state = _cleaned(
        state,
        entry.call,
        entry.action,
        "failed",
        error=entry.error,
        retry_at=entry.retry_at,
        final=entry.final,
    )
    return replace(state, cleaning=None)


def undo_unknown(state: State, entry: UndoUnknown) -> State:
    """Record an unknown outcome; the scheduler repeats the attempt."""
    return replace(_cleaned(state, entry.call, entry.action, "unknown"), cleaning=None)


def undo_gave_up(state: State, entry: UndoGaveUp) -> State:
    """Add the call to the residue: its effect or resource stays."""
    state = _cleaned(state, entry.call, entry.action, "gave_up", error=entry.error)
    left = Residue(call=entry.call, action=entry.action, why=entry.error)
    return replace(state, residue=(*state.residue, left))


def _cleaned(
    state: State,
    call_: str,
    action: Action,
    stage: Cleaned,
    *,
    attempts: int | None = None,
    error: str = "",
    retry_at: Micros | None = None,
    final: bool = False,
) -> State:
    # `action` is "undo" or "release", and the call has a field of each name.
    call = call_of(state, call_)
    before = call.cleanup(action)
    after = Cleanup(
        stage=stage,
        attempts=before.attempts if attempts is None else attempts,
        error=error,
        retry_at=retry_at,
        final=final,
    )
    return state.with_call(replace(call, **{action: after}))


ARMS: Arms = {
    UndoStarted: undo_started,
    UndoDone: undo_done,
    UndoFailed: undo_failed,
    UndoUnknown: undo_unknown,
    UndoGaveUp: undo_gave_up,
}
