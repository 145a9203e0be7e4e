"""An app for the command: agents that search when they may, ask when they must, and lie."""

import os

import anyio

from midrun import Agent, Call, ask_human, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps


@tool
async def search(call: Call, q: str) -> str:
    """Search; wait for the test if it wants that."""
    await call.note(f"searching {q}")
    gate = os.environ.get("GATE")
    while gate and not await anyio.Path(gate).exists():  # noqa: ASYNC110 - a file is what processes share
        await anyio.sleep(0.005)
    return f"all about {q}"


@tool(approve=True)
async def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


LOOK: list[str | Use] = [Use("search", q="cats"), "Found cats."]
EVIL = "\x1b]0;owned\x07\x9b2J\u202eevil"


def _gives_up(messages: Transcript) -> str:
    raise RuntimeError(f"no words after {len(messages)} of them")


searcher = Agent("searcher", model=ScriptedModel(LOOK), tools=[search])
asker = Agent(
    "asker",
    model=ScriptedModel(
        [
            Use("ask_human", question="Which?"),
            lambda messages: f"{messages[-1].uses[0].result}!",
        ]
    ),
    tools=[ask_human],
)
sender = Agent("sender", model=ScriptedModel([Use("send", to="ada"), "Done."]), tools=[send])
capped = Agent("capped", model=ScriptedModel(LOOK), tools=[search], stop=MaxSteps(1))
failing = Agent("failing", model=ScriptedModel(_gives_up))
aside = Agent(
    "aside",
    model=ScriptedModel([Use("ask_human", question="Which?"), *LOOK, "All told."]),
    tools=[ask_human, search],
)
aide = Agent("aide", model=ScriptedModel(["Helped."]))
boss = Agent(
    "boss", model=ScriptedModel([Use("aide", task="Help"), "Led."]), tools=[aide.as_tool()]
)
evil = Agent("evil", model=ScriptedModel([EVIL]))

everyone = [searcher, asker, sender, capped, failing, aside, boss, evil]
