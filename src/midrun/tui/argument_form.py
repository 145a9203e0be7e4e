r"""The arguments of a call as a form: the composer edits one field after the other.

Each text, number and truth value is a field, also inside of objects and lists. A list of such
values has one more field at its end, which adds an item; an item whose text is removed is
removed from the list. A person types no JSON. The type of a field is that of its value.

A text with line breaks or hidden characters is edited with escapes, because the composer has
one line and must not hide a character: `\n` is a line break.
"""

import re
from copy import deepcopy
from typing import Final, TypeAlias, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.strict_json import parse_json, parse_json_or_text
from midrun.core.values import Json
from midrun.errors import NotJson
from midrun.text.hidden_characters import escape_hidden, show_hidden
from midrun.tui.styled_text import escape_to_one_line

Path: TypeAlias = tuple[str | int, ...]

TRUTH_WORDS: Final = {"yes": True, "true": True, "no": False, "false": False}
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_ESCAPE_OR_QUOTE: Final = re.compile(r'(\\.)|"')


class Field(Struct, frozen=True, kw_only=True):
    """One value of the arguments. `sample` has the type of an item that is to be added."""

    path: Path
    label: str
    value: Json = None
    is_item: bool = False
    is_new: bool = False
    sample: Json = ""

    @property
    def is_plain(self) -> bool:
        """Whether a text is edited as it is, without escapes."""
        value = self.value
        return not isinstance(value, str) or (show_hidden(value) == value and "\n" not in value)

    @property
    def text(self) -> str:
        """The value as the text of the composer."""
        if self.is_new or self.value is None:
            return ""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        if not self.is_plain:
            return escape_hidden(msgspec.json.encode(self.value).decode())[1:-1].replace(
                '\\"', '"'
            )
        return str(self.value)

    def parse(self, text: str) -> Json:
        """Return the value that the user has typed.

        Raises:
            ValueError: The text does not fit the type of the field; the message says why.
        """
        if text == self.text.strip():
            return self.value
        kind = self.sample if self.is_new else self.value
        if isinstance(kind, bool):
            if text.lower() not in TRUTH_WORDS:
                raise ValueError(f"Cannot use “{text}” for {self.label}. Type yes or no.")
            return TRUTH_WORDS[text.lower()]
        if isinstance(kind, int | float):
            return self._parse_number(text)
        if kind is None:
            return parse_json_or_text(text)
        return text if self.is_plain else self._parse_escaped(text)

    def _parse_number(self, text: str) -> Json:
        try:
            if _NUMBER.fullmatch(text):
                return parse_json(text)
        except NotJson:
            pass  # too large
        message = f"Cannot use “{text}” for {self.label}: it is not a number."
        raise ValueError(f"{message} Type digits, as in 7 or 2.5.")

    def _parse_escaped(self, text: str) -> Json:
        quoted = _ESCAPE_OR_QUOTE.sub(lambda found: found[1] or '\\"', text)
        try:
            return parse_json(f'"{quoted}"')
        except NotJson as error:
            message = f"Cannot use the text for {self.label}: an escape is not complete."
            raise ValueError(f"{message} Type \\n for a line break, \\\\ for \\.") from error


def list_fields(value: Json, path: Path = (), label: str = "") -> list[Field]:
    """Return the fields of a value, in order; an object without fields has none."""
    if isinstance(value, dict):
        return [
            field
            for name, part in value.items()
            for field in list_fields(part, (*path, name), _join_labels(label, name))
        ]
    if not isinstance(value, list):
        return [Field(path=path, label=label, value=value)] if path else []
    fields: list[Field] = []
    for index, item in enumerate(value):
        found = list_fields(item, (*path, index), f"{label}, item {index + 1}".lstrip(", "))
        is_item = not isinstance(item, dict | list)
        fields += [replace(field, is_item=is_item) for field in found] if is_item else found
    if not any(isinstance(item, dict | list) for item in value):
        sample = value[0] if value else ""
        more = f"{label}, one more".lstrip(", ")
        fields.append(Field(path=(*path, len(value)), label=more, is_new=True, sample=sample))
    return fields


def _join_labels(label: str, name: str) -> str:
    shown = escape_to_one_line(show_hidden(name))
    return f"{label}, {shown}" if label else shown


class ArgumentForm(Struct, frozen=True):
    """Arguments with the texts that were typed for the first fields."""

    args: Json
    fields: tuple[Field, ...]
    texts: tuple[str, ...] = ()

    @classmethod
    def open(cls, args: Json) -> "ArgumentForm":
        """Return a form in which no field is edited yet."""
        return cls(args, tuple(list_fields(args)))

    @property
    def current(self) -> Field:
        """The field that is edited now."""
        return self.fields[len(self.texts)]

    @property
    def is_complete(self) -> bool:
        """Whether there is a text for each field."""
        return len(self.texts) == len(self.fields)

    def enter(self, text: str) -> "ArgumentForm":
        """Return the form with the text of the current field; after a new item comes another.

        Raises:
            ValueError: The text does not fit the type of the field.
        """
        field, fields = self.current, self.fields
        if text or not (field.is_new or field.is_item):
            field.parse(text)
        if field.is_new and text:
            *parents, index = field.path
            path = (*parents, cast("int", index) + 1)
            position = len(self.texts) + 1
            following = replace(field, path=path)
            fields = (*fields[:position], following, *fields[position:])
        return ArgumentForm(self.args, fields, (*self.texts, text))

    def build_arguments(self) -> Json:
        """Return the arguments with the texts; fields without one are unchanged."""
        args = deepcopy(self.args)
        removed: list[Path] = []
        for field, text in zip(self.fields, self.texts, strict=False):
            parent = _find_parent(args, field.path)
            if field.is_new:
                if text:
                    cast("list[Json]", parent).append(field.parse(text))
            elif field.is_item and not text and field.text:
                removed.append(field.path)
            else:
                parent[field.path[-1]] = field.parse(text)
        for path in reversed(removed):  # the later items of a list first: the others stay
            del _find_parent(args, path)[path[-1]]
        return args


def _find_parent(args: Json, path: Path) -> "dict[str | int, Json]":
    """Return the object or the list that has the value at `path`."""
    parent = cast("dict[str | int, Json]", args)
    for step in path[:-1]:
        parent = cast("dict[str | int, Json]", parent[step])
    return parent
