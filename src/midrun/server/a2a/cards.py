"""Agent cards: the description of an agent that A2A clients read before they call."""

from importlib.metadata import version

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from starlette.requests import Request

from midrun.agents.agent import Agent
from midrun.server.a2a import A2A_PATH_PREFIX, PAUSE_METHOD
from midrun.server.mounting import mount_path

PAUSE_EXTENSION_URI = "urn:midrun:a2a:pause:v1"


def card_to_json(request: Request, agent: Agent) -> dict[str, object]:
    """Return the public card as JSON, with the fields of version 0.3 added."""
    return agent_card_to_dict(make_card(request, agent))


def make_card(request: Request, agent: Agent, *, is_extended: bool = False) -> AgentCard:
    """Return the card of an agent, with the address that `request` was sent to.

    The card is public. Only the extended card, for callers with a token, quotes the first line
    of the agent's instructions.
    """
    host, scope = request.headers.get("host", ""), request.scope
    base = f"{scope['scheme']}://{host}{mount_path(scope)}{A2A_PATH_PREFIX}{agent.name}"
    about = f"The agent {agent.name}."
    if is_extended:
        about = agent.instructions.partition("\n")[0] or about
    pause = AgentExtension(
        uri=PAUSE_EXTENSION_URI,
        description=f"{PAUSE_METHOD} {{id}}: stop at the next boundary, keeping everything.",
    )
    skill = AgentSkill(id=agent.name, name=agent.name, description=about, tags=["midrun"])
    return AgentCard(
        name=agent.name,
        description=about,
        version=version("midrun"),
        supported_interfaces=[
            AgentInterface(url=base, protocol_binding=binding, protocol_version="1.0")
            for binding in ("JSONRPC", "HTTP+JSON")
        ],
        capabilities=AgentCapabilities(
            streaming=True, extensions=[pause], extended_agent_card=True
        ),
        security_schemes={
            "bearer": SecurityScheme(
                http_auth_security_scheme=HTTPAuthSecurityScheme(
                    scheme="Bearer", description="A token of this Midrun server."
                )
            )
        },
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})],
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain", "text/markdown"],
        skills=[skill],
    )
