"""Escape foreign text, so that no model, tool or journal can control the terminal.

Characters that could move the cursor, change the title, answer a query, change the reading
direction or be invisible are replaced by visible symbols. Everything that is printed passes
through here last. Arguments and results also pass through `show_hidden_characters` before,
which shows every hidden character.
"""

from typing import Final

from midrun.codec.hidden_characters import escape_hidden, show_hidden

TAB_COLUMNS: Final = 4


def escape_controls(text: str) -> str:
    """Return `text` safe to print: newlines kept, tabs expanded, controls made visible."""
    visible = show_hidden(text, prose=True)
    if "\t" not in visible:
        return visible
    return "\n".join(line.expandtabs(TAB_COLUMNS) for line in visible.split("\n"))


def show_hidden_characters(text: str) -> str:
    """Return arguments, paths, commands or results with every hidden character visible."""
    return show_hidden(text)


def escape_to_one_line(text: str) -> str:
    """Return `text` as one printable line."""
    return escape_controls(" ".join(text.split()))


def escape_json(text: str) -> str:
    """Return JSON text with the same value and without characters that control a terminal."""
    return escape_hidden(text)
