"""Rows: runs as a list, one line each, as wide as there is room for."""

from typing import Final
from unicodedata import combining, east_asian_width

from midrun.agents.outcome import AskView
from midrun.core.ids import SECOND, Micros
from midrun.core.journaled_text import line
from midrun.runs.values import RunView
from midrun.tui.escape import printable
from midrun.tui.phrases import place
from midrun.tui.style import Line, words

# Spelling: times and numbers as people say them.

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


ROOMY: Final = 100
"""Columns from which on a row also says at which step its run is."""

TASK: Final = 12
"""Columns that a task keeps at least, before its run's parent or its needs are told in full."""


def row_line(view: RunView, now: Micros, columns: int | None = None) -> Line:
    """Return a run as one line of a list that fits into `columns`; None for all of it.

    The id is never cut: people paste it. What the run needs is said before what it is about,
    where there is not room for both.
    """
    roomy = columns is None or columns >= ROOMY
    age = ago(now, view.changed_at) if roomy else spell(max(0, now - view.changed_at) / SECOND)
    head: Line = [
        ("", f"{view.run_id}  "),
        (view.phase, f"{view.phase:<11}"),
        ("", place(view).ljust(18) if roomy else ""),
        ("dim", f"{age:>10}  " if roomy else f"{age:>6}  "),
    ]
    wanted = printable(needing(view))
    needs = f"  ! {wanted}" if wanted else ""
    parent = f"  part of {view.parent}" if view.parent else ""
    task = printable(line(view.task))
    if columns is not None:
        left = columns - wide(words(head))
        if left - wide(parent) - wide(needs) < TASK:
            parent = "  (child)" if view.parent else ""
        needs = cut(needs, left - wide(parent) - min(TASK, wide(task)))
        task = cut(task, left - wide(parent) - wide(needs))
    return [*head, ("", task), ("dim", parent), ("waiting", needs)]


def needing(view: RunView) -> str:
    """Return why a person should look at a run, or nothing."""
    if view.asks:
        return f"{len(view.asks)} to decide" if len(view.asks) > 1 else asked(view.asks[0])
    if view.sign.look == "lost":
        return view.sign.word
    if view.phase == "failed":
        return "failed"
    return "at a cap" if view.phase == "paused" and view.reason == "cap" else ""


def asked(ask: AskView) -> str:
    """Return what a person is asked, as one line."""
    return line(ask.question or f"{ask.kind} of {ask.tool}")


def wide(text: str) -> int:
    """Return how many columns a text takes in a terminal.

    The bar asks prompt_toolkit, which is an extra: a list has to do without.
    """
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in {"W", "F"} else 1


def cut(text: str, columns: int) -> str:
    """Return a text that fits, with an ellipsis if something is left out; "" for no room."""
    if wide(text) <= columns:
        return text
    kept, used = "", 1  # for the ellipsis
    for character in text:
        used += _columns(character)
        if used > columns:
            break
        kept += character
    return f"{kept.rstrip()}…" if kept.strip() else ""
