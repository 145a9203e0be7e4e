"""Titles of calls: one line that tells people about a call.

The author of a tool declares a title: a template over the arguments, or a function. The driver
renders it when the call is proposed, and the journal stores it with the call, because a process
that shows the run may not have the code of the tool. A call without a declared title gets one
here, from the name of the tool and the arguments.

A title is a summary. It never takes the place of the arguments where a person decides. The text
of an argument must not imitate the words around it, so a text is quoted, quotation marks inside
it are replaced, and hidden characters are made visible.
"""

from typing import Final

from midrun.core.values import Json, RequestedCall, humanize_name
from midrun.text.hidden_characters import show_hidden
from midrun.text.phrases import (
    QUOTATION_MARKS,
    flatten,
    is_described_elsewhere,
    is_empty,
)

TITLE_MAX_CHARS: Final = 160
"""Maximum length of a title."""

VALUE_MAX_CHARS: Final = 60
"""Maximum length of one argument in a title."""

LISTED_MAX_ITEMS: Final = 3
"""Maximum number of items of a list in a title; more are counted."""

_BUILT_IN_TITLES: Final = {"plan": "Update the plan", "ask_human": "Ask a person"}
_QUOTATION_MARKS: Final = str.maketrans(dict.fromkeys(QUOTATION_MARKS, "'"))


def format_title(use: RequestedCall) -> str:
    """Return the title of a call: the declared one, or its tool and its arguments."""
    # A title of an imported journal may be of any length.
    return clean_title(use.title) if use.title else format_default_title(use)


def format_default_title(use: RequestedCall) -> str:
    """Return a title of the name and the arguments: "Send mail: to “ada”, copies 2"."""
    if not use.tool:
        return "Call the model"
    if is_described_elsewhere(use):
        return _BUILT_IN_TITLES[use.tool]
    name = humanize_name(use.tool)
    if is_empty(use.args):
        return clean_title(name)
    if not isinstance(use.args, dict):
        return clean_title(f"{name}: {format_title_value(use.args)}")
    pairs = (
        f"{_format_key(key)} {format_title_value(value)}"
        for key, value in use.args.items()
        if not is_empty(value)
    )
    said = ", ".join(pairs)
    return clean_title(f"{name}: {said}" if said else name)


def _format_key(key: str) -> str:
    """Return the name of an argument, in quotation marks if it is not a plain identifier.

    A tool that accepts any arguments gets their names from the model, too.
    """
    is_plain = key.isascii() and key.isidentifier() and len(key) <= VALUE_MAX_CHARS
    return (key.strip("_").replace("_", " ") or key) if is_plain else format_title_value(key)


def format_title_value(value: Json, *, quoted: bool = True) -> str:
    """Return one argument for a title: a text in quotation marks, and everything shortened.

    Without `quoted` the marks are left out: the template has them around the placeholder.
    """
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return flatten(str(value), VALUE_MAX_CHARS)
        case None:
            return "nothing"
        case list():
            return _format_list(value, quoted=quoted)
        case dict():
            return _format_object(value)
        case _:
            text = str(value)
    # Only the beginning is shown. Escaping all of a text of megabytes would block the caller.
    text = flatten(show_hidden(text[: VALUE_MAX_CHARS * 20]), VALUE_MAX_CHARS)
    text = text.translate(_QUOTATION_MARKS)
    return f"“{text}”" if quoted else text


def _format_object(value: dict[str, Json]) -> str:
    """Return an object in brackets: its first fields, and the number of the others."""
    filled = {key: item for key, item in value.items() if not is_empty(item)}
    shown = [
        f"{_format_key(key)} {format_title_value(item)}"
        for key, item in list(filled.items())[:LISTED_MAX_ITEMS]
    ]
    more = len(filled) - len(shown)
    said = (", ".join(shown) or "nothing") + (f" and {more} more" if more else "")
    return f"({said})" if len(said) <= 2 * VALUE_MAX_CHARS else f"{len(filled)} fields"


def _format_list(items: list[Json], *, quoted: bool) -> str:
    if not items:
        return "nothing"
    shown = [format_title_value(item, quoted=quoted) for item in items[:LISTED_MAX_ITEMS]]
    more = len(items) - len(shown)
    said = ", ".join(shown) + (f" and {more} more" if more else "")
    return said if len(said) <= 2 * VALUE_MAX_CHARS else f"{len(items)} items"


def clean_title(text: str) -> str:
    """Return `text` as a title: one line, without hidden characters, cut to its limit."""
    return flatten(show_hidden(text[: TITLE_MAX_CHARS * 20], prose=True), TITLE_MAX_CHARS)
