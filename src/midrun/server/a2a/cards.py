"""Agent cards: what A2A clients read before they call."""

from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
)

from midrun.agents.agent import Agent
from midrun.server.a2a import PAUSE_METHOD

PAUSE_URI = "urn:midrun:a2a:pause:v1"


def card_of(agent: Agent, base: str, version: str) -> AgentCard:
    """Return the card of an agent that is served under `base`."""
    about = agent.instructions.partition("\n")[0] or f"The agent {agent.name}."
    pause = AgentExtension(
        uri=PAUSE_URI,
        description=f"{PAUSE_METHOD} {{id}}: stop at the next boundary, keeping everything.",
    )
    skill = AgentSkill(id=agent.name, name=agent.name, description=about, tags=["midrun"])
    return AgentCard(
        name=agent.name,
        description=about,
        version=version,
        supported_interfaces=[
            AgentInterface(url=base, protocol_binding=binding, protocol_version="1.0")
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        capabilities=AgentCapabilities(streaming=True, extensions=[pause]),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain", "text/markdown"],
        skills=[skill],
    )
