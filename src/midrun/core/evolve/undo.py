"""What undo and release mean for the state."""

from msgspec.structs import replace

from midrun.core.entries import UndoDone, UndoFailed, UndoGaveUp, UndoStarted, UndoUnknown
from midrun.core.evolve.calls import call_of
from midrun.core.ids import Micros, number_of
from midrun.core.state import Arms, Cleaned, Cleanup, State
from midrun.core.values import Action, Residue


def undo_started(state: State, entry: UndoStarted) -> State:
    """An undo is in flight."""
    state = _cleaned(state, entry.call, entry.action, "started", attempts=entry.attempt)
    return replace(state, cleaning=(number_of(entry.call), entry.action))


def undo_done(state: State, entry: UndoDone) -> State:
    """The effect is gone, or the resource free."""
    return replace(_cleaned(state, entry.call, entry.action, "done"), cleaning=None)


def undo_failed(state: State, entry: UndoFailed) -> State:
    """It will be tried again under the same key, unless that was the last attempt."""
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
    """Cut short; the same key makes it safe to try again."""
    return replace(_cleaned(state, entry.call, entry.action, "unknown"), cleaning=None)


def undo_gave_up(state: State, entry: UndoGaveUp) -> State:
    """The effect stays, and is listed."""
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
