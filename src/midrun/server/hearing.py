"""Hearing: since when nothing was heard of a driver, as far as this server can say."""

from collections.abc import Collection
from typing import Final

from midrun.core.ids import Micros
from midrun.core.lru import LruDict

HOLDERS_MAX: Final = 4096
"""Of how many holders it is remembered."""


class Hearing:
    """Remembers when each holder was last known to be alive.

    The store only says who is. Somebody of whom this server has never heard is silent from the
    moment at which it is first asked: longer, in truth, but never less.
    """

    def __init__(self) -> None:
        self._heard: LruDict[str, Micros] = LruDict(max_items=HOLDERS_MAX)

    def silent_since(self, holder: str, alive: Collection[str], now: Micros) -> Micros:
        """Return since when nothing is heard of `holder`; it is `now` if it is alive."""
        for one in (*alive, holder):
            if one in alive or one not in self._heard:
                self._heard.put(one, now)
        return self._heard.get(holder) or now
