"""Decode JSON of a server to the values that `Run` returns.

On the wire all fields are present and times are RFC 3339 text. In Python a time is an int
(`Micros`). So a converter is built once per type, from its annotations: it turns the text of
every `Micros` field into an int and drops unknown fields, which a newer server may send. Then
msgspec validates the result.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Final, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from midrun.core.entries import ENTRY_TYPES, Entry
from midrun.core.ids import Micros, datetime_to_micros
from midrun.driver.delta import Delta
from midrun.errors import JournalTooNew
from midrun.runs.values import FeedEntry
from midrun.runs.wire import FeedEvent

S = TypeVar("S", bound=Struct)

_ENTRY_CLASSES: Final[Mapping[str, type[Entry]]] = {kind.__name__: kind for kind in ENTRY_TYPES}

_Converter = Callable[[object], object]


def decode_value(kind: type[S], data: object) -> S:
    """Convert `data`, decoded from JSON, to a value of `kind`.

    Raises:
        msgspec.ValidationError: It does not have the form of that type.
    """
    converter = _make_converter(kind)
    return msgspec.convert(data if converter is None else converter(data), kind)


def decode_feed_entry(data: object) -> FeedEntry:
    """Convert an event of the feed to a feed item.

    Raises:
        JournalTooNew: This version does not know the kind of entry.
    """
    event = decode_value(FeedEvent, data)
    name = str(event.data.get("kind")) if isinstance(event.data, dict) else ""
    kind = _ENTRY_CLASSES.get(name)
    if kind is None:
        raise JournalTooNew(event.run_id, event.seq, name)
    entry = decode_value(cast("type[Struct]", kind), event.data)
    return FeedEntry(
        seq=event.seq, at=event.ts, kind=name, entry=cast("Entry", entry), epoch=event.epoch
    )


def decode_delta(data: object) -> Delta:
    """Convert an event of the feed to a live delta."""
    return decode_value(Delta, data)


def parse_time(text: object) -> object:
    """Convert RFC 3339 text to microseconds; return any other value unchanged.

    The validation of the type then refuses it.
    """
    if not isinstance(text, str):
        return text
    try:
        return datetime_to_micros(datetime.fromisoformat(text))
    except (ValueError, TypeError):
        return text


@cache
def _make_converter(hint: object) -> _Converter | None:
    """Return the function that converts wire data to data of the type `hint`.

    None means that no conversion is needed.
    """
    if hint is Micros:
        return parse_time
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _make_struct_converter(hint)
    inner = [found for arg in get_args(hint) if (found := _make_converter(arg)) is not None]
    if not inner:
        return None
    if get_origin(hint) is tuple:
        return lambda data: _convert_items(inner[0], data)
    if get_origin(hint) is dict:
        return lambda data: _convert_values(inner[0], data)
    # A union. Of `X | None` there is one converter. In a union of several structs the tag
    # selects the type, which this function does not look at; none of those structs has times.
    return inner[0] if len(inner) == 1 else None


def _make_struct_converter(kind: type[Struct]) -> _Converter:
    tag = kind.__struct_config__.tag_field

    # Evaluated at the first use, not here: a struct may have a field of its own type, and the
    # recursion would not end.
    @cache
    def fields() -> dict[str, _Converter | None]:
        hints = get_type_hints(kind)
        return {name: _make_converter(hints[name]) for name in kind.__struct_fields__}

    def convert(data: object) -> object:
        if not isinstance(data, dict):
            return data
        known = fields()
        converted: dict[str, object] = {}
        for name, value in data.items():
            if name in known:
                converter = known[name]
                converted[name] = value if converter is None else converter(value)
            elif name == tag:
                converted[name] = value
        return converted

    return convert


def _convert_items(convert: _Converter, data: object) -> object:
    return [convert(item) for item in data] if isinstance(data, list) else data


def _convert_values(convert: _Converter, data: object) -> object:
    if not isinstance(data, dict):
        return data
    return {key: convert(value) for key, value in data.items()}
