"""Text of others on a terminal: no model, tool or journal can send it an escape sequence.

A character that could move the cursor, change a title, answer a query, turn the reading
direction or hide is shown as a symbol instead. Everything that is printed passes here, last;
arguments and results pass `exact` first, which keeps no hidden character at all.
"""

from typing import Final

from midrun.codec.hidden_characters import escape_hidden, show_hidden

TAB: Final = 4


def printable(text: str) -> str:
    """Return `text` with newlines as they are, tabs as blanks, and nothing else that acts."""
    shown = show_hidden(text, prose=True)
    if "\t" not in shown:
        return shown
    return "\n".join(line.expandtabs(TAB) for line in shown.split("\n"))


def exact(text: str) -> str:
    """Return arguments, a path, a command or a result with every hidden character shown."""
    return show_hidden(text)


def flat(text: str) -> str:
    """Return `text` as one line."""
    return printable(" ".join(text.split()))


def json_line(text: str) -> str:
    """Return JSON that means the same, and that a terminal only shows."""
    return escape_hidden(text)
