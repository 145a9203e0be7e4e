"""Limit automatic retries: worker deaths per call, check denials, and backoff.

A call that is safe to repeat may still crash its worker process, for example by using all
memory. Every worker that takes the run over would make the call again and crash, too. The
journal counts the workers that died during a call; at `WORKER_DEATHS_MAX` the run fails and
waits for a person.
"""

from typing import Final

from msgspec.structs import replace

from midrun.core.entries import RunFailed
from midrun.core.ids import SECOND, Micros, later
from midrun.core.state import Call, State

DEATHS: Final = 3
"""How many workers may die, or lose their lease, during a call before the run fails.

One death may be a lost machine, and two may be chance. Each death also interrupts all other
runs of the same process, so the limit is low.
"""

DENIALS: Final = 8
"""How often a check may say that its call did not happen before the call is sealed.

The waits between the attempts double from half a second, so this takes about a minute.
"""

DIED: Final = "drivers_died"
"""Error code of a run that failed because too many workers died during one call."""

NOT_IMPORTABLE: Final = "tool_not_importable"
"""Error code of a call, and then of its run, whose tool a subprocess cannot import.

The run fails, so that the author of the program learns of it. The model could only work
around the missing tool.
"""


def failure(state: State) -> RunFailed | None:
    """Return the failure that ends the run at its next boundary, or None."""
    if state.error is not None or not state.open:
        return state.error
    if state.redirects and not state.wheel:
        return None  # the redirect will seal the open calls, so none of them is made again
    # Only calls that could start now count. A suspect call of a suspended frame does not stop
    # the run until the frame is resumed.
    calls = [call for n in state.at_hand if (call := state.calls[n - 1]).deaths >= DEATHS]
    if not calls:
        return None
    names = ", ".join(call.use.tool or "the model" for call in calls)
    many = min(call.deaths for call in calls)
    was = "it was" if len(calls) == 1 else "they were"
    error = f"{names}: {many} processes ended, or fell silent, while {was} under way"
    return RunFailed(error=error, code=DIED)


def counts(call: Call) -> bool:
    """Tell whether the death of a worker during `call` counts towards the limit.

    It counts if the call is repeated without asking a person. A child run has its own worker,
    and its own journal counts the deaths there.
    """
    return call.call_kind != "child" and (call.harmless or call.traits.check)


def forgiven(state: State) -> State:
    """Reset the counts of worker deaths: a person decided to continue the run."""
    parked = (n for frame in state.frames for n in frame.parked)
    for number in (*state.open, *parked):
        call = state.calls[number - 1]
        if call.deaths:
            state = state.with_call(replace(call, deaths=0))
    return state


# Backoff. The run limits the number of attempts; this part limits the time between them.

FIRST: Final = 0.5
LONGEST: Final = 60.0
PATIENCE: Final = 15 * 60.0
"""If a server asks for a longer wait than this (`Retry-After`), the call fails instead."""


def retry_at(now: Micros, attempt: int, *, chance: float, asked: float | None = None) -> Micros:
    """Return the time of the attempt after `attempt`.

    The wait doubles from half a second up to a minute. `chance` (0 to 1) is the jitter. The
    wait is never shorter than `requested_s`, the seconds that the server asked for.
    """
    wait = doubled(attempt, first=FIRST, longest=LONGEST, chance=chance)
    return later(now, max(wait, asked or 0.0) * SECOND)


def doubled(attempt: int, *, first: float, longest: float, chance: float) -> float:
    """Return the seconds to wait after `attempt`: doubling from `first_s` to `longest_s`.

    `chance` (0 to 1) is the jitter: it takes off up to half of the wait, so that callers that
    failed together do not retry together.
    """
    # The exponent is limited, because 2.0 ** n overflows for a large number of attempts.
    return min(longest, first * 2.0 ** min(attempt - 1, 16)) * (0.5 + chance / 2)


def worth_waiting(asked: float | None) -> bool:
    """Tell whether the wait that a server requested is short enough to retry."""
    return asked is None or asked <= PATIENCE
