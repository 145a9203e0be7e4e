"""Spelling: times and numbers as people say them."""

from typing import Final

from midrun.core.ids import SECOND, Micros

THREE_DIGITS: Final = 100


def ago(now: Micros, then: Micros) -> str:
    """Return how long ago something was."""
    return f"{spell(max(0, now - then) / SECOND)} ago"


def spell(seconds: float) -> str:
    """Return a time for people: 4 s, 3 min, 2 h, 5 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def count(number: int) -> str:
    """Return a number for people: 940, 12k, 3.4M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= 0.9995 * size:  # what would be rounded to 1000 of the smaller one
            many = number / size
            return f"{many:.3g}{unit}" if many < THREE_DIGITS else f"{many:.0f}{unit}"
    return str(number)
