"""Wait for a condition that has no event, and use a clock by which leases have expired."""

from collections.abc import Callable
from datetime import timedelta

import anyio

from midrun.core.ids import Micros
from midrun.ports.environment import Clock, read_wall_clock


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    while not condition():  # noqa: ASYNC110 - perhaps another process makes it true
        await anyio.sleep(0.002)


def make_clock_ahead(*, hours: int) -> Clock:
    """Return a clock that is ahead, so that the leases of silent workers have expired."""
    ahead = timedelta(hours=hours) // timedelta(microseconds=1)
    return lambda: Micros(read_wall_clock() + ahead)


def draw_no_delay() -> float:
    """Return a random number that makes the delay before a retry negative."""
    return -1.0
