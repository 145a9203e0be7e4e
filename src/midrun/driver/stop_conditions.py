"""Judging: asking a custom stop condition, which is somebody's function, for its verdict."""

import inspect
from typing import Final

from msgspec import Struct

from midrun.agents.agent import Agent
from midrun.core.driver_inputs import Fail, GiveVerdict
from midrun.core.ids import Epoch
from midrun.core.state import State
from midrun.core.stops import custom_names
from midrun.core.transcript import Transcript
from midrun.driver.context import Means
from midrun.driver.user_code_errors import must_go_on, words
from midrun.stops import resolve_custom

UNDECLARED_STOP: Final = (
    "Cannot call it: the agent's own stop does not name it. Add Custom(fn) to Agent(stop=…)."
)


class Standing(Struct, frozen=True, kw_only=True):
    """What a custom condition is given: where the run stands at a boundary."""

    steps: int
    tool_calls: int
    tokens: int
    cost_usd: float
    seconds: float  # at work
    text: str  # what the agent said last
    messages: Transcript


def standing(state: State) -> Standing:
    """Return where the run in `state` stands."""
    meter = state.metered
    return Standing(
        steps=meter.steps,
        tool_calls=meter.tool_calls,
        tokens=meter.committed.tokens,
        cost_usd=meter.committed.cost / 1e6,
        seconds=meter.worked / 1e6,
        text=meter.text,
        messages=Transcript(state),
    )


async def judge(
    means: Means, name: str, state: State, *, agent: Agent, epoch: Epoch
) -> GiveVerdict | Fail:
    """Return the verdict of the condition `name`; one that raises fails the run, resumably.

    `name` comes from the journal, which may have come with a checkpoint. Resolving a name
    imports a module, so only the names in the agent's own stop, which this process declared
    in code, are resolved.
    """
    if name not in custom_names(agent.stop):
        return Fail(epoch=epoch, error=f"stop {name}: {UNDECLARED_STOP}", code="stop_failed")

    async def ask() -> bool:
        met = resolve_custom(name)(standing(state))
        return bool(await met if inspect.isawaitable(met) else met)

    label = f"stop condition {name} (run {state.run})"
    try:
        met = await means.user_tasks.run(ask, label=label, grace=agent.grace)
    except BaseException as error:
        if must_go_on(error):
            raise
        problem = f"stop condition {name}: {words(error)}"
        return Fail(epoch=epoch, error=problem, code="stop_failed")
    return GiveVerdict(epoch=epoch, name=name, met=met)
