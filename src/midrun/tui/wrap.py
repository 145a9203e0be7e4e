"""Wrap text to the width of the terminal, between words.

A terminal wraps in the middle of words, and then prompt_toolkit cannot count the rows.
"""

from typing import Final

from prompt_toolkit.utils import get_cwidth

from midrun.tui.styled_text import StyledLine, plain_text

CONTINUATION_INDENT_COLUMNS: Final = 2
"""Indent of the second and following rows: below the text, not below its mark."""


def wrap_text(text: str, width: int) -> list[str]:
    """Split `text` into rows of at most `width` columns, at blanks if there are any."""
    rows = []
    start = 0
    while (cut := _find_row_end(text, start, width)) < len(text):
        blank = text.rfind(" ", start, cut + 1)
        if text[start : max(blank, start)].strip():  # never a row of blanks only
            rows.append(text[start:blank].rstrip(" "))
            start = _skip_blanks(text, blank)
        else:
            rows.append(text[start:cut])
            start = cut
    return [*rows, text[start:]]


def wrap_indented(line: StyledLine, width: int) -> list[StyledLine]:
    """Split a styled line into rows that fit; all but the first are indented."""
    text = plain_text(line)
    if get_cwidth(text) <= width or width <= CONTINUATION_INDENT_COLUMNS:
        return [line]
    first = wrap_text(text, width)[0]
    rest = wrap_text(text[len(first) :].lstrip(" "), width - CONTINUATION_INDENT_COLUMNS)
    head, *more = _cut_into_rows(line, [first, *rest])
    return [head, *([("", " " * CONTINUATION_INDENT_COLUMNS), *row] for row in more)]


def _cut_into_rows(line: StyledLine, texts: list[str]) -> list[StyledLine]:
    """Cut a styled line into the given rows; the blanks between them are dropped."""
    # Each row is searched from the end of the one before: equal rows are told apart so.
    whole, at = plain_text(line), 0
    cut_rows = []
    for text in texts:
        at = whole.index(text, at)
        cut_rows.append(_slice(line, at, at + len(text)))
        at += len(text)
    return cut_rows


def _slice(line: StyledLine, start: int, end: int) -> StyledLine:
    """Return the styled pieces of a line between two character positions."""
    pieces: StyledLine = []
    at = 0
    for look, text in line:
        if part := text[max(start - at, 0) : max(end - at, 0)]:
            pieces.append((look, part))
        at += len(text)
    return pieces


def _skip_blanks(text: str, at: int) -> int:
    while text.startswith(" ", at):
        at += 1
    return at


def _find_row_end(text: str, start: int, width: int) -> int:
    """Return the end of the row from `start`: at least one character, to make progress."""
    used = 0
    for at in range(start, len(text)):
        used += get_cwidth(text[at])
        if used > width:
            return max(at, start + 1)
    return len(text)
