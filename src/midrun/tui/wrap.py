"""Folding: text as rows that fit a terminal, broken between words.

A terminal that wraps by itself cuts through the middle of them.
"""

from typing import Final

from prompt_toolkit.utils import get_cwidth

from midrun.tui.style import Line, words

INDENT: Final = 2
"""How far the rows of a line are moved in, after its first: below the words, not the mark."""


def folded(text: str, width: int) -> list[str]:
    """Return `text` as rows of at most `width` columns, broken at blanks if there are any."""
    rows = []
    start = 0
    while (cut := _fitting(text, start, width)) < len(text):
        blank = text.rfind(" ", start, cut + 1)
        if text[start : max(blank, start)].strip():  # a row of nothing but blanks is no row
            rows.append(text[start:blank].rstrip(" "))
            start = _past_blanks(text, blank)
        else:
            rows.append(text[start:cut])
            start = cut
    return [*rows, text[start:]]


def rows(line: Line, width: int) -> list[Line]:
    """Return a line as rows of at most `width` columns, each piece with its look."""
    return _cut(line, folded(words(line), width))


def wrapped(line: Line, width: int) -> list[Line]:
    """Return a line as lines that fit, each piece with its look; the first is not moved in."""
    text = words(line)
    if get_cwidth(text) <= width or width <= INDENT:
        return [line]
    first = folded(text, width)[0]
    rest = folded(text[len(first) :].lstrip(" "), width - INDENT)
    head, *more = _cut(line, [first, *rest])
    return [head, *([("", " " * INDENT), *row] for row in more)]


def _cut(line: Line, texts: list[str]) -> list[Line]:
    """Return a line cut into rows that read `texts`; blanks between them are gone."""
    whole, at = words(line), 0
    made = []
    for text in texts:
        at = whole.index(text, at)
        made.append(_slice(line, at, at + len(text)))
        at += len(text)
    return made


def _slice(line: Line, start: int, end: int) -> Line:
    """Return the pieces of a line between two of its characters."""
    made: Line = []
    at = 0
    for look, text in line:
        if part := text[max(start - at, 0) : max(end - at, 0)]:
            made.append((look, part))
        at += len(text)
    return made


def _past_blanks(text: str, at: int) -> int:
    while text.startswith(" ", at):
        at += 1
    return at


def _fitting(text: str, start: int, width: int) -> int:
    """Return where the row from `start` ends; after one character at least, or none moves."""
    used = 0
    for at in range(start, len(text)):
        used += get_cwidth(text[at])
        if used > width:
            return max(at, start + 1)
    return len(text)
