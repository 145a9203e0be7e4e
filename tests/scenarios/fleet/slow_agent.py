"""An agent whose tool call waits for a gate of the test."""

from midrun import Agent
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools


def make_slow_agent(tools: ControllableTools, name: str = "actor") -> Agent:
    """Return an agent that calls `slow` with its task as the name, and then answers."""
    return Agent(
        name,
        model=ScriptedModel(
            lambda m: (
                Use("slow", name=next(iter(m)).text) if m.assistant_turn_count == 0 else "Done."
            )
        ),
        tools=tools.tools(),
    )
