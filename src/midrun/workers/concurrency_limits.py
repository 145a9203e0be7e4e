"""Decide which runs this worker may start: concurrency limits and agent versions.

A limit bounds how many runs of a scope are driven at the same time, in the whole fleet or in
this process. It applies only to a run that begins to work. A run that is being paused or
cancelled is driven to its rest even if the limit is reached, and so is a child run: its parent
holds a place and waits for it.
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
"""Phases in which a run needs a driver only to come to rest."""

PROBES: Final = 4
"""The most runs that one sweep tries in a scope whose fleet limit was reached before."""

NAMED_MAX: Final = 4096
"""The most runs that are remembered as already logged for a version mismatch."""

log = logging.getLogger("midrun")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Settings that decide which runs this process drives.

    `limits` bounds how many runs all processes that share the store drive at once, `here` how
    many this one drives; both by scope: `all`, `agent:NAME`, `label:LABEL`. The store counts
    the former in the transaction that takes the lease, by the limits that this process passes:
    give every process the same. A run beyond a limit stays queued.

    `versions` tells whether to drive a run that another version of its agent drove last, by
    fingerprint (name, instructions, model, tools): "any", or only the "same". With "same" an
    old and a new version can be deployed side by side, each with its own runs. With "any" a
    takeover is recorded in the journal; from then on the run belongs to the new version.

    Raises:
        Misconfigured: a scope that covers no run, or a limit below 1.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    here: Mapping[str, int] = field(default_factory=dict)
    versions: Literal["any", "same"] = "any"

    def __post_init__(self) -> None:
        for scope, limit in (*self.limits.items(), *self.here.items()):
            kind, _, name = scope.partition(":")
            if scope != "all" and not (kind in {"agent", "label"} and name):
                problem = "the scope must be all, agent:NAME or label:LABEL"
                raise Misconfigured(f"limits {scope!r}", problem)
            if limit < 1:
                raise Misconfigured(f"limits {scope!r}", f"must be 1 or more, got {limit}")
        if self.versions not in {"any", "same"}:
            raise Misconfigured(f"versions {self.versions!r}", "must be 'any' or 'same'")


class Room:
    """Count the runs that are driven here, and decide whether another may start.

    Two kinds of limits meet here. The limits of this process (`Fleet.here`) are counted
    exactly, by `add_run` and `remove_run`. The limits of the fleet (`Fleet.limits`) can only be
    counted by the store, in the transaction that takes a lease; this class only avoids useless
    attempts. It knows three things about a fleet limit:

    - this process alone already drives that many runs: no attempt is made;
    - the store has refused a lease for the scope since the sweep began: no attempt is made
      until the next sweep;
    - the store refused one during the previous sweep: the limit is probably still reached, but
      a place may have become free. Up to `PROBES_PER_SWEEP` runs are tried. So a long queue
      does not cost a read and a refused lease for each of its runs in every sweep.

    A run that was turned away is remembered with its head. While nothing has changed for its
    scopes, a sweep skips it without reading its row.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._driven: Counter[str] = Counter()
        self._places: dict[RunId, list[str]] = {}  # the scopes that each driven run counts for
        # Scopes whose fleet limit the store reported as reached: in this sweep, and in the one
        # before. `_probes_by_scope` counts the runs tried in scopes of the latter in this
        # sweep.
        self._full: set[str] = set()
        self._short: set[str] = set()
        self._tried: Counter[str] = Counter()
        # How many runs of each scope came to rest anywhere in the fleet, as far as this
        # process has noticed; and that count at the time each run asked for its lease. A
        # refusal that is older than the latest rest may be out of date.
        self._rests: Counter[str] = Counter()
        self._asked: dict[RunId, Mapping[str, int]] = {}
        self._waiting: dict[RunId, Head] = {}  # turned away, with the head that was read
        self._own: set[RunId] = set()  # the store already counts them for this process
        self._named: dict[RunId, None] = {}  # logged as mismatched, oldest first
        # Runs that another version of their agent has to drive, with the seq at which that
        # was found. Any later entry may be a takeover, so they are then checked again.
        self.strange: dict[RunId, Seq] = {}

    def looks(self, *, everywhere: bool) -> None:
        """Begin a sweep; with `full` also forget which runs are known to be blocked.

        A blocked run may have changed without a notification, to cancelling, say. So a full
        sweep reads its row again.
        """
        self._short, self._full = self._full, set()
        self._tried.clear()
        if everywhere:
            self._waiting.clear()

    def waits(self, run: RunId) -> bool:
        """Tell whether `run` is still blocked, from its remembered head, without a read."""
        head = self._waiting.get(run)
        return head is not None and not self._fits(head)

    def has(self, run: RunId, head: Head) -> bool:
        """Tell whether a run may start; remember it if it may not."""
        self._waiting.pop(run, None)
        if _is_free(head) or self._fits(head):
            return True
        self._waiting[run] = head
        return False

    def rested(self, head: Head) -> bool:
        """Record that a run came to rest; tell whether blocked runs wait for it."""
        scopes = covering(self._fleet.limits, head)
        self._rests.update(scopes.keys())
        return not (self._full | self._short).isdisjoint(scopes)

    def enter(self, run: RunId, head: Head, *, own: bool = False) -> None:
        """Count a run that is started.

        `own` tells that the store already counts it for this process.
        """
        if own:
            self._own.add(run)
        if run not in self._places:
            limits = {**self._fleet.limits, **self._fleet.here}
            self._places[run] = list(covering(limits, head))
            self._driven.update(self._places[run])
            self._tried.update(self._short.intersection(self._places[run]))

    def leave(self, run: RunId) -> bool:
        """Stop counting a run; tell whether that freed a place."""
        self._asked.pop(run, None)
        self._own.discard(run)
        scopes = self._places.pop(run, [])
        self._driven.subtract(scopes)
        return bool(scopes)

    def limits_on(self, state: State) -> Mapping[str, int]:
        """Return the fleet limits under which a run takes its lease.

        The driver calls this just before it takes the lease and passes the limits to the store.

        Raises:
            NoRoom: the store has reported one of them as reached in this sweep.
        """
        head = head_of(state)
        limits = {} if _is_free(head) else covering(self._fleet.limits, head)
        # The runs of one sweep take their leases concurrently. The first refusal spares the
        # others the round trip. A run that this process still holds is not counted twice by the
        # store, so it is never turned away here.
        for scope in self._full.intersection(() if state.run in self._own else limits):
            raise NoRoom(state.run, scope, limits[scope])
        self._asked[state.run] = {scope: self._rests[scope] for scope in limits}
        return limits

    def fill(self, refused: NoRoom) -> bool:
        """Record that the store refused a lease; tell whether to sweep again at once.

        A run may have come to rest between the request and the refusal. Then the place that it
        freed was not counted.
        """
        run, scope = RunId(refused.run), refused.scope
        self._full.add(scope)
        # No count is recorded if no limit covered the run at the last attempt (it was pausing,
        # and the pause was withdrawn since). Then nothing tells that the refusal is outdated.
        counted = self._asked.get(run, {}).get(scope, self._rests[scope])
        outdated = self._rests[scope] > counted
        self.leave(run)
        return outdated

    def is_strange(self, state: State, agent: Agent) -> bool:
        """Tell whether another version of the agent must drive the run; log it once."""
        last_fingerprint = state.agent_print
        if self._fleet.versions == "any" or last_fingerprint in {"", agent.fingerprint}:
            return False
        if state.run not in self._named:
            self._named[state.run] = None
            if len(self._named) > NAMED_MAX:
                del self._named[next(iter(self._named))]
            log.warning(
                "Cannot drive run %s here (agent_mismatch): %s of version %s drove it last,"
                " this is %s. Keep a worker of that version until the run has ended, or start"
                " one with versions='any' to take it over; the journal records that.",
                state.run,
                agent.name,
                last_fingerprint,
                agent.fingerprint,
            )
        self.strange[state.run] = state.seq
        return True

    def hears(self, run: RunId, seq: Seq) -> None:
        """Forget a version mismatch of `run` if its journal has grown since."""
        if self.strange.get(run, seq) < seq:
            del self.strange[run]

    def _fits(self, head: Head) -> bool:
        fleet, counts = covering(self._fleet.limits, head), self._driven
        here = covering(self._fleet.here, head)
        # Fleet limits first: refused in this sweep, or probed often enough. Then both kinds of
        # limits against the runs that this process drives itself.
        if any(scope in self._full or self._tried[scope] >= PROBES for scope in fleet):
            return False
        return not any(
            counts[scope] >= limit
            for limits in (fleet, here)
            for scope, limit in limits.items()
        )


def _is_free(head: Head) -> bool:
    """Tell whether no limit applies: the run winds down or is a child."""
    return head.phase in WINDING_DOWN or head.parent != ""
