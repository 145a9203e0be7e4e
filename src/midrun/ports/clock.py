"""The clock: the one place that asks the machine what time it is.

Everything else is handed a `Clock`, so that tests and replays have the time they want.
"""

import time
from collections.abc import Callable

from midrun.core.ids import Micros

Clock = Callable[[], Micros]
"""Returns microseconds since 1970."""


def wall() -> Micros:
    """Return the machine's wall-clock time. It can jump: no safety may depend on it."""
    return Micros(time.time_ns() // 1000)


def boottime() -> float:
    """Return seconds that also pass while the machine sleeps, where the system has such."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)
