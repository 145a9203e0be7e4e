"""Select the calls to undo and to release before a run ends, and their order.

The undo set of a cancel holds the calls that were in flight, aborted or unknown when the
cancel came. With `undo="all"` it also holds every finished call that has an undo, and child
runs that had ended. Held resources are released at every end, also of a completed run.

The order is the reverse of the order in which the calls were closed: the newest effect is
undone first, so an effect is undone before the effects that it was built on.
"""

from midrun.core.state import Call, Stage, State
from midrun.core.values import Action


def next_cleanup(state: State) -> tuple[Call, Action] | None:
    """Return the next call to undo or release, or None."""
    left = remaining(state)
    return left[0] if left else None


def remaining(state: State) -> list[tuple[Call, Action]]:
    """Return all calls that are still to be undone or released, in order."""
    found: list[tuple[Call, Action]] = []
    for number in state.effects:
        call = state.calls[number - 1]
        if to_undo(state, call):
            found.append((call, "undo"))
        if to_release(call):
            found.append((call, "release"))
    return sorted(found, key=lambda item: -item[0].closed)


def to_undo(state: State, call: Call) -> bool:
    """Tell whether this run's cancel includes `call` and its undo is not over."""
    if state.cancel is None or not call.traits.undo or call.undo.over:
        return False
    if call.call_kind == "child":
        return state.cancel.undo == "all" and _outlived(call)
    if not call.touched:
        return False
    # A finished call is undone only if it was still in flight when the cancel came, or if the
    # cancel includes everything. A call that did not finish always belongs to the undo set.
    return call.stage is not Stage.DONE or call.doomed or state.cancel.undo == "all"


def _outlived(call: Call) -> bool:
    """Tell whether a child run had ended before the cancel came.

    Its effects are in place, and an undo of the call takes them back. A child that had not
    ended is cancelled by its release, and undoes its own effects then.
    """
    ended = call.release.stage == "done" and not call.doomed
    return call.stage is Stage.DONE or ended


def to_release(call: Call) -> bool:
    """Tell whether `call` may hold a resource whose release is not over.

    A child run counts as a resource of its parent until it has ended. To release it is to
    cancel it.
    """
    if call.release.over:
        return False
    if call.call_kind == "child" and call.attempt and call.stage is not Stage.DONE:
        return True
    return call.traits.release and call.touched


def hopeless(call: Call, action: Action) -> bool:
    """Tell whether the undo is unsafe: it needs to know that the call happened.

    A tool declares with `undo_unknown=False` that its undo must not run for a call that may
    not have happened.
    """
    if action != "undo" or call.traits.undo_unknown:
        return False
    return call.stage is not Stage.DONE  # only a finished call is known to have happened
