"""Wrap text to the width of the terminal, between words.

A terminal wraps in the middle of words, and then prompt_toolkit cannot count the rows.
"""

from typing import Final

from prompt_toolkit.utils import get_cwidth

from midrun.tui.style import Line, words

INDENT: Final = 2
"""Indent of the second and following rows: below the text, not below its mark."""


def folded(text: str, width: int) -> list[str]:
    """Split `text` into rows of at most `width` columns, at blanks if there are any."""
    rows = []
    start = 0
    while (cut := _fitting(text, start, width)) < len(text):
        blank = text.rfind(" ", start, cut + 1)
        if text[start : max(blank, start)].strip():  # never a row of blanks only
            rows.append(text[start:blank].rstrip(" "))
            start = _past_blanks(text, blank)
        else:
            rows.append(text[start:cut])
            start = cut
    return [*rows, text[start:]]


def rows(line: Line, width: int) -> list[Line]:
    """Split a styled line into rows of at most `width` columns."""
    return _cut(line, folded(words(line), width))


def wrapped(line: Line, width: int) -> list[Line]:
    """Split a styled line into rows that fit; all but the first are indented."""
    text = words(line)
    if get_cwidth(text) <= width or width <= INDENT:
        return [line]
    first = folded(text, width)[0]
    rest = folded(text[len(first) :].lstrip(" "), width - INDENT)
    head, *more = _cut(line, [first, *rest])
    return [head, *([("", " " * INDENT), *row] for row in more)]


def _cut(line: Line, texts: list[str]) -> list[Line]:
    """Cut a styled line into the given rows; the blanks between them are dropped."""
    # Each row is searched from the end of the one before: equal rows are told apart so.
    whole, at = words(line), 0
    cut_rows = []
    for text in texts:
        at = whole.index(text, at)
        cut_rows.append(_slice(line, at, at + len(text)))
        at += len(text)
    return cut_rows


def _slice(line: Line, start: int, end: int) -> Line:
    """Return the styled pieces of a line between two character positions."""
    pieces: Line = []
    at = 0
    for look, text in line:
        if part := text[max(start - at, 0) : max(end - at, 0)]:
            pieces.append((look, part))
        at += len(text)
    return pieces


def _past_blanks(text: str, at: int) -> int:
    while text.startswith(" ", at):
        at += 1
    return at


def _fitting(text: str, start: int, width: int) -> int:
    """Return the end of the row from `start`: at least one character, to make progress."""
    used = 0
    for at in range(start, len(text)):
        used += get_cwidth(text[at])
        if used > width:
            return max(at, start + 1)
    return len(text)
