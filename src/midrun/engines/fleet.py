"""The fleet: what one of many processes on a store drives, and what it leaves to others.

A limit is for what begins. A run that somebody pauses or cancels is driven to its rest whether
there is room or not, and so is a child run, whose parent holds a place and waits for it.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from midrun.agents.agent import Agent
from midrun.core.head import Head
from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import Misconfigured

WINDING_DOWN: Final = frozenset({Phase.PAUSING, Phase.CANCELLING})

log = logging.getLogger("midrun")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Which runs this process drives.

    `limits` are how many at once, by scope: `all`, `agent:NAME`, `label:LABEL`. They are this
    process's: three processes drive three times as many. What there is no room for waits, for
    room or for another process.

    `versions` says whether runs are driven that another version of their agent has begun, by
    its fingerprint (name, instructions, model, tools): "any", or only the "same". The latter
    lets an old and a new version be deployed side by side, each with its own runs.

    Raises:
        Misconfigured: a limit of nothing, or of less than one run.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    versions: Literal["any", "same"] = "any"

    def __post_init__(self) -> None:
        for scope, limit in self.limits.items():
            kind, _, name = scope.partition(":")
            if scope != "all" and not (kind in {"agent", "label"} and name):
                problem = "a limit is of all, agent:NAME or label:LABEL"
                raise Misconfigured(f"limits {scope!r}", problem)
            if limit < 1:
                raise Misconfigured(f"limits {scope!r}", "it must be 1 or more")
        if self.versions not in {"any", "same"}:
            raise Misconfigured(f"versions {self.versions!r}", "say any or same")


class Room:
    """Counts the runs that are driven here, and knows those that are not for us to drive."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._driven: Counter[str] = Counter()
        self._places: dict[RunId, list[str]] = {}
        self.strange: set[RunId] = set()  # begun by another version of their agent

    def has(self, head: Head) -> bool:
        """Tell whether a run with this head may be taken up."""
        if head.phase in WINDING_DOWN or head.parent:
            return True
        limits = self._fleet.limits
        return all(self._driven[scope] < limits[scope] for scope in self._scopes(head))

    def enter(self, run: RunId, head: Head) -> None:
        """Count a run that is taken up."""
        if run not in self._places:
            self._places[run] = self._scopes(head)
            self._driven.update(self._places[run])

    def leave(self, run: RunId) -> bool:
        """Count it no more; tell whether that has made room."""
        places = self._places.pop(run, [])
        self._driven.subtract(places)
        return bool(places)

    def is_strange(self, state: State, agent: Agent) -> bool:
        """Tell whether a run is for another version of its agent to drive, and say so once."""
        begun = state.started.agent_print
        if self._fleet.versions == "any" or begun in {"", agent.fingerprint}:
            return False
        self.strange.add(state.run)
        log.warning(
            "run %s: not driven here, agent_mismatch: %s %s has begun it, and this is %s; keep"
            " a worker of that version until it has ended, or allow versions='any'",
            state.run,
            agent.name,
            begun,
            agent.fingerprint,
        )
        return True

    def _scopes(self, head: Head) -> list[str]:
        scopes = ("all", f"agent:{head.agent}", *(f"label:{label}" for label in head.labels))
        return [scope for scope in scopes if scope in self._fleet.limits]
