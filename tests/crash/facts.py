"""Facts to wait for that nobody announces, and the time at which others may take over."""

from collections.abc import Callable
from datetime import timedelta

import anyio

from midrun.core.ids import Micros
from midrun.ports.environment import Clock, read_wall_clock


async def becomes(fact: Callable[[], bool]) -> None:
    """Wait until it is so."""
    while not fact():  # noqa: ASYNC110 - it may be another process that makes it so
        await anyio.sleep(0.002)


def later(*, hours: int) -> Clock:
    """Return a clock by which the leases of all who have been silent are over."""
    ahead = timedelta(hours=hours) // timedelta(microseconds=1)
    return lambda: Micros(read_wall_clock() + ahead)


def at_once() -> float:
    """Return a chance by which nobody waits before another attempt."""
    return -1.0
