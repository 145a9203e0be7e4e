"""Limit automatic retries: worker deaths per call, check denials, and backoff.

A call that is safe to repeat may still crash its worker process, for example by using all
memory. Every worker that takes the run over would make the call again and crash, too. The
journal counts the workers that died during a call; at `WORKER_DEATHS_MAX` the run fails and
waits for a person.
"""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from midrun.core.entries import RunFailed
from midrun.core.ids import MICROS_PER_SECOND, Micros, add_micros
from midrun.core.state import CallState, State

WORKER_DEATHS_MAX: Final = 3
"""The number of workers that die, or lose their lease, during a call until the run fails.

One death may be a lost machine, and two may be chance. Each death also interrupts all other
runs of the same process, so the limit is low.
"""

CHECK_DENIALS_MAX: Final = 8
"""The number of times that a check denies its call until the call is sealed.

The waits between the attempts double from half a second, so this takes about a minute.
"""

WORKERS_DIED_CODE: Final = "drivers_died"
"""Error code of a run that failed because too many workers died during one call."""

TOOL_NOT_IMPORTABLE_CODE: Final = "tool_not_importable"
"""Error code of a call, and then of its run, whose tool a subprocess cannot import.

The run fails, so that the author of the program learns of it. The model could only work
around the missing tool.
"""


def choose_model(failures: Sequence[bool], count: int) -> int | None:
    """Return the index of the model for the next attempt; None if all failed for good.

    An agent has `count` models: its own, and the fallbacks. `failures` says of each failed
    attempt whether its model would fail again. Each failure passes the call to the next model
    that may still work. An attempt that was stopped, or whose worker died, passes nothing on.
    """
    # The choice is computed again from the first failure on, because only the failures are
    # journaled. So each attempt of a call gets the same model in every process.
    lost: set[int] = set()
    index = 0
    for is_lasting in failures:
        if is_lasting:
            lost.add(index)
        # The model that has just failed comes last: it is tried again at once only if no other
        # one is left.
        following = ((index + n) % count for n in range(1, count + 1))
        chosen = next((model for model in following if model not in lost), None)
        if chosen is None:
            return None
        index = chosen
    return index


MODEL_RETRY_CODE: Final = "model_retry"
"""Error code of a call whose tool asked the model to try again (`ModelRetry`)."""

RETRIES_EXHAUSTED_CODE: Final = "retries_exhausted"
"""Error code of a run in which a tool asked the model to try again too often."""


def may_retry_tool(state: State, call: CallState) -> bool:
    """Tell whether the model may try again after the failure of `call`, counted already."""
    count, _ = state.tool_retries.get(call.use.tool, (0, 0))
    return count <= call.traits.retries


INVALID_OUTPUT_CODE: Final = "invalid_output"
"""Error code of a run whose agent gave no valid output within its attempts."""


def may_retry_output(state: State) -> bool:
    """Tell whether the agent may try again after the invalid output that was just counted."""
    return state.invalid_outputs <= state.speaker_settings.output_retries


def find_failure(state: State, active_calls: Sequence[CallState]) -> RunFailed | None:
    """Return the failure that ends the run at its next boundary, or None."""
    if state.program_deaths >= WORKER_DEATHS_MAX:
        error = f"the program: {state.program_deaths} processes ended, or fell silent, under it"
        return RunFailed(error=error, code=WORKERS_DIED_CODE)
    if state.error is not None or not state.open_calls:
        return state.error
    if state.pending and state.pending_redirects and not state.taken_over_by:
        return None  # the redirect will seal the open calls, so none of them is made again
    # Only calls that could start now count. A suspect call of a held topic does not stop the
    # run until the topic is resumed.
    calls: list[CallState] = []
    for call in active_calls:
        if call.worker_deaths >= WORKER_DEATHS_MAX:
            calls.append(call)  # noqa: PERF401 - nearly always empty
    if not calls:
        return None
    names = ", ".join(call.use.title or call.use.tool or "the model" for call in calls)
    many = min(call.worker_deaths for call in calls)
    was = "it was" if len(calls) == 1 else "they were"
    error = f"{names}: {many} processes ended, or fell silent, while {was} under way"
    return RunFailed(error=error, code=WORKERS_DIED_CODE)


def is_death_counted(call: CallState) -> bool:
    """Tell whether the death of a worker during `call` counts towards the limit.

    It counts if the call is repeated without asking a person. A child run has its own worker,
    and its own journal counts the deaths there.
    """
    return call.call_kind != "child" and (call.safe_to_repeat or call.traits.check)


def reset_deaths(state: State) -> State:
    """Reset the counts of worker deaths: a person decided to continue the run."""
    for number in state.open_and_parked_calls:
        call = state.calls[number - 1]
        if call.worker_deaths:
            state = state.with_call(replace(call, worker_deaths=0))
    return replace(state, program_deaths=0) if state.program_deaths else state


# Backoff. The run limits the number of attempts; this part limits the time between them.

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 60.0
SERVER_WAIT_MAX_S: Final = 15 * 60.0
"""If a server asks for a longer wait than this (`Retry-After`), the call fails instead."""


def compute_retry_at(
    now: Micros, attempt: int, *, chance: float, requested_s: float | None = None
) -> Micros:
    """Return the time of the attempt after `attempt`.

    The wait doubles from half a second up to a minute. `chance` (0 to 1) is the jitter. The
    wait is never shorter than `requested_s`, the seconds that the server asked for.
    """
    wait = compute_backoff_s(
        attempt, first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S, chance=chance
    )
    return add_micros(now, max(wait, requested_s or 0.0) * MICROS_PER_SECOND)


def compute_backoff_s(
    attempt: int, *, first_s: float, longest_s: float, chance: float
) -> float:
    """Return the seconds to wait after `attempt`: doubling from `first_s` to `longest_s`.

    `chance` (0 to 1) is the jitter: it takes off up to half of the wait, so that callers that
    failed together do not retry together.
    """
    # The exponent is limited, because 2.0 ** n overflows for a large number of attempts.
    return min(longest_s, first_s * 2.0 ** min(attempt - 1, 16)) * (0.5 + chance / 2)


def is_wait_acceptable(requested_s: float | None) -> bool:
    """Tell whether the wait that a server requested is short enough to retry."""
    return requested_s is None or requested_s <= SERVER_WAIT_MAX_S
