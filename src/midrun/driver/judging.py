"""Judging: asking a custom stop condition, which is somebody's function, for its verdict."""

import inspect

from msgspec import Struct

from midrun.core.evidence import Fail, GiveVerdict
from midrun.core.ids import Epoch
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.driver.mishaps import must_go_on, words
from midrun.stops import resolve_custom


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


async def judge(epoch: Epoch, name: str, state: State) -> GiveVerdict | Fail:
    """Return the verdict of the condition `name`; one that raises fails the run, resumably."""
    try:
        met = resolve_custom(name)(standing(state))
        if inspect.isawaitable(met):
            met = await met
    except BaseException as error:
        if must_go_on(error):
            raise
        problem = f"stop condition {name}: {words(error)}"
        return Fail(epoch=epoch, error=problem, code="stop_failed")
    return GiveVerdict(epoch=epoch, name=name, met=bool(met))
