"""An agent to try the deployment with, without an API key. Replace it with your own."""

from midrun import Agent, tool
from midrun.models import ScriptedModel, Use


@tool
def read(topic: str) -> str:
    """Read about a topic, in a process of its own."""
    return f"All about {topic}."


clerk = Agent(
    "clerk", model=ScriptedModel([Use("read", topic="mail"), "Sorted."]), tools=[read]
)
