"""Dates: a store's microseconds as a date in UTC, and back. No clock is asked."""

from datetime import UTC, datetime, timedelta
from typing import Final

from midrun.core.ids import Micros

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICRO: Final = timedelta(microseconds=1)


def date_of(at: Micros) -> datetime:
    """Return the date of a moment, to the microsecond."""
    return _EPOCH + at * _MICRO


def micros_of(date: datetime) -> Micros:
    """Return the moment of a date, which must know its time zone."""
    return Micros((date - _EPOCH) // _MICRO)
