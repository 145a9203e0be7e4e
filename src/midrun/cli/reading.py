"""Reading: a feed as lines for people, each with its place, its time, and a sentence."""

from datetime import date, tzinfo
from typing import Final

from midrun.core.aloud import Reader
from midrun.core.dates import date_of
from midrun.core.ids import RunId
from midrun.core.sentences.phrases import flat
from midrun.driver.live import Delta
from midrun.handles.item import Item

INDENT: Final = 17
"""Columns before the sentence: its entry's number and its time."""


class Reading:
    """Reads a feed from its beginning, and says what came after the entry `after`.

    An entry alone does not say what it is about, so those before it are read, too. Times are
    told as they are in `zone`, or here; a day is said once, before what happened on it.
    """

    def __init__(self, run: str, *, after: int = 0, zone: tzinfo | None = None) -> None:
        self._reader = Reader(RunId(run))
        self._after = after
        self._zone = zone
        self._day: date | None = None

    def lines(self, item: Item) -> list[str]:
        """Return what is to be said of the next item; nothing for what is of the moment."""
        if isinstance(item, Delta):
            return [f"{'':{INDENT}}{said}"] if (said := _noted(item)) else []
        told = self._reader.read(item.entry, item.at)
        if item.seq <= self._after:
            return []
        at = date_of(item.at).astimezone(self._zone)
        day = [] if at.date() == self._day else [f"{at:%Y-%m-%d}"]
        self._day = at.date()
        return [*day, f"{item.seq:>5}  {at:%H:%M:%S}  {told}"]


def _noted(delta: Delta) -> str:
    tool = delta.tool or "a call"
    if delta.kind == "note":
        return f"· {tool}: {flat(delta.text)}"
    return f"· {tool} does not respond" if delta.kind == "not_responding" else ""
