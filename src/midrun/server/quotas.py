"""Quotas: bounds on the runs, the spending, the storage and the streams of users and tenants.

The store counts the runs, so a quota holds for all servers that share it. It is checked when a
run is started or forked. Runs that have started go on; their own caps bound them.

The two bounds on the number of runs are exact: the store counts again in the transaction that
creates the run (`RunQuota`). The others are compared with the values before the start. Runs
that work at the same time go on spending and storing, so these values may exceed their bounds.
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import fields, replace

from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.core.values import Actor, Value
from midrun.errors import Misconfigured
from midrun.ports.store import OwnerUsage, RunQuota

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

    `open_runs` and `runs_per_day` are never exceeded by a start. Cost, tokens and bytes are
    compared when a run starts, and grow while it works. Streams are counted by each server for
    itself.
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

    def describe(self) -> str:
        """Return the quota, its bound, its value and advice, as two sentences."""
        whose = f"{self.scope} {self.name}" if self.name else f"the default {self.scope}"
        text = f"the quota of {whose} is used up, {self.quota} is at {self.used:g} of"
        return f"{text} {self.limit:g}. {ADVICE[self.quota]} An operator can raise the quota."


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
