"""`python -m bench.midrun_steps FOLDER STEPS [resume]`: the steps of a durable run of midrun.

One run in SQLite with `synchronous = FULL`; see `bench.probe` for the arguments.
"""

import anyio

from bench.probe import REPLY_TEXT, RESULT_TEXT, StepProbe
from midrun import Agent, Midrun, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.workers import local as _  # noqa: F401 - imported before the clock of a resume starts


@tool
async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


async def main(probe: StepProbe) -> None:
    """Make steps until the probe ends the process."""

    def turn(messages: Transcript) -> Line:
        del messages
        return [REPLY_TEXT, Use("look", n=probe.mark())]

    agent = Agent("stepper", model=ScriptedModel(turn), tools=[look])
    probe.open()
    async with Midrun(f"sqlite:///{probe.folder / 'runs.db'}", agents=[agent]) as midrun:
        if not probe.is_resumed:
            await midrun.start("stepper", "measure")
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, StepProbe.from_arguments())
