"""The environment of a process: clock, randomness and ids, passed in as arguments.

Tests and replays pass their own, and so control time and randomness.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from secrets import token_hex

from midrun.core.ids import Micros

# The only place that reads the clocks of the machine. All other code is given a `Clock`.

Clock = Callable[[], Micros]
"""Returns microseconds since 1970."""


def read_wall_clock() -> Micros:
    """Return the wall-clock time. It can jump: no safety property may depend on it."""
    return Micros(time.time_ns() // 1000)


ID_BYTES = 11


def new_id() -> str:
    """Return a random id that cannot be guessed."""
    return token_hex(ID_BYTES)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Clock, ids and randomness of a process; `random_unit` returns numbers from 0 to 1."""

    clock: Clock = read_wall_clock
    make_id: Callable[[], str] = new_id
    random_unit: Callable[[], float] = field(default_factory=lambda: Random().random)  # noqa: S311 - it only spreads retries
    lease: timedelta = timedelta(seconds=6)  # expires after this long without heartbeats

    def with_clock(self, clock: Clock) -> "Environment":
        """Return the same environment with another clock."""
        return replace(self, clock=clock)
