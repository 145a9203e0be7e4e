"""Clocks that a test controls."""

from datetime import timedelta

from midrun.core.ids import Micros
from midrun.ports.environment import read_wall_clock

YEAR_LEASE = timedelta(days=365)
"""A lease that does not end when a test moves the clock."""


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = read_wall_clock()

    def __call__(self) -> Micros:
        """Return the time."""
        return self.now

    def advance(self, by: timedelta) -> None:
        """Move the time forward."""
        self.now = Micros(self.now + by // timedelta(microseconds=1))


class StartableClock:
    """A clock that stands still until a test starts it."""

    def __init__(self) -> None:
        self._initial = read_wall_clock()
        self._started_at: Micros | None = None

    def __call__(self) -> Micros:
        """Return the time."""
        passed = 0 if self._started_at is None else read_wall_clock() - self._started_at
        return Micros(self._initial + passed)

    def start(self) -> None:
        """Move with the wall clock from now on."""
        self._started_at = read_wall_clock()
