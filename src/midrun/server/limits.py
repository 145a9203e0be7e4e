"""Limits of one server: settings, and the counters that enforce them per caller and address.

`Allowance` counts changes (a token bucket), streams and heavy reads by the caller's name.
`FailedSignIns` slows down guessing, by address, because a wrong credential has no name.
Connections are bounded elsewhere, in `connections.py`, before a request exists.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Network, ip_address
from math import ceil
from typing import Final

from msgspec import Struct

from midrun.core.lru import LruDict
from midrun.core.values import Actor
from midrun.server.problem_details import HttpProblem
from midrun.workers.quotas import Quota, QuotaRules, UsedQuota

CALLERS_MAX: Final = 4096
"""The number of callers in memory; one that is forgotten has its full allowance again."""


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds of one server; those on rates and streams are per caller."""

    body: int = 1024 * 1024  # bytes of a request body
    checkpoint: int = 64 * 1024 * 1024  # bytes of a body that carries a checkpoint
    upload: int = 32 * 1024 * 1024  # bytes of a body that may carry files, as base64
    depth: int = 64  # levels of nested JSON
    rate: float = 50.0  # changes per second in the long run, ...
    burst: int = 200  # ... and at once
    streams: int = 256  # open streams and long polls, together
    heavy_reads: int = 8  # reads of whole journals that run or wait
    pending: int = 8  # messages and redirects that wait for their boundary, per run
    wait: float = 60.0  # seconds of the longest long poll
    ping: float = 15.0  # seconds between two pings on an idle stream
    patience: float = 30.0  # seconds to wait for a client that does not send or read
    headers: float = 10.0  # seconds until the headers of a request are complete
    quota: Quota = Quota()  # of each user; operators have none
    tenant_quota: Quota = Quota()  # of each tenant that is not in ...
    tenant_quotas: Mapping[str, Quota] = {}  # ... this: the quotas of single tenants
    connections: int = 0  # open connections; 0: derived from the limit of open files
    connections_per_address: int = 0  # 0: half of them; all of them if proxies are declared
    failures: int = 20  # wrong tokens or codes from one address at once, ...
    failure_rate: float = 0.5  # ... and per second in the long run

    @property
    def quota_rules(self) -> QuotaRules:
        """All quotas together."""
        return QuotaRules(user=self.quota, tenant=self.tenant_quota, tenants=self.tenant_quotas)


