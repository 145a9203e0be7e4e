"""Limits: how much one caller may send, how often, and how many streams it may hold open."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from midrun.server.problems import Problem

CALLERS_MAX: Final = 4096
"""How many callers are remembered; forgetting one only gives it a full allowance again."""


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds of one server; those on rates and streams are per caller."""

    body: int = 1024 * 1024  # bytes
    checkpoint: int = 64 * 1024 * 1024  # bytes of a body that brings one
    depth: int = 64  # of JSON
    rate: float = 50.0  # changes a second, in the long run ...
    burst: int = 200  # ... and at once
    streams: int = 256
    pending: int = 8  # words of people that wait for their boundary, per run
    wait: float = 60.0  # seconds, the longest long-poll
    ping: float = 15.0  # seconds between signs of life on a stream
    patience: float = 30.0  # seconds; for one who does not send, or does not read
    headers: float = 10.0  # seconds until those of a request are complete


class Allowance:
    """Counts what each caller does."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._left: dict[str, tuple[float, float]] = {}
        self._streams: dict[str, int] = {}

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return sum(self._streams.values())

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
        if self._streams.get(caller, 0) >= self._limits.streams:
            raise Problem("too_many_streams", 429, headers={"Retry-After": "5"})

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """Count one stream for as long as it is open."""
        self._streams[caller] = self._streams.get(caller, 0) + 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]
