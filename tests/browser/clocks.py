"""A clock that a test has in its hand."""

from datetime import timedelta

from midrun.core.ids import Micros
from midrun.ports.environment import wall


class Clock:
    """The clock of a server: right, until somebody puts it forward, or stops it there."""

    def __init__(self) -> None:
        self._ahead = 0
        self._stopped: Micros | None = None

    def __call__(self) -> Micros:
        """Return what time it is."""
        return Micros(wall() + self._ahead) if self._stopped is None else self._stopped

    def put_forward(self, by: timedelta) -> None:
        """Let it be later by so much, at once."""
        self._ahead += by // timedelta(microseconds=1)

    def stop(self) -> None:
        """Let it be this moment for good."""
        self._stopped = self()
