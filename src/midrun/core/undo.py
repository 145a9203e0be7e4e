"""What a run must take back or give back before it may end, and in which order.

The undo set of a cancel: calls in flight, aborted or unknown when it came; with `undo="all"`
every finished call that has an undo as well, and of children that had ended everything they
did. What is held is released at every end. Both go in the reverse order of the calls' last
closing, so that what came last goes first.
"""

from midrun.core.state import Call, Stage, State
from midrun.core.values import Action


def next_cleanup(state: State) -> tuple[Call, Action] | None:
    """Return what must be undone or released next, if anything is left."""
    left = remaining(state)
    return left[0] if left else None


def remaining(state: State) -> list[tuple[Call, Action]]:
    """Return what is still to be undone or released, in order."""
    found: list[tuple[Call, Action]] = []
    for number in state.effects:
        call = state.calls[number - 1]
        if to_undo(state, call):
            found.append((call, "undo"))
        if to_release(call):
            found.append((call, "release"))
    return sorted(found, key=lambda item: -item[0].closed)


def to_undo(state: State, call: Call) -> bool:
    """Tell whether the cancel of this run wants `call` undone and it is not, yet."""
    if state.cancel is None or not call.traits.undo or call.undo.over:
        return False
    if call.call_kind == "child":
        return state.cancel.undo == "all" and _outlived(call)
    if not call.touched:
        return False
    return call.stage is not Stage.DONE or call.doomed or state.cancel.undo == "all"


def _outlived(call: Call) -> bool:
    """Tell whether a child had ended before the cancel came, and so kept what it had done.

    One that had not is told to undo as it is ended, which is its release.
    """
    ended = call.release.stage == "done" and not call.doomed
    return call.stage is Stage.DONE or ended


def to_release(call: Call) -> bool:
    """Tell whether `call` may hold something that is not released, yet.

    A child run is held by its parent until it has ended: releasing it is cancelling it.
    """
    if call.release.over:
        return False
    if call.call_kind == "child" and call.attempt and call.stage is not Stage.DONE:
        return True
    return call.traits.release and call.touched


def hopeless(call: Call, action: Action) -> bool:
    """Tell whether nobody dares to undo `call`: its tool wants to know that it happened."""
    if action != "undo" or call.traits.undo_unknown:
        return False
    return call.stage is not Stage.DONE
