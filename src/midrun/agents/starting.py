"""What a run takes from its agent when it starts."""

from typing import Protocol, TypedDict

from midrun.core.stops import Stop


class Started(TypedDict):
    """The fields of `RunStarted` that come from the agent."""

    agent: str
    agent_print: str
    stop: Stop | None
    frame_depth: int
    frame_ttl: int
    window: int


class Delegate(Protocol):
    """An agent, as far as a tool needs to know it whose calls are runs of that agent."""

    @property
    def name(self) -> str:
        """What journals know it by."""
        ...

    def spec(self, stop: Stop | None = None) -> Started:
        """Return what a run of this agent starts with."""
        ...
