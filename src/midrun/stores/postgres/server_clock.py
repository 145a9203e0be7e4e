"""Time: the server's clock, as far as it is known here, or one that was handed in.

Entries are stamped with it before they are sent, because their hashes have the time in them.
Nothing hangs on its being exact: who is alive and what is due is judged by the server itself.
"""

from typing import Final

from midrun.core.ids import SECOND, Micros
from midrun.ports.environment import Clock, boottime

SLEW: Final = 50
"""Microseconds that the clock is put back at once: less than passes between two answers."""

STEP: Final = SECOND
"""A difference that is no delay: the server's clock was set."""


class StoreTime:
    """What time it is in the store: by the server, unless there is a clock `given` by hand."""

    def __init__(self, given: Clock | None = None) -> None:
        self._given = given
        self._ahead: int | None = None  # how far the server is ahead of our own clock

    def clock(self) -> Micros:
        """Return what the server said last and the time since, or what the hand says."""
        if self._given is not None:
            return self._given()
        return Micros(round(boottime() * 1e6) + (self._ahead or 0))

    def by_hand(self) -> Micros | None:
        """Return what the hand says; None where the server's own clock is to be used."""
        return None if self._given is None else self._given()

    def said(self, now: Micros) -> None:
        """Hear what time it was by the server, a moment ago.

        An answer that took long makes the server look behind, so what says that it is further
        ahead is believed, and the contrary only little by little: time does not run backwards
        here, unless the server's clock was set back.
        """
        ahead = now - round(boottime() * 1e6)
        if self._ahead is not None and self._ahead - STEP < ahead < self._ahead:
            ahead = max(ahead, self._ahead - SLEW)
        self._ahead = ahead
