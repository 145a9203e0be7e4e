"""A story: an agent that asks a question, comes to its cap, and is given a higher one."""

from pathlib import Path

from midrun import Agent, Completed, Midrun, Paused, Run, ask_human
from midrun.core.entries import AskAnswered, CapRaised, CapReached
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.stops import MaxSteps
from tests.crash.deeds import deeds, put
from tests.scenarios.promises.seen import entries


def capped(name: str, folder: Path) -> Agent:
    """Return an agent that has asked its question when its cap is reached."""
    at = str(folder)
    turns: list[Line] = [
        Use("put", folder=at),
        Use("ask_human", question="Which?"),
        Use("put", folder=at),
        "Done.",
    ]
    model, stop = ScriptedModel(turns), MaxSteps(2)
    return Agent(f"{name}_top", model=model, tools=[put, ask_human], stop=stop)


async def raise_it(_: Midrun, run: Run, __: Path, *, again: bool) -> None:
    """Answer, and raise the cap: each once, whoever comes back to do it."""
    del again
    while not isinstance(outcome := await run.result(), Completed):
        assert isinstance(outcome, Paused), str(outcome)
        if outcome.reason == "question":
            await run.answer("red", request_id="answer")
        else:
            assert outcome.reason == "cap", str(outcome)
            await run.resume(caps={"steps": 9}, request_id="raise")
    assert outcome.output == "Done."


async def check_capped(_: Midrun, run: Run, place: Path) -> None:
    """It paused at its cap and nowhere else, and every step was made once."""
    for kind in (AskAnswered, CapReached, CapRaised):
        assert len(await entries(run, kind)) == 1, kind
    assert len({deed.key for deed in deeds(place)}) == 2, deeds(place)
    assert (await run.view()).step == 4
