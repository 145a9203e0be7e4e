"""Select the calls to undo and to release before a run ends, and their order.

The undo set of a cancel holds the calls whose outcome was not certain when the cancel came:
those in flight, aborted or unknown, and those that wait for the answer to a question of their
own. With `undo="all"` it also holds every finished call that has an undo, and child
runs that had ended. Held resources are released at every end, also of a completed run.

The order is the reverse of the order in which the calls were closed: the newest effect is
undone first, so an effect is undone before the effects that it was built on.
"""

from typing import Final

from midrun.core.state import CallStage, CallState, State
from midrun.core.values import CleanupAction

GIVEN_UP_STAGES: Final = frozenset({CallStage.SEALED, CallStage.ABORTED, CallStage.UNKNOWN})


def find_next_cleanup(state: State) -> tuple[CallState, CleanupAction] | None:
    """Return the next call to undo or release, or None."""
    left = list_remaining_cleanups(state)
    return left[0] if left else None


def list_remaining_cleanups(state: State) -> list[tuple[CallState, CleanupAction]]:
    """Return all calls that are still to be undone or released, in order."""
    found: list[tuple[CallState, CleanupAction]] = []
    for number in state.cleanup_calls:
        call = state.calls[number - 1]
        if is_undo_due(state, call):
            found.append((call, "undo"))
        if is_release_due(call):
            found.append((call, "release"))
    # The sort is stable: of one call, the undo stays before the release, because an undo may
    # need the resource that the release frees.
    return sorted(found, key=lambda item: -item[0].closed_seq)


def is_undo_due(state: State, call: CallState) -> bool:
    """Tell whether this run's cancel includes `call` and its undo is not over."""
    if state.cancel_request is None or not call.traits.undo or call.undo.is_finished:
        return False
    if call.call_kind == "child":
        return state.cancel_request.undo == "all" and _has_ended_before_cancel(call)
    if not call.may_have_effect:
        return False
    # A finished call is undone only if it was still in flight when the cancel came, or if the
    # cancel includes everything. A call that did not finish always belongs to the undo set.
    return (
        call.stage is not CallStage.DONE
        or call.in_undo_set
        or state.cancel_request.undo == "all"
    )


def _has_ended_before_cancel(call: CallState) -> bool:
    """Tell whether a child run had ended before the cancel came.

    Its effects are in place, and an undo of the call takes them back. A child that had not
    ended is cancelled by its release, and undoes its own effects then.
    """
    ended = call.release.stage == "done" and not call.in_undo_set
    return call.stage is CallStage.DONE or ended


def is_release_due(call: CallState) -> bool:
    """Tell whether `call` may hold a resource whose release is not over.

    A child run counts as a resource of its parent until it has ended. To release it is to
    cancel it.
    """
    if call.release.is_finished:
        return False
    if call.call_kind == "child" and call.attempt and call.stage is not CallStage.DONE:
        return True
    return call.traits.release and call.may_have_effect


def is_undo_unsafe(call: CallState, action: CleanupAction) -> bool:
    """Tell whether the undo is unsafe: it needs to know that the call happened.

    A tool declares with `undo_unknown=False` that its undo must not run for a call that may
    not have happened.
    """
    if action != "undo" or call.traits.undo_unknown:
        return False
    return call.stage is not CallStage.DONE  # only a finished call is known to have happened


def is_child_ended(call: CallState) -> bool:
    """Tell whether the parent has journaled that it ended the child run of `call`."""
    return "done" in {call.release.stage, call.undo.stage}


def find_orphaned_child(state: State) -> CallState | None:
    """Return the call of a child run that was given up and still has to be ended, or None.

    A redirect, for example, seals the call of a child, but the child run would keep working
    for the old plan. A child that has failed does not continue by itself and is left alone. The
    child whose call closed last is ended first, as in every cleanup.
    """
    last: CallState | None = None
    if not state.cleanup_calls.size:
        return None
    for number in state.cleanup_calls:
        call = state.calls[number - 1]
        if call.call_kind != "child" or call.is_open or call.stage not in GIVEN_UP_STAGES:
            continue
        # A child that cannot be ended gets the same number of attempts as any release. At the
        # end of the run it is listed as residue.
        tried = call.release.attempts >= state.run_started.undo_attempts
        if (
            is_release_due(call)
            and not tried
            and (last is None or call.closed_seq > last.closed_seq)
        ):
            last = call
    return last
