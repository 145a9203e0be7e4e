"""Quotas: bounds on the runs, the spending, the storage and the streams of users and tenants.

The store counts the runs, so a quota holds for all processes that share it.

- The server compares all bounds when a run is started or forked. The two on the number of runs
  are exact: the store counts again in the transaction that creates the run (`RunQuota`).
- A worker compares cost and tokens before each model call (`QuotaLimiter`). If a bound is
  reached, the run loop tells its session, and the run pauses in place of the call, as at a cap.
- Files and artifacts are compared with `stored_bytes` before they are stored.

Between a comparison and its write other runs continue, so cost, tokens and bytes may exceed
their bounds: by the calls in flight and the files under way at that moment, and by those of the
short time for which a slow measurement is used again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

import anyio
from msgspec import Struct
from msgspec.structs import fields, replace

from midrun.agents.file import File
from midrun.core.entries import RunStarted
from midrun.core.ids import MICROS_PER_SECOND, Micros, RunId
from midrun.core.journaled_text import QUOTA_PREFIX
from midrun.core.lru import LruDict
from midrun.core.state import State
from midrun.core.values import NO_SPEND, Actor, Role, Spend, Value
from midrun.errors import Misconfigured
from midrun.ports.environment import Clock
from midrun.ports.store import OwnerUsage, RunQuota, Store

DAY_MICROS: Final = 86_400 * MICROS_PER_SECOND

QuotaScope = Literal["user", "tenant"]

ADVICE: Final = {
    "open_runs": "Wait until a run ends, or end one.",
    "runs_per_day": "Wait until the oldest of these runs is a day old.",
    "cost_per_day": "Wait until the oldest of these runs is a day old.",
    "tokens_per_day": "Wait until the oldest of these runs is a day old.",
    "stored_bytes": "Have an operator delete old runs.",
    "streams": "Close a stream.",
}
"""The advice for each quota that is used up."""


class Quota(Struct, frozen=True, kw_only=True):
    """The bounds on the runs of one user, or of one tenant; None means no bound.

    `open_runs` and `runs_per_day` are never exceeded by a start. Cost and tokens are compared
    at each start of a run and of a model call, bytes at each start and for each file. Streams
    are counted by each server for itself.
    """

    open_runs: int | None = None  # runs that have not ended
    runs_per_day: int | None = None  # runs started within the last 24 hours
    cost_per_day: float | None = None  # dollars that those runs have spent
    tokens_per_day: int | None = None  # tokens that those runs have used
    stored_bytes: int | None = None  # the journals and files of all runs
    streams: int | None = None  # open streams and long polls

    def make_run_quota(self, scope: QuotaScope, actor: Actor, since: Micros) -> RunQuota | None:
        """Return the bounds that the store counts as it creates a run; None without any."""
        if self.open_runs is None and self.runs_per_day is None:
            return None
        return RunQuota(
            tenant=actor.tenant,
            owner=actor.name if scope == "user" else "",
            open_runs=self.open_runs,
            recent_runs=self.runs_per_day,
            since=since,
        )

    def list_used(
        self, usage: OwnerUsage, streams: int = 0
    ) -> "list[tuple[str, float, float]]":
        """Return each bound that is set: its name, the value so far, and the bound."""
        values: dict[str, float] = {
            "open_runs": usage.open_runs,
            "runs_per_day": usage.runs,
            "cost_per_day": usage.cost / 1e6,
            "tokens_per_day": usage.tokens,
            "stored_bytes": usage.stored_bytes,
            "streams": streams,
        }
        return [
            (name, value, bound)
            for name, value in values.items()
            if (bound := getattr(self, name)) is not None
        ]


class UsedQuota(Value, kw_only=True):
    """A quota of a user or a tenant: its bound, and how much of it is used."""

    scope: QuotaScope
    name: str  # of the user or the tenant
    quota: str
    limit: float
    used: float

    @property
    def is_used_up(self) -> bool:
        """Whether one more run, or stream, would exceed the bound."""
        return self.used >= self.limit

    @property
    def owner_label(self) -> str:
        """The user or the tenant, for people."""
        return f"{self.scope} {self.name}" if self.name else f"the default {self.scope}"

    def describe(self) -> str:
        """Return the quota, its bound, its value and advice, as two sentences."""
        return f"{self.describe_use()}. {ADVICE[self.quota]} An operator can raise the quota."

    def describe_use(self) -> str:
        """Return the quota, its value and its bound, without a full stop."""
        # Not `:g`, which writes a million tokens as 1e+06.
        used, limit = (f"{amount:.15g}" for amount in (self.used, self.limit))
        whose = f"{QUOTA_PREFIX}{self.owner_label}"
        return f"{whose} is used up, {self.quota} is at {used} of {limit}"


def list_used(
    scope: QuotaScope, name: str, quota: Quota, usage: OwnerUsage, streams: int = 0
) -> list[UsedQuota]:
    """Return each bound of a user or a tenant with how much of it is used."""
    return [
        UsedQuota(scope=scope, name=name, quota=each, limit=bound, used=value)
        for each, value, bound in quota.list_used(usage, streams)
    ]


def find_retry_after_s(used: UsedQuota, usage: OwnerUsage, now: Micros) -> int | None:
    """Return the seconds until the bound leaves room by itself; None if it never does."""
    if not used.quota.endswith("_per_day") or usage.oldest_start is None:
        return None
    return max(1, ceil((usage.oldest_start + DAY_MICROS - now) / MICROS_PER_SECOND))


class QuotaRules(Struct, frozen=True, kw_only=True):
    """The quotas of a server: of each user, of each tenant, and of single tenants."""

    user: Quota = Quota()
    tenant: Quota = Quota()
    tenants: Mapping[str, Quota] = {}

    def list_scopes(self, actor: Actor) -> list[tuple[QuotaScope, str, Quota]]:
        """Return the quotas that bound `actor`, each with its scope and its name.

        An operator of no tenant has none, and an operator of a tenant only that of the tenant.
        """
        if actor.role == "operator" and not actor.tenant:
            return []
        # A quota protects against a user's mistake or abuse. An operator can raise it, so a
        # quota of their own would bound nothing.
        own = self.user if actor.role == "user" else Quota()
        shared = self.tenants.get(actor.tenant, self.tenant)
        scopes: list[tuple[QuotaScope, str, Quota]] = [
            ("user", actor.name, own),
            ("tenant", actor.tenant, shared),
        ]
        return [each for each in scopes if each[2] != Quota()]


NO_QUOTAS: Final = QuotaRules()

SPEND_QUOTAS: Final = ("cost_per_day", "tokens_per_day")

QUICK_MEASURE_S: Final = 0.005
"""A measurement that takes no more seconds than this is not used again."""

MEASURE_COST_SHARE: Final = 0.05
"""The share of the time that a process spends on slow measurements of one user or tenant."""

MEASURE_KEPT_MAX_S: Final = 60.0
"""The longest time for which a measurement is used again, however slow the store was."""


@dataclass(slots=True)
class _Measured:
    """A usage, and what runs of this process have added to it since it was measured."""

    usage: OwnerUsage
    since: Micros  # the cost and the tokens are those of runs that were started from here on
    until: float  # by the clock of AnyIO
    added: Spend = NO_SPEND
    added_bytes: int = 0


class QuotaLimiter:
    """Compare the spend and the storage of runs with their quotas, while they work."""

    def __init__(self, store: Store, rules: QuotaRules, clock: Clock) -> None:
        self._store = store
        self._rules = rules
        self._clock = clock
        self._measured: LruDict[tuple[str, str, bool], _Measured] = LruDict(max_items=4096)
        self._starts: LruDict[RunId, Micros] = LruDict(max_items=4096)
        self._locks: LruDict[tuple[str, str, bool], anyio.Lock] = LruDict(max_items=4096)

    async def find_used_spend(self, before: State, after: State) -> str:
        """Return the quota on spend that is used up, as text for the journal; "" for none.

        `before` is the state that the store has, `after` the one with the calls that have
        ended since.
        """
        started, spent = before.run_started, after.meter.spent
        for scope, name, quota in self._list_scopes(started):
            if quota.cost_per_day is None and quota.tokens_per_day is None:
                continue
            started_at = await self._find_start(before.run)
            measured = await self._measure(started.tenant, name, scope, sizes=False)
            # The usage has the run with its spend at `before`. A run that was started more than
            # a day ago is not in the usage: it is compared with all its spend, or a run that
            # never ends would never be bounded.
            known = before.meter.spent if started_at >= measured.since else NO_SPEND
            usage, more = measured.usage, measured.added.plus(spent).minus(known)
            usage = replace(
                usage, cost=usage.cost + more.cost, tokens=usage.tokens + more.tokens
            )
            for each in list_used(scope, name, quota, usage):
                if each.quota in SPEND_QUOTAS and each.is_used_up:
                    return each.describe_use()
        return ""

    def add_spend(self, before: State, after: State) -> None:
        """Add the spend of an append to the measurements that are used again."""
        started, old, new = before.run_started, before.meter.spent, after.meter.spent
        if new == old:
            return
        for scope, name, _ in self._list_scopes(started):
            measured = self._measured.get(_make_key(started.tenant, name, scope, sizes=False))
            if measured is None:
                continue
            # The start is known since the call was compared, unless there are too many runs.
            if self._starts.get(before.run, measured.since) >= measured.since:
                measured.added = measured.added.plus(new.minus(old))

    async def find_storage_problem(self, started: RunStarted, files: Sequence[File]) -> str:
        """Say which quota leaves no room for `files` of this run; "" if they fit."""
        size = sum(len(file.data) for file in files)
        measured: list[_Measured] = []
        for scope, name, quota in self._list_scopes(started):
            if not files or quota.stored_bytes is None:
                continue
            found = await self._measure(started.tenant, name, scope, sizes=True)
            used, most = found.usage.stored_bytes + found.added_bytes, quota.stored_bytes
            if used + size > most:
                owner = f"{scope} {name}" if name else f"the default {scope}"
                return (
                    f"Cannot take the file “{files[-1].name}”: the quota of {owner} has no room"
                    f" for {size} bytes, stored_bytes is at {used} of {most}. "
                    f"{ADVICE['stored_bytes']} An operator can raise the quota."
                )
            measured.append(found)
        for found in measured:
            found.added_bytes += size
        return ""

    def _list_scopes(self, started: RunStarted) -> list[tuple[QuotaScope, str, Quota]]:
        role: Role = "operator" if started.role == "operator" else "user"
        starter = Actor(name=started.by, role=role, tenant=started.tenant)
        # A run that names no user counts for its tenant only: to the store, an empty owner
        # means all owners.
        scopes = self._rules.list_scopes(starter)
        return [each for each in scopes if each[0] != "user" or each[1]]

    async def _find_start(self, run: RunId) -> Micros:
        """Return the time at which a run was started."""
        found = self._starts.get(run)
        if found is None:
            found = (await self._store.get_row(run)).started_at
            self._starts.put(run, found)
        return found

    async def _measure(
        self, tenant: str, name: str, scope: QuotaScope, *, sizes: bool
    ) -> _Measured:
        """Return the usage of a user or a tenant; a slow measurement is used again."""
        key = _make_key(tenant, name, scope, sizes=sizes)
        # One at a time: a thousand runs that ask at once share one slow measurement. Runs of
        # others do not wait for it. If the cache has dropped a lock that is in use, two tasks
        # measure at the same time, which costs time only.
        lock = self._locks.get(key)
        if lock is None:
            self._locks.put(key, lock := anyio.Lock())
        async with lock:
            began = anyio.current_time()
            found = self._measured.get(key)
            if found is not None and found.until > began:
                return found
            since = Micros(self._clock() - DAY_MICROS)
            usage = await self._store.get_usage(key[1], since=since, sizes=sizes, tenant=tenant)
            ended = anyio.current_time()
            took = ended - began
            kept_s = min(took / MEASURE_COST_SHARE, MEASURE_KEPT_MAX_S)
            until = ended + kept_s if took > QUICK_MEASURE_S else ended
            found = _Measured(usage, since, until)
            self._measured.put(key, found)
            return found


def _make_key(
    tenant: str, name: str, scope: QuotaScope, *, sizes: bool
) -> tuple[str, str, bool]:
    """Return the key of a measurement: the tenant, the owner or "", and its kind."""
    return tenant, name if scope == "user" else "", sizes


QUOTA_NAMES: Final = tuple(field.name for field in fields(Quota))


def parse_quota_rules(words: Iterable[str]) -> QuotaRules:
    """Return the quotas of words such as `user.open_runs=20` and `tenant:acme.streams=9`.

    A tenant that is named has its own quota; the one of all tenants does not apply to it.

    Raises:
        Misconfigured: a word has another form.
    """
    rules = QuotaRules()
    for word in words:
        left, _, text = word.rpartition("=")
        whose, _, name = left.rpartition(".")
        scope, _, tenant = whose.partition(":")
        value = _parse_bound(word, name, text)
        if scope == "user" and not tenant:
            rules = replace(rules, user=replace(rules.user, **{name: value}))
        elif whose == "tenant":
            rules = replace(rules, tenant=replace(rules.tenant, **{name: value}))
        elif scope == "tenant" and tenant:
            changed = replace(rules.tenants.get(tenant, Quota()), **{name: value})
            rules = replace(rules, tenants={**rules.tenants, tenant: changed})
        else:
            raise _make_error(word)
    return rules


def _parse_bound(word: str, name: str, text: str) -> float:
    try:
        value = float(text) if name == "cost_per_day" else int(text)
    except ValueError:
        raise _make_error(word) from None
    if name not in QUOTA_NAMES or not 0 <= value < float("inf"):
        raise _make_error(word)
    return value


def _make_error(word: str) -> Misconfigured:
    problem = "must be user.NAME=N, tenant.NAME=N or tenant:TENANT.NAME=N, with a NAME of "
    return Misconfigured(f"quota {word}", problem + ", ".join(QUOTA_NAMES))
