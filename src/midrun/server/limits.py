"""Limits: how much one caller may send, how often, and how many streams it may hold open."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Network, ip_address
from math import ceil
from typing import Final

from msgspec import Struct

from midrun.core.lru import LruDict
from midrun.ports.store import Usage
from midrun.server.problem_details import Problem

CALLERS_MAX: Final = 4096
"""How many callers are remembered; forgetting one only gives it a full allowance again."""


class Quota(Struct, frozen=True, kw_only=True):
    """The bounds on the runs of one user; None is no bound.

    They are checked when a user starts or forks a run. Runs that are under way go on: their
    own caps bound them. Two requests at the same moment may exceed a bound by one run each.
    """

    open_runs: int | None = None  # that have not ended
    runs_per_day: int | None = None  # started within the last 24 hours
    cost_per_day: float | None = None  # dollars, spent by those
    tokens_per_day: int | None = None
    stored_bytes: int | None = None  # of the journals of all their runs

    def find_excess(self, usage: Usage) -> str:
        """Describe the first bound that is reached; "" if none is."""
        bounds = {
            "open_runs": (usage.open_runs, self.open_runs),
            "runs_per_day": (usage.runs, self.runs_per_day),
            "cost_per_day": (usage.cost / 1e6, self.cost_per_day),
            "tokens_per_day": (usage.tokens, self.tokens_per_day),
            "stored_bytes": (usage.stored_bytes, self.stored_bytes),
        }
        for name, (taken, bound) in bounds.items():
            if bound is not None and taken >= bound:
                return f"{name} is at {taken:g} of {bound:g}"
        return ""


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds of one server; those on rates and streams are per caller."""

    body: int = 1024 * 1024  # bytes
    checkpoint: int = 64 * 1024 * 1024  # bytes of a body that brings one
    depth: int = 64  # of JSON
    rate: float = 50.0  # changes a second, in the long run ...
    burst: int = 200  # ... and at once
    streams: int = 256  # and long polls, together
    heavy_reads: int = 8  # of whole journals, under way or waiting
    pending: int = 8  # words of people that wait for their boundary, per run
    wait: float = 60.0  # seconds, the longest long-poll
    ping: float = 15.0  # seconds between signs of life on a stream
    patience: float = 30.0  # seconds; for one who does not send, or does not read
    headers: float = 10.0  # seconds until those of a request are complete
    quota: Quota = Quota()  # of each user; operators have none
    connections: int = 0  # at once; 0: what the limit of open files leaves room for
    connections_per_address: int = 0  # 0: half of them; all where proxies are declared
    failures: int = 20  # wrong tokens or codes from one address at once ...
    failure_rate: float = 0.5  # ... and a second, in the long run


class Allowance:
    """Counts what each caller does."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._left: dict[str, tuple[float, float]] = {}
        self._streams: Counter[str] = Counter()
        self._heavy_reads: Counter[str] = Counter()

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return self._streams.total()

    @property
    def heavy_reads(self) -> int:
        """How many reads of whole journals are under way, or wait for their turn."""
        return self._heavy_reads.total()

    def spend(self, caller: str) -> None:
        """Count one change.

        Raises:
            Problem: 429, with when to come back.
        """
        now, limits = self._now(), self._limits
        left, then = self._left.pop(caller, (float(limits.burst), now))
        left = min(left + (now - then) * limits.rate, limits.burst)
        while len(self._left) >= CALLERS_MAX:
            del self._left[next(iter(self._left))]
        self._left[caller] = (max(left - 1, 0.0), now)
        if left < 1:
            wait = max(1, round((1 - left) / limits.rate))
            raise Problem("too_many_requests", 429, headers={"Retry-After": str(wait)})

    def check_stream(self, caller: str) -> None:
        """Refuse one more stream where there are too many.

        Raises:
            Problem: 429.
        """
        if self._streams[caller] >= self._limits.streams:
            raise Problem("too_many_streams", 429, headers={"Retry-After": "5"})

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """Count one stream for as long as it is open."""
        with _count_while(self._streams, caller):
            yield

    @contextmanager
    def heavy_read(self, caller: str) -> Iterator[None]:
        """Count one read of a whole journal for as long as it takes.

        Raises:
            Problem: 429, the caller has too many under way.
        """
        most = self._limits.heavy_reads
        if self._heavy_reads[caller] >= most:
            problem = f"Cannot read another whole journal: {most} reads are under way. Wait."
            raise Problem("too_many_heavy_reads", 429, problem, headers={"Retry-After": "1"})
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
        # Address → events left, and when that was counted.
        self._left: LruDict[str, tuple[float, float]] = LruDict(max_items=CALLERS_MAX)

    def wait_s(self, address: str) -> float:
        """Return the seconds until `address` may cause another event; 0 if it may now."""
        return max((1 - self._events_left(address)) / self._rate, 0.0)

    def count(self, address: str) -> None:
        """Count one event; each event beyond the bound makes the wait longer."""
        left = max(self._events_left(address) - 1, -self._burst)
        self._left.put(network_of(address), (left, self._now()))

    def _events_left(self, address: str) -> float:
        now = self._now()
        left, then = self._left.get(network_of(address)) or (self._burst, now)
        return min(left + (now - then) * self._rate, self._burst)


class FailedSignIns:
    """Slows down an address that sends wrong tokens or codes.

    Once an address has used up its failures, its credentials are not looked at until time has
    given it another one. A credential that was good before is let through, so that a client is
    not locked out by another one behind the same proxy.
    """

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._failures = AddressLimit(limits.failures, limits.failure_rate, now)
        self._good: LruDict[bytes, bool] = LruDict(max_items=CALLERS_MAX)  # by hash

    def check(self, address: str, shown: str) -> None:
        """Refuse a credential from an address that sent too many wrong ones.

        Raises:
            Problem: 429, with when to come back.
        """
        wait = self._failures.wait_s(address)
        if wait and not self._good.get(_hash_credential(shown)):
            problem = f"Cannot sign in: too many wrong tokens came from {address}. "
            problem += f"Wait {ceil(wait)} s."
            header = {"Retry-After": str(ceil(wait))}
            raise Problem("too_many_failures", 429, problem, headers=header)

    def count_failure(self, address: str) -> None:
        """Count one wrong credential."""
        self._failures.count(address)

    def remember_good(self, shown: str) -> None:
        """Remember that a credential is good."""
        self._good.put(_hash_credential(shown), value=True)


def network_of(address: str) -> str:
    """Return the addresses that one sender has: an IPv4 address, or an IPv6 network of 64 bits.

    A socket that listens for both protocols names a client of IPv4 `::ffff:192.0.2.1`. All of
    these are in one IPv6 network, and yet are different senders.
    """
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))


def _hash_credential(shown: str) -> bytes:
    return sha256(shown.encode(errors="surrogateescape")).digest()