class Allowance:
    """Counts the changes, streams and heavy reads of each caller."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        # A token bucket per caller: the changes left, and when that was computed. The bucket
        # refills on demand, so no timer is needed.
        self._changes_left: dict[str, tuple[float, float]] = {}
        self._streams: Counter[str] = Counter()
        self._streams_of_tenants: Counter[str] = Counter()
        self.quota_refusals = 0  # since the start of the process
        self._heavy_reads: Counter[str] = Counter()

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return self._streams.total()

    @property
    def heavy_reads(self) -> int:
        """The number of reads of whole journals that run or wait for their turn."""
        return self._heavy_reads.total()

    def count_change(self, caller: str) -> None:
        """Count one change.

        Raises:
            HttpProblem: 429, with `Retry-After`.
        """
        now, limits = self._now(), self._limits
        # Popped and put back, so that the dict is ordered by last use; the first is evicted.
        left, then = self._changes_left.pop(caller, (float(limits.burst), now))
        # The bucket has refilled since the last change, up to its size.
        left = min(left + (now - then) * limits.rate, limits.burst)
        while len(self._changes_left) >= CALLERS_MAX:
            del self._changes_left[next(iter(self._changes_left))]
        self._changes_left[caller] = (max(left - 1, 0.0), now)
        if left < 1:
            wait = max(1, round((1 - left) / limits.rate))
            problem = (
                f"Cannot take another change from {caller}: the limit is {limits.rate:g} per "
                f"second. Wait {wait} s."
            )
            header = {"Retry-After": str(wait)}
            raise HttpProblem("too_many_requests", 429, problem, headers=header)

    def count_open_streams(self, scope: str, caller: str, actor: Actor) -> int:
        """Return the open streams of the caller, or of its tenant."""
        return (
            self._streams[caller] if scope == "user" else self._streams_of_tenants[actor.tenant]
        )

    def check_stream(self, caller: str, actor: Actor) -> None:
        """Refuse one more stream of a caller, or of a tenant, that has too many.

        Raises:
            HttpProblem: 429.
        """
        for scope, name, quota in self._limits.quota_rules.list_scopes(actor):
            if quota.streams is not None:
                used = UsedQuota(
                    scope=scope,
                    name=name,
                    quota="streams",
                    limit=quota.streams,
                    used=self.count_open_streams(scope, caller, actor),
                )
                if used.is_used_up:
                    raise self.make_quota_problem("Cannot open another stream", used, 5)
        most = self._limits.streams
        if self._streams[caller] >= most:
            problem = f"Cannot open another stream: {most} of {caller} are open. Close one."
            raise HttpProblem("too_many_streams", 429, problem, headers={"Retry-After": "5"})

    def make_quota_problem(
        self, what: str, used: UsedQuota, retry_after_s: int | None
    ) -> HttpProblem:
        """Return the refusal for a quota that is used up, and count it."""
        self.quota_refusals += 1
        headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        members = {
            "scope": used.scope,
            "quota": used.quota,
            "limit": used.limit,
            "used": used.used,
        }
        text = f"{what}: {used.describe()}"
        return HttpProblem("quota_used_up", 429, text, headers=headers, fields=members)

    @contextmanager
    def count_stream(self, caller: str, actor: Actor) -> Iterator[None]:
        """Count one stream while the block runs."""
        with (
            _count_while(self._streams, caller),
            _count_while(self._streams_of_tenants, actor.tenant),
        ):
            yield

    @contextmanager
    def count_heavy_read(self, caller: str) -> Iterator[None]:
        """Count one read of a whole journal while the block runs.

        Raises:
            HttpProblem: 429, the caller has too many such reads.
        """
        most = self._limits.heavy_reads
        if self._heavy_reads[caller] >= most:
            problem = f"Cannot read another whole journal: {most} reads are under way. Wait."
            raise HttpProblem(
                "too_many_heavy_reads", 429, problem, headers={"Retry-After": "1"}
            )
        with _count_while(self._heavy_reads, caller):
            yield


@contextmanager
def _count_while(counts: "Counter[str]", caller: str) -> Iterator[None]:
    counts[caller] += 1
    try:
        yield
    finally:
        counts[caller] -= 1
        if not counts[caller]:
            del counts[caller]


class AddressLimit:
    """Limits events per address: `burst` at once, then `rate` per second.

    Memory is bounded: the address that was counted least recently is forgotten.
    """

    def __init__(self, burst: int, rate: float, now: Callable[[], float]) -> None:
        self._burst = float(burst)
        self._rate = rate
        self._now = now
        # Network → events left, and when that was computed.
        self._left_by_network: LruDict[str, tuple[float, float]] = LruDict(
            max_items=CALLERS_MAX
        )

    def wait_s(self, address: str) -> float:
        """Return the seconds until `address` may cause another event; 0 if it may now."""
        return max((1 - self._count_events_left(address)) / self._rate, 0.0)

    def count_event(self, address: str) -> None:
        """Count one event; each event beyond the bound makes the wait longer.

        The debt is bounded by `burst`, so that an address that stops is free again soon.
        """
        left = max(self._count_events_left(address) - 1, -self._burst)
        self._left_by_network.put(get_sender_network(address), (left, self._now()))

    def _count_events_left(self, address: str) -> float:
        now = self._now()
        # The bucket refills with time up to `burst`; an unknown address has a full one.
        left, then = self._left_by_network.get(get_sender_network(address)) or (
            self._burst,
            now,
        )
        return min(left + (now - then) * self._rate, self._burst)


class FailedSignIns:
    """Slows down an address that sends wrong tokens or codes.

    After an address has used up its failures, its credentials are refused unchecked until the
    rate allows another one. A credential that was valid before is let through, so that an
    attacker behind the same proxy cannot lock out other clients.
    """

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._failures = AddressLimit(limits.failures, limits.failure_rate, now)
        self._valid_hashes: LruDict[bytes, bool] = LruDict(max_items=CALLERS_MAX)  # by hash

    def check(self, address: str, credential: str) -> None:
        """Refuse a credential from an address that sent too many wrong ones.

        Raises:
            HttpProblem: 429, with `Retry-After`.
        """
        wait = self._failures.wait_s(address)
        if wait and not self._valid_hashes.get(_hash_credential(credential)):
            problem = f"Cannot sign in: too many wrong tokens came from {address}. "
            problem += f"Wait {ceil(wait)} s."
            header = {"Retry-After": str(ceil(wait))}
            raise HttpProblem("too_many_failures", 429, problem, headers=header)

    def count_failure(self, address: str) -> None:
        """Count one wrong credential."""
        self._failures.count_event(address)

    def remember_valid(self, credential: str) -> None:
        """Remember, by its hash, that a credential is valid."""
        self._valid_hashes.put(_hash_credential(credential), value=True)


def get_sender_network(address: str) -> str:
    """Return the unit that limits count: an IPv4 address, or an IPv6 network of 64 bits.

    A socket that listens for both protocols reports an IPv4 client as `::ffff:192.0.2.1`. All
    such addresses are in one IPv6 network, but they are different senders.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))


def _hash_credential(credential: str) -> bytes:
    return sha256(credential.encode(errors="surrogateescape")).digest()
