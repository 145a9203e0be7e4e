"""Rows of the run list, fitted to the terminal, and short forms of times and numbers."""

from typing import Final
from unicodedata import combining, east_asian_width

from midrun.agents.outcome import AskView
from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.core.journaled_text import shorten_to_line
from midrun.runs.values import RunView
from midrun.tui.escape import escape_controls
from midrun.tui.phrases import format_progress
from midrun.tui.style import StyledLine, plain_text

# Times and numbers in a short form.

DECIMALS_BELOW: Final = 100


def format_age(now: Micros, then: Micros) -> str:
    """Return the time since `then`, as in "3 min ago"."""
    return f"{format_duration(max(0, now - then) / MICROS_PER_SECOND)} ago"


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit: 4 s, 3 min, 2 h, 5 d."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_count(number: int) -> str:
    """Return a number with three digits: 940, 12k, 3.4M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        # From 0.9995 on, the smaller unit would round to 1000: 999,500 is 1M, not 1000k.
        if number >= 0.9995 * size:
            many = number / size
            return f"{many:.3g}{unit}" if many < DECIMALS_BELOW else f"{many:.0f}{unit}"
    return str(number)


WIDE_ROW_MIN_COLUMNS: Final = 100
"""Terminal width from which a row also shows the step of its run."""

TASK_MIN_COLUMNS: Final = 12
"""Columns reserved for the task, before parent and needs are shown in full."""


def format_row(view: RunView, now: Micros, columns: int | None = None) -> StyledLine:
    """Return a run as one line that fits into `columns`; None for no limit.

    The id is never cut, because users paste it. If space is short, the parent shrinks first,
    then the needs, and the task gets the rest.
    """
    roomy = columns is None or columns >= WIDE_ROW_MIN_COLUMNS
    age = (
        format_age(now, view.changed_at)
        if roomy
        else format_duration(max(0, now - view.changed_at) / MICROS_PER_SECOND)
    )
    head: StyledLine = [
        ("", f"{view.run_id}  "),
        (view.phase, f"{view.phase:<11}"),
        ("", format_progress(view).ljust(18) if roomy else ""),
        ("dim", f"{age:>10}  " if roomy else f"{age:>6}  "),
    ]
    wanted = escape_controls(describe_need(view))
    needs = f"  ! {wanted}" if wanted else ""
    parent = f"  part of {view.parent}" if view.parent else ""
    task = escape_controls(shorten_to_line(view.task))
    if columns is not None:
        # `left` is the room after the fixed columns. Parent, needs and task share it.
        room = columns - text_width(plain_text(head))
        if room - text_width(parent) - text_width(needs) < TASK_MIN_COLUMNS:
            parent = "  (child)" if view.parent else ""
        needs = truncate(
            needs, room - text_width(parent) - min(TASK_MIN_COLUMNS, text_width(task))
        )
        task = truncate(task, room - text_width(parent) - text_width(needs))
    return [*head, ("", task), ("dim", parent), ("waiting", needs)]


def describe_need(view: RunView) -> str:
    """Return the reason why a run needs attention, or ""."""
    if view.asks:
        return (
            f"{len(view.asks)} to decide"
            if len(view.asks) > 1
            else format_question(view.asks[0])
        )
    if view.sign.look == "lost":
        return view.sign.word
    if view.phase == "failed":
        return "failed"
    return "at a cap" if view.phase == "paused" and view.reason == "cap" else ""


def format_question(ask: AskView) -> str:
    """Return the text of an ask as one line."""
    return shorten_to_line(ask.question or f"{ask.kind} of {ask.tool}")


def text_width(text: str) -> int:
    """Return the number of terminal columns that a text takes.

    The bar uses prompt_toolkit for this, but that is an optional dependency, and a list must
    work without it.
    """
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in {"W", "F"} else 1


def truncate(text: str, columns: int) -> str:
    """Return `text` cut to `columns` with an ellipsis; "" if not even one letter fits."""
    if text_width(text) <= columns:
        return text
    shortened, used = "", 1  # one column for the ellipsis
    for character in text:
        used += _character_width(character)
        if used > columns:
            break
        shortened += character
    return f"{shortened.rstrip()}…" if shortened.strip() else ""
