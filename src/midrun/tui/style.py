"""Styled text: a line is a list of pieces, each with the name of a style and its text."""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

StyledPiece: TypeAlias = tuple[str, str]
"""Name of a style ("" for none), and text."""

StyledLine: TypeAlias = list[StyledPiece]

SGR_BY_STYLE: Final = {
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
"""Style → parameters of the SGR escape sequence. A badge is the same in reverse video."""

_PROMPT_TOOLKIT_COLOURS: Final = {
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


def style_emphasis(text: str, style: str = "") -> StyledLine:
    """Return a text of the runtime as a styled line, with its *marked* parts emphasised.

    Only for texts of the runtime: asterisks in texts of users and models are kept.
    """
    pieces = _EMPHASIS.split(text)  # alternating: outside and inside of the marks
    looks = (style, "em")
    return [(looks[number % 2], piece) for number, piece in enumerate(pieces) if piece]


def build_style_rules() -> dict[str, str]:
    """Return the styles in the syntax of prompt_toolkit."""
    looks = {name: _PROMPT_TOOLKIT_COLOURS[code] for name, code in SGR_BY_STYLE.items()}
    return {
        **looks,
        **{f"badge.{name}": f"bold reverse {look}" for name, look in looks.items()},
        "key": "bold reverse",
    }


def plain_text(line: Iterable[StyledPiece]) -> str:
    """Return the text of a line without its styles."""
    return "".join(text for _, text in line)
