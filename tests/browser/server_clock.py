"""A server clock that a test can advance or stop."""

from datetime import timedelta

from midrun.core.ids import Micros
from midrun.ports.environment import read_wall_clock


class Clock:
    """The real time, until a test advances or stops it."""

    def __init__(self) -> None:
        self._ahead = 0
        self._stopped: Micros | None = None

    def __call__(self) -> Micros:
        """Return the time."""
        return (
            Micros(read_wall_clock() + self._ahead) if self._stopped is None else self._stopped
        )

    def advance(self, by: timedelta) -> None:
        """Move the time forward."""
        self._ahead += by // timedelta(microseconds=1)

    def stop(self) -> None:
        """Stop the time at this moment."""
        self._stopped = self()
