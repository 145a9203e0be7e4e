"""Placeholders: where `[redacted:…]` stands in the arguments of a call, and by whose word.

A tool's author declares which fields hold secrets (`Traits.secret`). The shell puts a
placeholder in the place of a secret before anything is journaled. An approver who sees one
where the author declared nothing would approve a value that they cannot know, and that the
agent may have chosen: the core does not let that call be approved.
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from midrun.core.state import Ask
from midrun.core.values import Json, Traits, Use

PLACEHOLDER: Final = re.compile(r"\[redacted:[0-9a-f]{12}\]")
OPENING: Final = "[redacted:"

NAMED_FIELDS_MAX: Final = 8
"""The number of fields that a description names before it says "and others"."""


def find_hidden_fields(use: Use) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hidden fields of a use: those that its tool declares secret, then the rest.

    A field is its path of keys, joined by dots; the items of a list share the path of the list.
    """
    declared: dict[str, None] = {}
    others: dict[str, None] = {}
    for path, text in _walk_texts(use.args, ""):
        if OPENING in text and PLACEHOLDER.search(text):
            found = declared if is_declared(path, use.traits.secret) else others
            found[path] = None
    return tuple(declared), tuple(others)


def is_declared(path: str, declared: tuple[str, ...]) -> bool:
    """Tell whether a field, or one that it is inside of, is among the `declared` paths."""
    plain = path.casefold()
    return any(
        plain == one or plain.startswith(f"{one}.") for one in map(str.casefold, declared)
    )


def describe_hidden(use: Use) -> str:
    """Describe the hidden arguments of `use` for its approver; "" if there are none."""
    declared, others = find_hidden_fields(use)
    words: list[str] = []
    if declared:
        words.append(
            f"Hidden from you: {_join_paths(declared)}; tool {use.tool} declares it secret."
        )
    if others:
        words.append(
            f"Cannot be approved as it is: {_join_paths(others)} is hidden, and tool "
            f"{use.tool} does not declare it secret. Decline it, or approve it with other "
            "arguments."
        )
    return " ".join(words)


def check_hidden(ask: Ask, use: Use, args: Json = None) -> tuple[str, bool]:
    """Describe the hidden arguments of an approval; tell whether it can be given.

    `use` is the call that `ask` is about, and `args` its edited arguments, if any. An ask
    of a child run is about a call of the child; the parent reads the description in its data.
    """
    if ask.kind != "approval":
        return "", True
    if ask.ask_kind == "child":
        data = ask.data if isinstance(ask.data, dict) else {}
        if args is None:
            return str(data.get("hidden", "")), not data.get("unapprovable", False)
        declared = data.get("secret", ())
        traits = Traits(secret=tuple(declared) if isinstance(declared, list | tuple) else ())
        use = Use(tool=str(data.get("tool", "")), traits=traits)
    if args is not None:
        use = replace(use, args=args)
    return describe_hidden(use), not find_hidden_fields(use)[1]


def join_path(path: str, key: str) -> str:
    """Return the path of the field `key` inside of `path`."""
    return f"{path}.{key}" if path else key


def _join_paths(paths: tuple[str, ...]) -> str:
    more = " and others" if len(paths) > NAMED_FIELDS_MAX else ""
    return ", ".join(paths[:NAMED_FIELDS_MAX]) + more


def _walk_texts(value: Json, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for key, inner in value.items():
                yield join_path(path, str(key)), str(key)  # a key may carry text, too
                yield from _walk_texts(inner, join_path(path, str(key)))
        case list() | tuple():
            for inner in value:
                yield from _walk_texts(inner, path)
        case _:
            return
