"""Values as the wire has them: every field there, times as RFC 3339.

In code a default is left out and a time is a number; a client that never saw our classes needs
neither riddle. What a user's data says is passed on as it is.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from functools import cache
from typing import Final, get_args, get_type_hints

import msgspec
from msgspec import Struct

from midrun.core.dates import date_of
from midrun.core.ids import Micros
from midrun.core.values import Use

_FREE: Final = get_type_hints(Use)["args"]
_TIME_SCHEMA: Final = {"type": "string", "format": "date-time"}


class _As(Enum):
    TIME = auto()
    FREE = auto()  # a user's own JSON: not looked into
    VALUE = auto()


def rfc3339(at: Micros) -> str:
    """Return a time as text, to the microsecond, in UTC."""
    return date_of(at).isoformat().replace("+00:00", "Z")


def plain(value: object) -> object:
    """Return `value` as JSON data with nothing left out."""
    if isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def encoded(value: object) -> bytes:
    """Return `value` as the bytes of a response."""
    return msgspec.json.encode(plain(value))


def _fields(value: Struct) -> dict[str, object]:
    config = value.__struct_config__
    made: dict[str, object] = {}
    if config.tag_field is not None:
        made[config.tag_field] = config.tag
    for name, how in _shape(type(value)):
        held = getattr(value, name)
        if how is _As.VALUE:
            held = plain(held)
        elif how is _As.TIME and held is not None:
            held = rfc3339(held)
        made[name] = held
    return made


@cache
def _shape(kind: type[Struct]) -> tuple[tuple[str, _As], ...]:
    hints = get_type_hints(kind)
    return tuple((name, _how(hints[name])) for name in kind.__struct_fields__)


def _how(hint: object) -> _As:
    if hint is _FREE:
        return _As.FREE
    return _As.TIME if hint is Micros or Micros in get_args(hint) else _As.VALUE


# ── the same, as JSON Schema ─────────────────────────────────────────────────


def schemas(given: Iterable[type[Struct]], shown: Iterable[type[Struct]]) -> dict[str, object]:
    """Return the components of what clients send, and of what they are shown.

    What is shown has all its fields; what is sent may leave out what has a default.
    """
    shown = tuple(shown)
    _, components = msgspec.json.schema_components(
        (*given, *shown), ref_template="#/components/schemas/{name}"
    )
    for kind in {part for one in shown for part in _parts(one)}:
        component = components.get(kind.__name__)
        if component is None:
            continue
        component["required"] = sorted(component["properties"])
        for name, how in _shape(kind):
            if how is _As.TIME:
                maybe = "anyOf" in component["properties"][name]
                component["properties"][name] = (
                    {"anyOf": [_TIME_SCHEMA, {"type": "null"}]} if maybe else _TIME_SCHEMA
                )
    return components


def _parts(hint: object) -> Iterator[type[Struct]]:
    """Yield the structs that a type is made of."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
        for inner in get_type_hints(hint).values():
            if inner is not hint:
                yield from _parts(inner)
    for inner in get_args(hint):
        yield from _parts(inner)
