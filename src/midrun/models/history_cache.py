"""Keep the converted history of each run, and convert only the turns that are new.

A model call sends the whole conversation. To convert all of it for each call would make a step
slower with every step before it. So the last converted history of a run is kept in memory, and
the next call adds the turns that have come since. If an earlier turn has changed, because the
outcome of a call came late or the history was condensed, all turns are converted again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, Self, TypeVar

from msgspec import Struct

from midrun.core.lru import LruDict
from midrun.core.transcript import Transcript, Turn

CACHED_RUNS_MAX: Final = 256
CACHED_TURNS_MAX: Final = 20_000
"""Turns that a cache holds, of all runs of a process."""


class History(Protocol):
    """Turns in the form of some provider or framework."""

    def add_turns(self, turns: Iterable[Turn], /) -> None:
        """Add turns of the transcript, oldest first."""
        ...

    def fork(self) -> Self:
        """Return a copy that can be changed. Finished messages are shared."""
        ...


H = TypeVar("H", bound=History)


class _Known(Struct, Generic[H], frozen=True):
    transcript: Transcript
    count: int  # the turns that `history` has
    history: H


class HistoryCache(Generic[H]):
    """The histories of the runs of this process, by run."""

    def __init__(self, make: Callable[[], H]) -> None:
        self._make = make
        self._known: LruDict[str, _Known[H]] = LruDict(
            max_items=CACHED_RUNS_MAX, max_weight=CACHED_TURNS_MAX
        )

    def open(self, run_id: str, turns: Sequence[Turn], until: int | None = None) -> H:
        """Return the history of the first `until` turns. The caller may change it.

        A history with files is not kept: the form of a file depends on its body, which a
        tool call does not have.
        """
        count = len(turns) if until is None else until
        if not run_id or not isinstance(turns, Transcript) or turns.has_files:
            return self._convert(turns, count)
        known = self._known.get(run_id)
        same = 0 if known is None else turns.count_same_turns(known.transcript)
        if known is None or same < known.count:
            history = self._convert(turns, count)
        elif count < known.count:  # an earlier call, which others have overtaken
            return self._convert(turns, count)
        else:
            history = known.history
            history.add_turns(turns[known.count : count])
        self._known.put(run_id, _Known(turns, count, history), weight=count)
        return history.fork()

    def _convert(self, turns: Sequence[Turn], count: int) -> H:
        history = self._make()
        history.add_turns(turns[:count])
        return history
