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
from midrun.core.ids import RunId, Seq
from midrun.core.run_head import Head, head_of
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import Misconfigured, NoRoom
from midrun.ports.store import covering

WINDING_DOWN: Final = frozenset({Phase.PAUSING, Phase.CANCELLING})

PROBES: Final = 4
"""How many runs one look tries where a limit of the fleet was reached at the last."""

NAMED_MAX: Final = 4096
"""Of how many runs it is remembered that it was said why they are not driven here."""

log = logging.getLogger("midrun")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Which runs this process drives.

    `limits` are how many runs are driven at once by all processes that share the store, and
    `here` how many by this one; both by scope: `all`, `agent:NAME`, `label:LABEL`. The store
    counts the former in the transaction that takes a run up, by what the taker was given: give
    every process the same. What there is no room for stays queued.

    `versions` says whether runs are driven that another version of their agent drove last, by
    its fingerprint (name, instructions, model, tools): "any", or only the "same". The latter
    lets an old and a new version be deployed side by side, each with its own runs. That "any"
    has taken a run over stands in its journal: from then on it is the new version's.

    Raises:
        Misconfigured: a limit of nothing, or of less than one run.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    here: Mapping[str, int] = field(default_factory=dict)
    versions: Literal["any", "same"] = "any"

    def __post_init__(self) -> None:
        for scope, limit in (*self.limits.items(), *self.here.items()):
            kind, _, name = scope.partition(":")
            if scope != "all" and not (kind in {"agent", "label"} and name):
                problem = "a limit is of all, agent:NAME or label:LABEL"
                raise Misconfigured(f"limits {scope!r}", problem)
            if limit < 1:
                raise Misconfigured(f"limits {scope!r}", "it must be 1 or more")
        if self.versions not in {"any", "same"}:
            raise Misconfigured(f"versions {self.versions!r}", "say any or same")


class Room:
    """Counts the runs that are driven here, and knows what there is no room for.

    The store has the last word on the limits of the fleet. Where it said that one is reached,
    nobody asks again before somebody `looks`.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._driven: Counter[str] = Counter()
        self._places: dict[RunId, list[str]] = {}
        self._full: set[str] = set()  # scopes
        self._short: set[str] = set()  # that were full before this look ...
        self._tried: Counter[str] = Counter()  # ... and how many runs were tried since
        self._rests: Counter[str] = Counter()  # that we heard of, by scope
        self._asked: dict[RunId, Mapping[str, int]] = {}  # how many those were when we asked
        self._waiting: dict[RunId, Head] = {}  # turned away, as they were when they were read
        self._own: set[RunId] = set()  # whose lease this process has had all the time
        self._named: dict[RunId, None] = {}  # as strange, in the log; in order
        self.strange: dict[RunId, Seq] = {}  # another version's, when their journal was so long

    def looks(self, *, everywhere: bool) -> None:
        """Prepare for another look; `everywhere`: also at runs that are known to wait."""
        self._short, self._full = self._full, set()
        self._tried.clear()
        if everywhere:
            self._waiting.clear()

    def waits(self, run: RunId) -> bool:
        """Tell whether it need not be read that `run` has no room: nothing has changed."""
        head = self._waiting.get(run)
        return head is not None and not self._fits(head)

    def has(self, run: RunId, head: Head) -> bool:
        """Tell whether a run with this head may be taken up."""
        self._waiting.pop(run, None)
        if _is_free(head) or self._fits(head):
            return True
        self._waiting[run] = head
        return False

    def rested(self, head: Head) -> bool:
        """Hear that a run rests, wherever it was driven; tell whether others wait for that."""
        scopes = covering(self._fleet.limits, head)
        self._rests.update(scopes.keys())
        return not (self._full | self._short).isdisjoint(scopes)

    def enter(self, run: RunId, head: Head, *, own: bool = False) -> None:
        """Count a run that is taken up; `own`: it is counted in the store as ours already."""
        if own:
            self._own.add(run)
        if run not in self._places:
            both = {**self._fleet.limits, **self._fleet.here}
            self._places[run] = list(covering(both, head))
            self._driven.update(self._places[run])
            self._tried.update(self._short.intersection(self._places[run]))

    def leave(self, run: RunId) -> bool:
        """Count it no more; tell whether that has made room."""
        self._asked.pop(run, None)
        self._own.discard(run)
        places = self._places.pop(run, [])
        self._driven.subtract(places)
        return bool(places)

    def limits_on(self, state: State) -> Mapping[str, int]:
        """Return the limits of the fleet under which a run is taken up.

        Raises:
            NoRoom: one of them is reached, as the store said just now.
        """
        head = head_of(state)
        limits = {} if _is_free(head) else covering(self._fleet.limits, head)
        for scope in self._full.intersection(() if state.run in self._own else limits):
            raise NoRoom(state.run, scope, limits[scope])
        self._asked[state.run] = {scope: self._rests[scope] for scope in limits}
        return limits

    def fill(self, refused: NoRoom) -> bool:
        """Hear that a limit of the fleet is reached; tell whether that may be over by now."""
        run, scope = RunId(refused.run), refused.scope
        self._full.add(scope)
        before = self._asked.get(run, {}).get(scope, self._rests[scope])
        over = self._rests[scope] > before
        self.leave(run)
        return over

    def is_strange(self, state: State, agent: Agent) -> bool:
        """Tell whether a run is for another version of its agent to drive, and say so once."""
        its = state.agent_print
        if self._fleet.versions == "any" or its in {"", agent.fingerprint}:
            return False
        if state.run not in self._named:
            self._named[state.run] = None
            if len(self._named) > NAMED_MAX:
                del self._named[next(iter(self._named))]
            log.warning(
                "run %s: not driven here, agent_mismatch: %s %s drove it last, and this is %s;"
                " keep a worker of that version until it has ended, or have one take it over"
                " with versions='any', which is journaled",
                state.run,
                agent.name,
                its,
                agent.fingerprint,
            )
        self.strange[state.run] = state.seq
        return True

    def hears(self, run: RunId, seq: Seq) -> None:
        """Hear that a journal has grown: another version may have taken the run over."""
        if self.strange.get(run, seq) < seq:
            del self.strange[run]

    def _fits(self, head: Head) -> bool:
        fleet, driven = covering(self._fleet.limits, head), self._driven
        here = covering(self._fleet.here, head)
        if any(scope in self._full or self._tried[scope] >= PROBES for scope in fleet):
            return False
        return not any(
            driven[scope] >= most for limits in (fleet, here) for scope, most in limits.items()
        )


def _is_free(head: Head) -> bool:
    """Tell whether a run needs no room: it winds down, or its parent waits for it."""
    return head.phase in WINDING_DOWN or head.parent != ""
