"""Fold undo and release: started, done, failed, unknown, given up.

`State.cleanup_in_flight` is the one undo or release in flight. All attempts use the same key,
so an attempt with an unknown outcome is safe to repeat.
"""

from msgspec.structs import replace

from midrun.core.entries import UndoDone, UndoFailed, UndoGaveUp, UndoStarted, UndoUnknown
from midrun.core.evolve.calls import get_call
from midrun.core.ids import Micros, parse_call_number
from midrun.core.state import Cleanup, CleanupStage, EvolveFunctions, State
from midrun.core.values import CleanupAction, Residue


def undo_started(state: State, entry: UndoStarted) -> State:
    """Put the undo or release in flight."""
    state = _set_cleanup(state, entry.call, entry.action, "started", attempts=entry.attempt)
    return replace(state, cleanup_in_flight=(parse_call_number(entry.call), entry.action))


def undo_done(state: State, entry: UndoDone) -> State:
    """Mark the effect as undone, or the resource as released."""
    return replace(
        _set_cleanup(state, entry.call, entry.action, "done"), cleanup_in_flight=None
    )


def undo_failed(state: State, entry: UndoFailed) -> State:
    """Store the error and the time of the retry."""
    # A failed cleanup keeps its place in the order, so all cleanups after it wait for its
    # retry: they undo older effects, on which its own effect may have been built.
    state = _set_cleanup(
        state,
        entry.call,
        entry.action,
        "failed",
        error=entry.error,
        retry_at=entry.retry_at,
        final=entry.final,
    )
    return replace(state, cleanup_in_flight=None)


def undo_unknown(state: State, entry: UndoUnknown) -> State:
    """Record an unknown outcome; the scheduler repeats the attempt."""
    return replace(
        _set_cleanup(state, entry.call, entry.action, "unknown"), cleanup_in_flight=None
    )


def undo_gave_up(state: State, entry: UndoGaveUp) -> State:
    """Add the call to the residue: its effect or resource stays."""
    state = _set_cleanup(state, entry.call, entry.action, "gave_up", error=entry.error)
    left = Residue(call=entry.call, action=entry.action, why=entry.error)
    return replace(state, residue=(*state.residue, left))


def _set_cleanup(
    state: State,
    call_id: str,
    action: CleanupAction,
    stage: CleanupStage,
    *,
    attempts: int | None = None,
    error: str = "",
    retry_at: Micros | None = None,
    final: bool = False,
) -> State:
    # `action` is "undo" or "release", and the call has a field of each name.
    call = get_call(state, call_id)
    before = call.get_cleanup(action)
    after = Cleanup(
        stage=stage,
        attempts=before.attempts if attempts is None else attempts,
        error=error,
        retry_at=retry_at,
        is_final=final,
    )
    return state.with_call(replace(call, **{action: after}))


EVOLVE_FUNCTIONS: EvolveFunctions = {
    UndoStarted: undo_started,
    UndoDone: undo_done,
    UndoFailed: undo_failed,
    UndoUnknown: undo_unknown,
    UndoGaveUp: undo_gave_up,
}
