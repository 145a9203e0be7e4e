"""Backoff: when a failed attempt is made again. Bounded in number by the run, here in time."""

from typing import Final

from midrun.core.ids import SECOND, Micros, later

FIRST: Final = 0.5
LONGEST: Final = 60.0
PATIENCE: Final = 15 * 60.0
"""A far end that wants us to wait longer than this has said no."""


def retry_at(now: Micros, attempt: int, *, chance: float, asked: float | None = None) -> Micros:
    """Return when the attempt after `attempt` is due.

    Doubles from half a second to a minute, spread by `chance` (between 0 and 1) so that many
    runs do not come back at once; never earlier than the far end `asked` for.
    """
    wait = doubled(attempt, first=FIRST, longest=LONGEST, chance=chance)
    return later(now, max(wait, asked or 0.0) * SECOND)


def doubled(attempt: int, *, first: float, longest: float, chance: float) -> float:
    """Return how many seconds to wait after `attempt`: `first` at first, `longest` at most.

    Up to half of it is left off by `chance` (between 0 and 1), so that many who failed together
    do not come back together.
    """
    return min(longest, first * 2.0 ** min(attempt - 1, 16)) * (0.5 + chance / 2)


def worth_waiting(asked: float | None) -> bool:
    """Tell whether a far end that asked us to wait so many seconds will be asked again."""
    return asked is None or asked <= PATIENCE
