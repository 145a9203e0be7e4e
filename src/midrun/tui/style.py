"""Styled text: pieces of a line, each with the name of its look; and how the looks look."""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

Piece: TypeAlias = tuple[str, str]
"""The name of a look, and text."""

Line: TypeAlias = list[Piece]

SGR: Final = {
    "queued": "2",
    "running": "34",
    "pausing": "33",
    "paused": "33",
    "waiting": "35",
    "cancelling": "31",
    "cancelled": "31",
    "completed": "32",
    "failed": "31",
    "halted": "31",
    "halting": "31",
    "lost": "35",
    "dim": "2",
    "bold": "1",
    "em": "3",
    "person": "36",
    "minus": "31",
    "plus": "32",
    "good": "32",
    "bad": "31",
}
"""Look → what a terminal is sent for it. A badge is its phase's look, the other way round."""

_ANSI: Final = {
    "2": "ansibrightblack",
    "1": "bold",
    "3": "italic",
    "31": "ansired",
    "32": "ansigreen",
    "33": "ansiyellow",
    "34": "ansiblue",
    "35": "ansimagenta",
    "36": "ansicyan",
}


_EMPHASIS: Final = re.compile(r"\*([^*\n]+)\*")


def emphasised(text: str, look: str = "") -> Line:
    """Return what the runtime says: it marks names *so*; they are shown, the marks are not.

    Only for the runtime's own words: the asterisks of others are theirs.
    """
    pieces = _EMPHASIS.split(text)  # in turns: around the marks, and between them
    looks = (look, "em")
    return [(looks[number % 2], piece) for number, piece in enumerate(pieces) if piece]


def rules() -> dict[str, str]:
    """Return the same looks as the bar's library names them."""
    looks = {name: _ANSI[code] for name, code in SGR.items()}
    return {
        **looks,
        **{f"badge.{name}": f"bold reverse {look}" for name, look in looks.items()},
        "key": "bold reverse",
    }


def words(line: Iterable[Piece]) -> str:
    """Return a line without its looks."""
    return "".join(text for _, text in line)
