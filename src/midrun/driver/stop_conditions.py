"""Custom stop conditions: call the user's function at a step boundary for its verdict.

The run loop waits for the verdict before it starts the next step. A condition is user code, so
it runs like a hook (`user_code.UserCode`): it may be stopped, and its error fails its run only.
"""

import inspect
from typing import Final

import anyio
from msgspec import Struct

from midrun.agents.agent import Agent
from midrun.core.driver_inputs import FailRun, RecordStopVerdict
from midrun.core.ids import Epoch
from midrun.core.state import State
from midrun.core.stops import list_custom_names
from midrun.core.transcript import Transcript
from midrun.driver.user_code import CodeStopped, UserCode, format_exception, must_reraise
from midrun.stops import resolve_custom

UNDECLARED_STOP: Final = (
    "Cannot call it: the agent's own stop does not name it. Add Custom(fn) to Agent(stop=…)."
)


class StopContext(Struct, frozen=True, kw_only=True):
    """The argument of a custom stop condition: the use of a run at a step boundary."""

    steps: int
    tool_calls: int
    tokens: int
    cost_usd: float
    seconds: float  # of work, without pauses
    text: str  # the last text of the agent
    messages: Transcript


def make_stop_context(state: State) -> StopContext:
    """Return the argument of a custom stop condition for `state`."""
    meter = state.meter_with_time
    return StopContext(
        steps=meter.steps,
        tool_calls=meter.tool_calls,
        tokens=meter.committed_spend.tokens,
        cost_usd=meter.committed_spend.cost / 1e6,
        seconds=meter.worked_micros / 1e6,
        text=meter.last_text,
        messages=Transcript(state),
    )


async def evaluate_stop(
    code: UserCode, name: str, state: State, *, agent: Agent, epoch: Epoch
) -> RecordStopVerdict | FailRun:
    """Call the stop condition `name`; if it raises, the run fails and can be resumed.

    `name` comes from the journal, which may have come with a checkpoint. Resolving a name
    imports a module, so only the names in the agent's own stop, which this process declared
    in code, are resolved.
    """
    if name not in list_custom_names(agent.stop):
        return FailRun(epoch=epoch, error=f"stop {name}: {UNDECLARED_STOP}", code="stop_failed")

    async def ask() -> bool:
        met = resolve_custom(name)(make_stop_context(state))
        return bool(await met if inspect.isawaitable(met) else met)

    try:
        met = await code.run(ask)
    except CodeStopped:
        raise
    except BaseException as error:
        if must_reraise(error):
            raise
        problem = f"stop condition {name}: {format_exception(error)}"
        return FailRun(epoch=epoch, error=problem, code="stop_failed")
    return RecordStopVerdict(epoch=epoch, name=name, met=met)


class ConditionEvaluation:
    """A custom stop condition that is being evaluated."""

    __slots__ = ("code", "ended", "is_grace_running")

    def __init__(self, code: UserCode) -> None:
        self.code = code
        self.ended = anyio.Event()
        self.is_grace_running = False  # after the grace, the run does not wait for it any more

    def stop(self) -> None:
        """Stop the condition; a second call, in a later turn of the run loop, does nothing."""
        if self.code.stopping_since is None:
            self.code.stop()
