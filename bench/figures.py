"""Figures: measured values and their bounds."""

from collections.abc import Sequence
from statistics import median

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """One measurement. Ratios are taken within one run, because they differ less by machine."""

    name: str
    value: float
    unit: str = "times"
    at_most: float | None = None
    at_least: float | None = None
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value is within its bound."""
        below = self.at_most is None or self.value <= self.at_most
        return below and (self.at_least is None or self.value >= self.at_least)

    def cells(self) -> tuple[str, ...]:
        """Return the cells of its row in the table."""
        bound = ""
        if self.at_most is not None:
            bound = f"≤ {self.at_most:g}"
        if self.at_least is not None:
            bound = f"≥ {self.at_least:g}"
        verdict = ("ok" if self.holds else "MISSED") if bound else ""
        return self.name, f"{self.value:.2f} {self.unit}", bound, verdict, self.detail


def table(figures: Sequence[Figure]) -> str:
    """Return all figures as a text table."""
    rows = [("figure", "measured", "bound", "", "detail"), *(f.cells() for f in figures)]
    widths = [max(len(row[n]) for row in rows) for n in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def micros(seconds: Sequence[float]) -> float:
    """Return the median of `seconds`, in microseconds."""
    return median(seconds) * 1e6
