"""Placeholders: find `[redacted:…]` in the arguments of a call, and decide about its approval.

The author of a tool declares which fields hold secrets (`Traits.secret`). The driver replaces
each secret by a placeholder before anything is journaled. An approver cannot see the value
behind a placeholder. In a declared field that is expected. In any other field the agent may
have chosen the value, so the core refuses to approve such a call.

The texts of `describe_hidden` are stored in the asks of child runs: do not change them.
"""

import re
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from midrun.core.state import Ask
from midrun.core.values import Json, RequestedCall, Traits

PLACEHOLDER: Final = re.compile(r"\[redacted:[0-9a-f]{12}\]")
PLACEHOLDER_PREFIX: Final = "[redacted:"

NAMED_FIELDS_MAX: Final = 8
"""The number of fields that a description names before it says "and others"."""


def find_hidden_fields(use: RequestedCall) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the hidden fields of a use: those declared secret, and all others.

    A field is a path of keys, joined by dots; the items of a list share the path of the list.
    """
    declared: dict[str, None] = {}
    others: dict[str, None] = {}
    for path, text in _walk_texts(use.args, ""):
        if PLACEHOLDER_PREFIX in text and PLACEHOLDER.search(text):
            found = declared if is_declared(path, use.traits.secret) else others
            found[path] = None
    return tuple(declared), tuple(others)


def is_declared(path: str, declared: tuple[str, ...]) -> bool:
    """Tell whether a field, or one that contains it, is among the `declared` paths."""
    plain = path.casefold()
    return any(
        plain == one or plain.startswith(f"{one}.") for one in map(str.casefold, declared)
    )


def describe_hidden(use: RequestedCall) -> str:
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


def check_hidden(ask: Ask, use: RequestedCall, args: Json = None) -> tuple[str, bool]:
    """Describe the hidden arguments of an approval; tell whether it may be granted.

    `use` is the call of `ask`, `args` its edited arguments, if any. The ask of a child run is
    about a call of the child. The parent does not know that call: it reads the description in
    the data of the ask, and for edited arguments the declared fields.
    """
    if ask.effective_kind != "approval":
        return "", True
    if ask.ask_kind == "child":
        data = ask.data if isinstance(ask.data, dict) else {}
        if args is None:
            return str(data.get("hidden", "")), not data.get("unapprovable", False)
        declared = data.get("secret", ())
        traits = Traits(secret=tuple(declared) if isinstance(declared, list | tuple) else ())
        use = RequestedCall(tool=str(data.get("tool", "")), traits=traits)
    if args is not None:
        use = replace(use, args=args)
    return describe_hidden(use), not find_hidden_fields(use)[1]


def join_path(path: str, key: str) -> str:
    """Return the path of the field `key` inside `path`."""
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
                yield join_path(path, str(key)), str(key)  # a key may hold a placeholder, too
                yield from _walk_texts(inner, join_path(path, str(key)))
        case list() | tuple():
            for inner in value:
                yield from _walk_texts(inner, path)
        case _:
            return
