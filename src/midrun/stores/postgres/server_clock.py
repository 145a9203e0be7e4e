"""An estimate of the server's time, for stamping entries before they are sent.

The time of an entry is part of its hash, so the client needs it before the write. The estimate
does not have to be exact: whether a holder is alive and a run is due is decided by the server's
own clock inside its queries. A clock that is passed in, for tests, replaces both.
"""

from typing import Final

from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.ports.environment import Clock, read_boot_clock

SLEW_MAX_MICROS: Final = 50
"""The most microseconds by which one answer sets the estimate back.

It is less than passes between two answers, so the estimate never runs backwards.
"""

STEP_MIN_MICROS: Final = MICROS_PER_SECOND
"""A difference of at least this many microseconds is not a delay: the clock was set."""


class ServerClock:
    """The time of the store: the server's, unless a clock was passed in."""

    def __init__(self, override: Clock | None = None) -> None:
        self._override = override
        self._offset_micros: int | None = (
            None  # server time minus local boot time, in microseconds
        )

    def estimate_now(self) -> Micros:
        """Return the estimated time of the server, or that of the given clock."""
        if self._override is not None:
            return self._override()
        return Micros(round(read_boot_clock() * 1e6) + (self._offset_micros or 0))

    def get_override(self) -> Micros | None:
        """Return the time of the given clock; None without one.

        The server then uses its own clock.
        """
        return None if self._override is None else self._override()

    def observe(self, now: Micros) -> None:
        """Take in the server's time from an answer."""
        # The answer was on its way for an unknown time, so `ahead` is too small by that delay.
        # The answer with the largest value had the shortest way and is nearest to the truth: a
        # larger value is taken at once. A smaller one is either such a delay or a slow drift,
        # so it is followed in small steps. A value smaller by a second or more means that the
        # server's clock was set back.
        ahead = now - round(read_boot_clock() * 1e6)
        if (
            self._offset_micros is not None
            and self._offset_micros - STEP_MIN_MICROS < ahead < self._offset_micros
        ):
            ahead = max(ahead, self._offset_micros - SLEW_MAX_MICROS)
        self._offset_micros = ahead
