"""What happens every second for as long as it lasts, and need not be said as often."""

import logging
from typing import Final

import anyio

from midrun.errors import MidrunError, StoreForeign

EVERY_S: Final = 60.0
"""How often it is said again that a newer midrun has made the store its own."""


class Seldom:
    """Knows when it was last said that nothing more can be written here."""

    def __init__(self) -> None:
        self._due = 0.0

    def level(self, error: MidrunError) -> int:
        """Return at which level `error` is logged: a warning, unless that was said just now.

        All runs of a process meet a newer schema, again and again, and nothing but an upgrade
        of the process ends it.
        """
        if not isinstance(error, StoreForeign):
            return logging.WARNING
        now = anyio.current_time()
        if now < self._due:
            return logging.DEBUG
        self._due = now + EVERY_S
        return logging.WARNING
