"""Declared titles of tools: `@tool(title="Write section “{heading}”")`.

A template names parameters of the tool in braces. It is checked when the tool is declared, so
that a misspelt name fails at import. A function gets the arguments as a dict and returns text.
Both are rendered from the arguments as they are journaled, with secrets redacted. A title is
never a reason to fail: if it cannot be rendered, the call has the default title.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from inspect import iscoroutinefunction, signature
from string import Formatter
from typing import Final, TypeAlias

from midrun.agents.signature import Function
from midrun.core.values import Json
from midrun.text.titles import clean_title, format_title_value

Title: TypeAlias = str | Function
"""A template over the arguments, or a function of them."""

_MARKS: Final = frozenset({"“”", '""', "«»", "»«", "„“", "„”"})
"""The marks around a placeholder that show where its text begins and ends.

Each of them is replaced inside values. Single marks and brackets are not, because they are
frequent in texts: a placeholder between them gets marks of its own.
"""


def find_title_problem(title: object, parameters: Iterable[str]) -> str:
    """Return the reason why `title` cannot be the title of a tool, or ""."""
    if title is None:
        return ""
    if callable(title):
        is_fit = _accepts_one(title) and not iscoroutinefunction(title)
        return "" if is_fit else "title must be callable as title(args), and must not be async"
    if not isinstance(title, str) or not title.strip():
        return f"title must be a text or a function of the arguments, got {title!r}"
    known = list(parameters)
    try:
        fields = [field for _, field, _, _ in Formatter().parse(title) if field is not None]
    except ValueError as error:
        return f"Cannot read title: {error}. Write {{{{ and }}}} for braces."
    for field in fields:
        if field not in known:
            names = ", ".join(known) or "none"
            return f"Cannot use {{{field}}} in title: its parameters are: {names}."
    return ""


def render_title(title: Title | None, args: Json, schema: Mapping[str, Json]) -> str:
    """Return the title of a call with `args`, or "" if there is none for them.

    `schema` is the JSON Schema of the arguments; a default in it stands for a missing argument.
    """
    if title is None or not isinstance(args, dict):
        return ""
    try:
        if isinstance(title, str):
            return clean_title(_fill_template(title, {**_find_defaults(schema), **args}))
        made = title(deepcopy(args))  # a copy: it may change its argument
    except BaseException as error:
        # `title` is user code. A tool may raise `PauseHere`, a BaseException, from it.
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        return ""
    return clean_title(made) if isinstance(made, str) else ""


def _fill_template(template: str, values: Mapping[str, Json]) -> str:
    """Return the template with its values; a text without quotation marks gets them."""
    parts: list[str] = []
    pieces = list(Formatter().parse(template))
    for index, (literal, field, spec, _) in enumerate(pieces):
        parts.append(literal)
        if field is None:
            continue
        following = pieces[index + 1][0] if index + 1 < len(pieces) else ""
        marks = literal[-1:] + following[:1]
        parts.append(_format_value(values[field], spec or "", quoted=marks not in _MARKS))
    return "".join(parts)


def _format_value(value: Json, spec: str, *, quoted: bool) -> str:
    if spec and isinstance(value, int | float):
        return format(value, spec)
    return format_title_value(value, quoted=quoted)


def _find_defaults(schema: Mapping[str, Json]) -> dict[str, Json]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {
        name: part["default"]
        for name, part in properties.items()
        if isinstance(part, dict) and "default" in part
    }


def _accepts_one(fn: object) -> bool:
    try:
        signature(fn).bind({})  # type: ignore[arg-type]  # `callable` was asked before
    except (TypeError, ValueError):
        return False
    return True
