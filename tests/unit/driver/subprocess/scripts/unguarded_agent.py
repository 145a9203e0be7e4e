"""A script without a main guard whose agent has a blocking tool in the same file."""

import anyio

from midrun import Agent, Failed, tool
from midrun.models import ScriptedModel, Use


@tool
def greet() -> str:
    """Say hello."""
    return "hello"


async def main() -> None:
    """Run the agent."""
    agent = Agent("clerk", model=ScriptedModel([Use("greet"), "Done."]), tools=[greet])
    outcome = await agent.run("Greet.")
    assert isinstance(outcome, Failed), outcome
    print(f"{outcome.code}: {outcome.error}")  # noqa: T201


anyio.run(main)
