"""The outside: time, chance and ids, handed in so that a test or a replay can have its own."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from secrets import token_hex

from midrun.core.ids import Micros

# The clock: the one place that asks the machine what time it is.
#
# Everything else is handed a `Clock`, so that tests and replays have the time they want.

Clock = Callable[[], Micros]
"""Returns microseconds since 1970."""


def wall() -> Micros:
    """Return the machine's wall-clock time. It can jump: no safety may depend on it."""
    return Micros(time.time_ns() // 1000)


def boottime() -> float:
    """Return seconds that also pass while the machine sleeps, where the system has such."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


ID_BYTES = 11


def new_id() -> str:
    """Return an id that nobody can guess."""
    return token_hex(ID_BYTES)


@dataclass(frozen=True, kw_only=True)
class Outside:
    """What a process takes from the machine it runs on. `chance` gives numbers from 0 to 1."""

    clock: Clock = wall
    ids: Callable[[], str] = new_id
    chance: Callable[[], float] = field(default_factory=lambda: Random().random)  # noqa: S311 - it only spreads retries
    lease: timedelta = timedelta(seconds=6)  # how long others wait for a process that is silent

    def by(self, clock: Clock) -> "Outside":
        """Return the same, by another clock."""
        return replace(self, clock=clock)
