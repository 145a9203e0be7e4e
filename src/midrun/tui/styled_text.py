"""Styled text: a line is a list of pieces, each with the name of a style and its text."""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from msgspec import Struct

from midrun.text.hidden_characters import show_hidden

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
    "underline": "4",
    "strike": "9",
    "code": "36",
    # The tones of entries.
    "work": "1",
    "person": "36",
    "good": "32",
    "bad": "31",
    "go": "34",
    "hold": "33",
    "wait": "35",
    "stop": "31",
    "undo": "33",
    "quiet": "2",
}
"""Style → parameters of the SGR escape sequence. A badge is the same in reverse video."""

_PROMPT_TOOLKIT_COLOURS: Final = {
    "2": "ansibrightblack",
    "1": "bold",
    "3": "italic",
    "4": "underline",
    "9": "strike",
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


# Escape foreign text, so that no model, tool or journal can control the terminal.
#
# Characters that could move the cursor, change the title, answer a query, change the reading
# direction or be invisible are replaced by visible symbols. Everything that is printed passes
# through here last. Arguments and results also pass through `show_hidden` before,
# which shows every hidden character.

TAB_COLUMNS: Final = 4


def escape_controls(text: str) -> str:
    """Return `text` safe to print: newlines kept, tabs expanded, controls made visible."""
    visible = show_hidden(text, prose=True)
    if "\t" not in visible:
        return visible
    return "\n".join(line.expandtabs(TAB_COLUMNS) for line in visible.split("\n"))


def escape_to_one_line(text: str) -> str:
    """Return `text` as one printable line."""
    return escape_controls(" ".join(text.split()))


# Short texts that bar and command line share: typed values, command hints.


class Hints(Struct, frozen=True, kw_only=True):
    """The program and its store or server options, to build commands for messages.

    `target_options` is empty if the options need not be typed.
    """

    program: str = "midrun"
    target_options: str = ""
    can_start_workers: bool = True  # whether one can be started: a server drives its own runs
    driven_after_leaving: bool = True  # whether the run is still driven when this bar is left

    @property
    def after_leaving(self) -> str:
        """State of the run after the bar is left with `d`, as a clause."""
        return (
            "the run continues"
            if self.driven_after_leaving
            else "the run waits until it is driven again"
        )

    def format_command(self, *words: str) -> str:
        """Return a command line; `words` are not quoted, so APP and RUN stay readable."""
        return " ".join(filter(None, (self.program, *words, self.target_options)))


DEFAULT_HINTS: Final = Hints()
"""Default hints: the program by its name, without options."""
