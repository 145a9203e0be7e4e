"""The `app.py` that the commands on the pages use."""

from midrun import Agent, ask_human, tool
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps


@tool(approve=True)
async def search(q: str) -> str:
    """Search, after a person has approved it."""
    return f"all about {q}"


researcher = Agent(
    "researcher",
    model=ScriptedModel([Use("search", q="cats"), Use("search", q="more"), "Found cats."]),
    tools=[search],
    stop=MaxSteps(20),
)
clerk = Agent(
    "clerk",
    model=ScriptedModel([Use("ask_human", question="Which box?"), "Sorted."]),
    tools=[ask_human],
)
