"""An app for tests of the command: agents that search, ask, send, fail, and print escapes."""

import os

import anyio

from midrun import Agent, Call, ask_human, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps


@tool
async def search(call: Call, q: str) -> str:
    """Search, after the file `GATE` exists."""
    await call.note(f"searching {q}")
    gate = os.environ.get("GATE")
    while gate and not await anyio.Path(gate).exists():  # noqa: ASYNC110 - processes share a file, not an event
        await anyio.sleep(0.005)
    return f"all about {q}"


@tool(approve=True)
async def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


@tool
async def draw(call: Call) -> str:
    """Show drafts, and a file with a name that is a path."""
    await call.show("plan.md", "text/markdown", "# One")
    await call.show("plan.md", "text/markdown", "# Two")
    await call.show("../../etc", "text/plain", "x")
    return "drawn"


SEARCH_TURNS: list[str | Use] = [Use("search", q="cats"), "Found cats."]
ESCAPE_SEQUENCES = "\x1b]0;owned\x07\x9b2J\u202eevil"


def _raise_error(messages: Transcript) -> str:
    raise RuntimeError(f"no words after {len(messages)} of them")


searcher = Agent("searcher", model=ScriptedModel(SEARCH_TURNS), tools=[search])
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
capped = Agent("capped", model=ScriptedModel(SEARCH_TURNS), tools=[search], stop=MaxSteps(1))
failing = Agent("failing", model=ScriptedModel(_raise_error))
aside = Agent(
    "aside",
    model=ScriptedModel([Use("ask_human", question="Which?"), *SEARCH_TURNS, "All told."]),
    tools=[ask_human, search],
)
painter = Agent("painter", model=ScriptedModel([Use("draw"), "Drawn."]), tools=[draw])
aide = Agent("aide", model=ScriptedModel(["Helped."]))
boss = Agent(
    "boss", model=ScriptedModel([Use("aide", task="Help"), "Led."]), tools=[aide.as_tool()]
)
evil = Agent("evil", model=ScriptedModel([ESCAPE_SEQUENCES]))

all_agents = [searcher, asker, sender, capped, failing, aside, boss, evil, painter]
