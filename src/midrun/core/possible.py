"""What is possible: the controls that a run would take as it stands.

The table goes by the phase alone. Here is what else a control needs: there is no answering
without a question, and nothing to retry where nothing is left.
"""

from collections.abc import Callable, Mapping
from typing import Final

from midrun.core.state import State
from midrun.core.stops import caps
from midrun.core.table import enabled
from midrun.core.values import Phase


def possible(state: State) -> tuple[str, ...]:
    """Return the names of the controls that a run in `state` takes, in table order.

    Who asks is not known here: a person without the role, or not at the wheel, may be refused.
    """
    return tuple(
        name for name in enabled(state.phase) if name not in NEEDS or NEEDS[name](state)
    )


def _asks(state: State, *kinds: str) -> bool:
    return any(state.asks[number - 1].kind in kinds for number in state.open_asks)


def _answer(state: State) -> bool:
    return _asks(state, "question", "unsure", "child")


def _approval(state: State) -> bool:
    return _asks(state, "approval", "child")


def _declinable(state: State) -> bool:
    return any(state.asks[number - 1].declinable for number in state.open_asks)


def _withdraw(state: State) -> bool:
    hold = state.hold
    pauses = state.phase is Phase.PAUSING and hold is not None and hold.why == "user"
    return bool(state.pending) or pauses


def _caps(state: State) -> bool:
    return bool(caps(state.stop, state.metered))


def _frames(state: State) -> bool:
    return bool(state.frames)


def _agent_drives(state: State) -> bool:
    return not state.wheel


def _course_is_free(state: State) -> bool:
    hold = state.hold
    at_cap = state.phase is Phase.PAUSED and hold is not None and bool(hold.cap)
    return not (state.wheel or at_cap)  # at a cap, `resume` takes the words and raises it


def _person_drives(state: State) -> bool:
    return bool(state.wheel)


def _residue(state: State) -> bool:
    return bool(state.residue)


def _residue_open(state: State) -> bool:
    return bool(state.residue) and not state.residue_accepted


NEEDS: Final[Mapping[str, Callable[[State], bool]]] = {
    "answer": _answer,
    "approve": _approval,
    "decline": _declinable,
    "withdraw": _withdraw,
    "raise_cap": _caps,
    "resume_frame": _frames,
    "drop_frame": _frames,
    "resume": _agent_drives,
    "redirect": _course_is_free,
    "write": _person_drives,
    "use_tool": _person_drives,
    "hand_back": _person_drives,
    "retry_undo": _residue,
    "accept_residue": _residue_open,
}
"""Control → whether the run has what it needs; the guards of the table, said beforehand."""
