"""Attempts: how often a call is made again by itself, before somebody has to say so.

What is safe to make again may still be what ends its process: it would be made again by every
process that takes the run over. The journal knows how many it has cost, and rests the run.
"""

from typing import Final

from msgspec.structs import replace

from midrun.core.entries import RunFailed
from midrun.core.ids import SECOND, Micros, later
from midrun.core.state import Call, State

DEATHS: Final = 3
"""How many drivers may end, or fall silent, while a call is under way before the run rests.

One is a machine that went away, two are a bad day. Each costs every other run of its process a
lease, so that it is not many more.
"""

DENIALS: Final = 8
"""How often the check of a call may say that it was not done before the agent is told so.

With the waits in between, which double from half a second, that is about a minute.
"""

DIED: Final = "drivers_died"
"""The code of a run that rests because a call of it has cost too many drivers."""

NOT_IMPORTABLE: Final = "tool_not_importable"
"""The code of a call, and then of its run, whose tool cannot be imported in its own process.

The program is at fault, and its author must be told; the model could only work around it.
"""


def failure(state: State) -> RunFailed | None:
    """Return why the run comes to rest at its boundary although it is not done, if it must."""
    if state.error is not None or not state.open:
        return state.error
    if state.redirects and not state.wheel:
        return None  # on the new course, nothing that was open is made
    calls = [call for n in state.at_hand if (call := state.calls[n - 1]).deaths >= DEATHS]
    if not calls:
        return None
    names = ", ".join(call.use.tool or "the model" for call in calls)
    many = min(call.deaths for call in calls)
    was = "it was" if len(calls) == 1 else "they were"
    error = f"{names}: {many} processes ended, or fell silent, while {was} under way"
    return RunFailed(error=error, code=DIED)


def counts(call: Call) -> bool:
    """Tell whether a driver that dies under `call` counts: whether nobody is asked each time.

    A child run is driven on its own; what ends its drivers is counted there.
    """
    return call.call_kind != "child" and (call.harmless or call.traits.check)


def forgiven(state: State) -> State:
    """Return the state with nothing counted: a person has the run go on, knowing what was."""
    parked = (n for frame in state.frames for n in frame.parked)
    for number in (*state.open, *parked):
        call = state.calls[number - 1]
        if call.deaths:
            state = state.with_call(replace(call, deaths=0))
    return state


# Backoff: when a failed attempt is made again. Bounded in number by the run, here in time.

FIRST: Final = 0.5
LONGEST: Final = 60.0
PATIENCE: Final = 15 * 60.0
"""A far end that wants us to wait longer than this has said no."""


def retry_at(now: Micros, attempt: int, *, chance: float, asked: float | None = None) -> Micros:
    """Return when the attempt after `attempt` is due.

    Doubles from half a second to a minute, spread by `chance` (between 0 and 1) so that many
    runs do not come back at once; never earlier than the far end `asked` for.
    """
    wait = doubled(attempt, first=FIRST, longest=LONGEST, chance=chance)
    return later(now, max(wait, asked or 0.0) * SECOND)


def doubled(attempt: int, *, first: float, longest: float, chance: float) -> float:
    """Return how many seconds to wait after `attempt`: `first` at first, `longest` at most.

    Up to half of it is left off by `chance` (between 0 and 1), so that many who failed together
    do not come back together.
    """
    return min(longest, first * 2.0 ** min(attempt - 1, 16)) * (0.5 + chance / 2)


def worth_waiting(asked: float | None) -> bool:
    """Tell whether a far end that asked us to wait so many seconds will be asked again."""
    return asked is None or asked <= PATIENCE
