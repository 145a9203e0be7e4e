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
from midrun.core.run_head import Head, build_head
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import Misconfigured, NoRoom
from midrun.ports.environment import Clock
from midrun.ports.store import Store, select_limits
from midrun.workers.quotas import NO_QUOTAS, QuotaLimiter, QuotaRules

WINDING_DOWN_PHASES: Final = frozenset({Phase.PAUSING, Phase.CANCELLING})
"""Phases in which a run needs a driver only to come to rest."""

PROBES_PER_SWEEP: Final = 4
"""The most runs that one sweep tries in a scope whose fleet limit was reached before."""

LOGGED_MISMATCHES_MAX: Final = 4096
"""The most runs that are remembered as already logged for a version mismatch."""

log = logging.getLogger("midrun")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Settings that decide which runs this process drives.

    `limits` bounds how many runs all processes that share the store drive at once, `here` how
    many this one drives; both by scope: `all`, `agent:NAME`, `label:LABEL`, `tenant:NAME`. The
    store counts the former in the transaction that takes the lease, by the limits that this
    process passes: give every process the same. A run beyond a limit stays queued.

    `versions` tells whether to drive a run that another version of its agent drove last, by
    fingerprint (name, instructions, model, tools): "any", or only the "same". With "same" an
    old and a new version can be deployed side by side, each with its own runs. With "any" a
    takeover is recorded in the journal; from then on the run belongs to the new version.

    `quotas` bound the spend and the storage of users and tenants while runs work: a run whose
    quota of spend is used up pauses before its next model call, and a quota of storage refuses
    files. Give every process the same.

    Raises:
        Misconfigured: a scope that covers no run, or a limit below 1.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    here: Mapping[str, int] = field(default_factory=dict)
    versions: Literal["any", "same"] = "any"
    quotas: QuotaRules = NO_QUOTAS

    def make_quota_limiter(self, store: Store, clock: Clock) -> QuotaLimiter | None:
        """Return the limiter that enforces `quotas` on runs of `store`; None without quotas."""
        return None if self.quotas == NO_QUOTAS else QuotaLimiter(store, self.quotas, clock)

    def __post_init__(self) -> None:
        for scope, limit in (*self.limits.items(), *self.here.items()):
            kind, _, name = scope.partition(":")
            if scope != "all" and not (kind in {"agent", "label", "tenant"} and name):
                problem = "the scope must be all, agent:NAME, label:LABEL or tenant:NAME"
                raise Misconfigured(f"limits {scope!r}", problem)
            if limit < 1:
                raise Misconfigured(f"limits {scope!r}", f"must be 1 or more, got {limit}")
        if self.versions not in {"any", "same"}:
            raise Misconfigured(f"versions {self.versions!r}", "must be 'any' or 'same'")


