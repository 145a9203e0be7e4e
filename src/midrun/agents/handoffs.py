"""Handoffs: tools with which an agent lets another agent continue the same run.

`Agent(handoffs=[…])` adds one tool for each target. A call of it has no effect of its own: its
`RequestedCall` names the target, and at the next boundary `core` appends `HandedOff`. From
there on, the target's model, instructions and tools are in force.

All agents that a run can reach are its family: the agent that started it, the targets of its
handoffs, their targets, and so on. A target can be given by its name, so that two agents can
hand the run to each other. Such a name is looked up in the family.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_fields
from types import MappingProxyType
from typing import Final, Protocol, TypeVar, cast

from midrun.agents.tool import INVALID_NAME_CHARACTER, TOOL_NAME_MAX_CHARS, Tool, tool
from midrun.core.values import SpeakerSettings
from midrun.errors import Misconfigured

TOOL_NAME_PREFIX: Final = "hand_off_to_"


class _FamilyMember(Protocol):
    """The part of an `Agent` that handoffs need; `Agent` imports this module."""

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def framework(self) -> str: ...
    @property
    def program(self) -> object: ...
    @property
    def tools(self) -> Mapping[str, Tool]: ...
    @property
    def output(self) -> object: ...
    @property
    def output_retries(self) -> int: ...
    @property
    def max_parallel(self) -> int: ...
    @property
    def window(self) -> int: ...
    @property
    def family(self) -> "Mapping[str, _FamilyMember]": ...


M = TypeVar("M", bound=_FamilyMember)


def find_handoff_problem(agent: M, targets: Sequence[M | str]) -> str:
    """Return the reason why `agent` cannot hand off to `targets`, or ""."""
    if targets and (agent.program or agent.framework):
        return "Cannot hand off: its own loop decides which agent speaks. Drop handoffs."
    for target in targets:
        if not isinstance(target, str) and (target.program or target.framework):
            return (
                f"Cannot hand off to {target.name}: an agent of another framework has a "
                "conversation of its own. Add it to tools=[…] with as_tool()."
            )
    return ""


def make_handoff_tool(target: _FamilyMember | str) -> Tool:
    """Return the tool with which an agent hands a run to `target`."""
    name, summary = (target, "") if isinstance(target, str) else (target.name, target.summary)

    async def hand_off() -> str:
        return f"{name} has taken over the conversation and continues it."

    tool_name = TOOL_NAME_PREFIX + INVALID_NAME_CHARACTER.sub("_", name)
    tool_name = tool_name[:TOOL_NAME_MAX_CHARS]
    title = f"Hand over to {name}"
    made = tool(hand_off, name=tool_name, read_only=True, title=lambda _: title)
    text = f"Let {name} continue the conversation in your place. {summary}".strip()
    return replace_fields(made, description=text, handoff=name)


def collect_family(root: M, targets: Sequence[M | str]) -> Mapping[str, M]:
    """Return `root` and all agents that its handoffs reach, by name.

    Raises:
        Misconfigured: Two of these agents have the same name.
    """
    family = {root.name: root}
    for target in targets:
        if isinstance(target, str):
            continue
        for name, member in cast("Mapping[str, M]", target.family).items():
            if family.setdefault(name, member) is not member:
                problem = f"Two agents of its handoffs have the name {name}. Rename one."
                raise Misconfigured(f"agent {root.name}", problem)
    return MappingProxyType(family)


def check_family(root: _FamilyMember) -> None:
    """Check that all handoffs of the family lead to agents of the family.

    Raises:
        Misconfigured: A handoff names an agent that is not in the family.
    """
    for member in root.family.values():
        for each in member.tools.values():
            if each.handoff and each.handoff not in root.family:
                problem = (
                    f"Cannot hand off to {each.handoff}: no agent of this name is among the "
                    f"handoffs of {root.name}. Start a run with an agent that reaches it."
                )
                raise Misconfigured(f"agent {member.name}", problem)


def list_speakers(root: _FamilyMember) -> tuple[SpeakerSettings, ...]:
    """Return the settings of the agents that may follow `root` in a run."""
    return tuple(
        SpeakerSettings(
            agent=member.name,
            output_retries=member.output_retries if member.output else 0,
            max_parallel=member.max_parallel,
            window=member.window,
        )
        for member in root.family.values()
        if member is not root
    )
