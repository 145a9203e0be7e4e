"""The outside: time, chance and ids, handed in so that a test or a replay can have its own."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from secrets import token_hex

from midrun.ports.clock import Clock, wall

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
