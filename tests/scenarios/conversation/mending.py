"""A story: a child that cannot undo what it did before somebody has mended the world."""

from pathlib import Path

from midrun import Agent, Call, ControlRefused, Midrun, Run, tool
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from tests.crash.deeds import deeds, hold, mark
from tests.crash.facts import becomes

MENDED = "mended"


async def clean_off(call: Call, args: dict[str, str], _: object) -> None:
    """Take a stain off, where that can be done."""
    if not (Path(args["folder"]) / MENDED).exists():
        raise OSError("there is no water")
    mark(args["folder"], "cleaned", call)


@tool(undo=clean_off)
async def stain(call: Call, folder: str) -> str:
    """Leave a stain."""
    mark(folder, "stain", call)
    return "stained"


def stained(name: str, folder: Path) -> Agent:
    """Return a parent whose child has left a stain when it is cancelled."""
    at = str(folder)
    script: list[Line] = [Use("stain", folder=at), "Stained."]
    aide = Agent(f"{name}_aide", model=ScriptedModel(script), tools=[stain])
    turns: list[Line] = [Use("aide", task="too"), Use("hold", folder=at)]
    tools = [hold, aide.as_tool(name="aide")]
    return Agent(f"{name}_top", model=ScriptedModel(turns), tools=tools)


async def mend(_: Midrun, run: Run, place: Path, *, again: bool) -> None:
    """Cancel, mend the world, and have the undo of the whole family retried."""
    if not again:
        await becomes(lambda: any(deed.what == "hold" for deed in deeds(place)))
    await run.cancel(undo="all", request_id="cancel")
    await run.until("cancelled")
    (place / MENDED).touch()
    try:
        await run.retry_undo(actor="operator:olga", request_id="retry")
    except ControlRefused as error:  # it was cancelled before there was a stain
        assert error.reason == "no_residue", str(error)  # noqa: PT017 - only this may be met
    await run.until("cancelled")


async def check_mended(_: Midrun, run: Run, place: Path) -> None:
    """Every stain is gone, each under the one key of its undo, and the report knows."""
    done = deeds(place)
    cleaned = [deed for deed in done if deed.what == "cleaned"]
    assert {deed.key for deed in done if deed.what == "stain"} <= {d.of for d in cleaned}, done
    assert len({deed.key for deed in cleaned}) <= 1, done
    report = await run.report()
    assert report.clean, str(report)
