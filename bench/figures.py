"""Figures: measured values and their bounds, printed as a text or as a Markdown table."""

import sys
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


HEADINGS = ("figure", "measured", "bound", "", "detail")


def print_figures(figures: Sequence[Figure]) -> int:
    """Print the figures, as Markdown with `--markdown`; return 1 if a bound is missed."""
    rows = [HEADINGS, *(figure.cells() for figure in figures)]
    print(format_table(rows, markdown="--markdown" in sys.argv), flush=True)
    return 0 if all(figure.holds for figure in figures) else 1


def format_table(rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Return rows of cells as a table; the first row has the headings."""
    if markdown:
        ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        return "\n".join(f"| {' | '.join(row)} |" for row in ruled)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def micros(seconds: Sequence[float]) -> float:
    """Return the median of `seconds`, in microseconds."""
    return median(seconds) * 1e6
