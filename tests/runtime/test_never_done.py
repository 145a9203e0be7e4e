"""A far end that stays down: the call is left in the end, and the agent hears of it."""

import pytest

from midrun import NOT_DONE, Agent, Call, tool
from midrun.core.attempts import DENIALS
from midrun.core.entries import CallStarted
from midrun.core.ids import Micros
from midrun.driver import acting
from midrun.errors import OutcomeUnknown
from midrun.models import ScriptedModel
from tests.promises.seen import entries
from tests.runtime.conftest import Opener
from tests.runtime.stage import Use


async def test_a_call_that_is_never_done_is_left_and_the_agent_hears_of_it(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is nobody's doubt: its own check says each time that nothing happened."""
    waits: list[int] = []

    def no_time(now: Micros, attempt: int, *, chance: float) -> Micros:
        del chance
        waits.append(attempt)
        return now

    async def find(call: Call, args: dict[str, str]) -> object:
        del call, args
        return NOT_DONE

    @tool(check=find)
    async def charge() -> str:
        """Charge a card, where nobody answers."""
        raise OutcomeUnknown("timed out")

    monkeypatch.setattr(acting, "retry_at", no_time)
    turns = [Use("charge"), lambda messages: messages[-1].uses[0].problem]
    agent = Agent("actor", model=ScriptedModel(turns), tools=[charge])  # type: ignore[arg-type]  # what it says follows from what it heard
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    view = await run.until("completed")
    made = [one for one in await entries(run, CallStarted) if one.call == "c2"]
    assert len(made) == DENIALS
    assert waits == [*range(1, DENIALS)]
    assert view.output == (
        "not executed: tried 8 times, and each time its check found nothing done"
    )
