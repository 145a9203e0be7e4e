"""An agent that acts when a test says so."""

from midrun import Agent
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools


def slow(stage: ControllableTools, name: str = "actor") -> Agent:
    """Return an agent whose runs act when the test says so, each under its task's name."""
    return Agent(
        name,
        model=ScriptedModel(
            lambda m: (
                Use("slow", name=next(iter(m)).text) if m.assistant_turn_count == 0 else "Done."
            )
        ),
        tools=stage.tools(),
    )
