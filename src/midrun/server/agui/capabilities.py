"""What an agent can do, as AG-UI has words for it."""

from midrun.agents.agent import Agent
from midrun.core.stops import AnyOf, MaxSteps, MaxTime, Stop
from midrun.server.agui.segment import Event

_HUMAN: Event = {
    "supported": True,
    "approvals": True,
    "interventions": True,
    "interrupts": True,
    "approveWithEdits": True,
}


def capabilities(agent: Agent) -> Event:
    """Return what clients may expect of the agent; its own caps say how long it may take."""
    found: Event = {
        "transport": {"streaming": True, "resumable": True},
        "humanInTheLoop": _HUMAN,
    }
    execution = _execution(agent.stop)
    return found | ({"execution": execution} if execution else {})


def _execution(stop: Stop | None) -> dict[str, int]:
    """Return the bounds that hold by themselves: whichever is met first stops the run."""
    match stop:
        case MaxSteps(n):
            return {"maxIterations": n}
        case MaxTime(seconds, minutes):
            return {"maxExecutionTime": round((seconds + minutes * 60) * 1000)}  # milliseconds
        case AnyOf(parts):
            found: dict[str, int] = {}
            for name, bound in (pair for part in parts for pair in _execution(part).items()):
                found[name] = min(bound, found.get(name, bound))
            return found
        case _:
            return {}
