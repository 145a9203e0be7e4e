"""Time for the promises that are about time."""

from datetime import timedelta

from midrun.core.ids import Micros
from midrun.ports.environment import read_wall_clock

FAR = timedelta(days=365)
"""A lease that no jump of a clock ends: these tests are not about leases."""


class Hand:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = read_wall_clock()

    def __call__(self) -> Micros:
        """Return the time."""
        return self.now

    def move(self, by: timedelta) -> None:
        """Let time pass."""
        self.now = Micros(self.now + by // timedelta(microseconds=1))


class Stopped:
    """A clock that stands still until a test lets it run."""

    def __init__(self) -> None:
        self._start = read_wall_clock()
        self._since: Micros | None = None

    def __call__(self) -> Micros:
        """Return the time."""
        passed = 0 if self._since is None else read_wall_clock() - self._since
        return Micros(self._start + passed)

    def run(self) -> None:
        """Let time pass as it does."""
        self._since = read_wall_clock()