class ConcurrencyLimiter:
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
        self._driven_by_scope: Counter[str] = Counter()
        # The scopes that each driven run counts for, as of its start. Labels never change, but
        # the count must go down by exactly what it went up.
        self._scopes_by_run: dict[RunId, list[str]] = {}
        # Scopes whose fleet limit the store reported as reached: in this sweep, and in the one
        # before. `_probes_by_scope` counts the runs tried in scopes of the latter in this
        # sweep.
        self._reached_scopes: set[str] = set()
        self._reached_last_sweep: set[str] = set()
        self._probes_by_scope: Counter[str] = Counter()
        # How many runs of each scope came to rest anywhere in the fleet, as far as this
        # process has noticed; and that count at the time each run asked for its lease. A
        # refusal that is older than the latest rest may be out of date.
        self._rests_by_scope: Counter[str] = Counter()
        self._rests_when_asked: dict[RunId, Mapping[str, int]] = {}
        self._blocked_heads: dict[RunId, Head] = {}  # turned away, with the head that was read
        self._own_leases: set[RunId] = set()  # the store already counts them for this process
        self._logged_mismatches: dict[RunId, None] = {}  # logged as mismatched, oldest first
        # Runs that another version of their agent has to drive, with the seq at which that
        # was found. Any later entry may be a takeover, so they are then checked again.
        self.version_mismatches: dict[RunId, Seq] = {}

    def begin_sweep(self, *, full: bool) -> None:
        """Begin a sweep; with `full` also forget which runs are known to be blocked.

        A blocked run may have changed without a notification, to cancelling, say. So a full
        sweep reads its row again.
        """
        # A refusal is believed for the rest of its sweep, and doubted in the next one: a place
        # may have become free in another process, which no notification has told.
        self._reached_last_sweep, self._reached_scopes = self._reached_scopes, set()
        self._probes_by_scope.clear()
        if full:
            self._blocked_heads.clear()

    def is_known_blocked(self, run: RunId) -> bool:
        """Tell whether `run` is still blocked, from its remembered head, without a read."""
        head = self._blocked_heads.get(run)
        return head is not None and not self._has_free_place(head)

    def can_start(self, run: RunId, head: Head) -> bool:
        """Tell whether a run may start; remember it if it may not."""
        self._blocked_heads.pop(run, None)
        if _is_exempt(head) or self._has_free_place(head):
            return True
        self._blocked_heads[run] = head
        return False

    def record_rest(self, head: Head) -> bool:
        """Record that a run came to rest; tell whether blocked runs wait for it."""
        scopes = select_limits(self._fleet.limits, head)
        self._rests_by_scope.update(scopes.keys())
        return not (self._reached_scopes | self._reached_last_sweep).isdisjoint(scopes)

    def add_run(self, run: RunId, head: Head, *, own: bool = False) -> None:
        """Count a run that is started.

        `own` tells that the store already counts it for this process.
        """
        if own:
            self._own_leases.add(run)
        if run not in self._scopes_by_run:
            limits = {**self._fleet.limits, **self._fleet.here}
            self._scopes_by_run[run] = list(select_limits(limits, head))
            self._driven_by_scope.update(self._scopes_by_run[run])
            self._probes_by_scope.update(
                self._reached_last_sweep.intersection(self._scopes_by_run[run])
            )

    def remove_run(self, run: RunId) -> bool:
        """Stop counting a run; tell whether that freed a place."""
        self._rests_when_asked.pop(run, None)
        self._own_leases.discard(run)
        scopes = self._scopes_by_run.pop(run, [])
        self._driven_by_scope.subtract(scopes)
        return bool(scopes)

    def get_lease_limits(self, state: State) -> Mapping[str, int]:
        """Return the fleet limits under which a run takes its lease.

        The driver calls this just before it takes the lease and passes the limits to the store.

        Raises:
            NoRoom: the store has reported one of them as reached in this sweep.
        """
        head = build_head(state)
        limits = {} if _is_exempt(head) else select_limits(self._fleet.limits, head)
        # The runs of one sweep take their leases concurrently. The first refusal spares the
        # others the round trip. A run that this process still holds is not counted twice by the
        # store, so it is never turned away here.
        for scope in self._reached_scopes.intersection(
            () if state.run in self._own_leases else limits
        ):
            raise NoRoom(state.run, scope, limits[scope])
        self._rests_when_asked[state.run] = {
            scope: self._rests_by_scope[scope] for scope in limits
        }
        return limits

    def limit_reached(self, refused: NoRoom) -> bool:
        """Record that the store refused a lease; tell whether to sweep again at once.

        A run may have come to rest between the request and the refusal. Then the place that it
        freed was not counted.
        """
        run, scope = RunId(refused.run), refused.scope
        self._reached_scopes.add(scope)
        # No count is recorded if no limit covered the run at the last attempt (it was pausing,
        # and the pause was withdrawn since). Then nothing tells that the refusal is outdated.
        counted = self._rests_when_asked.get(run, {}).get(scope, self._rests_by_scope[scope])
        # A run has rested after this one had asked. The store may have counted before that.
        outdated = self._rests_by_scope[scope] > counted
        self.remove_run(run)
        return outdated

    def has_version_mismatch(self, state: State, agent: Agent) -> bool:
        """Tell whether another version of the agent must drive the run; log it once."""
        last_fingerprint = state.agent_fingerprint
        if self._fleet.versions == "any" or last_fingerprint in {"", agent.fingerprint}:
            return False
        if state.run not in self._logged_mismatches:
            self._logged_mismatches[state.run] = None
            if len(self._logged_mismatches) > LOGGED_MISMATCHES_MAX:
                del self._logged_mismatches[next(iter(self._logged_mismatches))]
            log.warning(
                "Cannot drive run %s here (agent_mismatch): %s of version %s drove it last,"
                " this is %s. Keep a worker of that version until the run has ended, or start"
                " one with versions='any' to take it over; the journal records that.",
                state.run,
                agent.name,
                last_fingerprint,
                agent.fingerprint,
            )
        self.version_mismatches[state.run] = state.seq
        return True

    def journal_grew(self, run: RunId, seq: Seq) -> None:
        """Forget a version mismatch of `run` if its journal has grown since."""
        if self.version_mismatches.get(run, seq) < seq:
            del self.version_mismatches[run]

    def _has_free_place(self, head: Head) -> bool:
        fleet, counts = select_limits(self._fleet.limits, head), self._driven_by_scope
        here = select_limits(self._fleet.here, head)
        # Fleet limits first: refused in this sweep, or probed often enough. Then both kinds of
        # limits against the runs that this process drives itself.
        if any(
            scope in self._reached_scopes or self._probes_by_scope[scope] >= PROBES_PER_SWEEP
            for scope in fleet
        ):
            return False
        return not any(
            counts[scope] >= limit
            for limits in (fleet, here)
            for scope, limit in limits.items()
        )


def _is_exempt(head: Head) -> bool:
    """Tell whether no limit applies: the run winds down or is a child."""
    return head.phase in WINDING_DOWN_PHASES or head.parent != ""
