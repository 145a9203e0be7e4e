"""Schemas of the wire: request bodies, and the conversion of values to JSON.

- `normalize_integers` prepares a body for msgspec: JSON Schema treats 5.0 as an integer.
- `to_wire` converts values to JSON: all fields present, times as RFC 3339.
- `make_schemas` describes both directions as JSON Schema for the OpenAPI document.
- The `Body` classes are the request bodies that are not controls; those of controls are in
  `midrun.runs.control_bodies`. An unknown field is refused, not ignored.
"""

from collections.abc import Iterable, Iterator
from enum import Enum, auto
from functools import cache
from typing import Annotated, Final, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec import inspect as info

from midrun.core.ids import Micros, micros_to_datetime
from midrun.core.stops import Stop
from midrun.core.values import Json, RequestedCall
from midrun.runs.control_bodies import ID_MAX_CHARS, Body, Caps, FileBodies, Line, Name, Text
from midrun.runs.validation import LABELS_MAX, NON_SPACE_PATTERN
from midrun.runs.values import RunSelection

# Integral floats in bodies.
#
# JSON Schema treats 5.0 as an integer, msgspec does not. The JSON parser keeps the difference,
# because user data (tool arguments, answers) is stored as it was sent. So floats are converted
# only where the body's type is int.


def normalize_integers(data: object, body_type: type[Struct]) -> object:
    """Convert integral floats in `data` to int where `kind` has an int field."""
    return _normalize(data, _get_type_info(body_type))


@cache
def _get_type_info(struct_type: type[Struct]) -> info.Type:
    return info.type_info(struct_type)


def _normalize(data: object, type_info: info.Type) -> object:
    match type_info, data:
        case info.IntType(), float() if data.is_integer():
            return int(data)
        case info.UnionType(), _:
            # Every member may convert its part; one that does not fit changes nothing.
            for member in type_info.types:
                data = _normalize(data, member)
        case info.StructType(), dict() if _has_tag(data, type_info):
            fields = {field.encode_name: field.type for field in type_info.fields}
            known = data.keys() & fields.keys()
            return data | {name: _normalize(data[name], fields[name]) for name in known}
        case info.VarTupleType(), list():
            return [_normalize(item, type_info.item_type) for item in data]
        case _:
            pass
    return data


def _has_tag(data: dict[object, object], type_info: info.StructType) -> bool:
    """Return whether `data` has the tag of this struct, or the struct has none."""
    return type_info.tag_field is None or data.get(type_info.tag_field) == type_info.tag


# Values on the wire.
#
# Internally, default fields are omitted and times are integers. On the wire, every field is
# present and times are RFC 3339, so a client needs no knowledge of the classes. User data is
# passed on unchanged.

_USER_JSON: Final = get_type_hints(RequestedCall)["args"]
_TIME_SCHEMA: Final = {"type": "string", "format": "date-time"}


class _FieldKind(Enum):
    TIME = auto()
    USER_JSON = auto()  # JSON of the user: passed on unchanged
    VALUE = auto()


def format_rfc3339(at: Micros) -> str:
    """Format a time as RFC 3339, in UTC, with microseconds."""
    return micros_to_datetime(at).isoformat().replace("+00:00", "Z")


def to_wire(value: object) -> object:
    """Convert `value` to JSON data with all fields present."""
    if isinstance(value, Struct):
        return _struct_to_wire(value)
    if isinstance(value, tuple | list):
        return [to_wire(item) for item in value]
    if isinstance(value, dict):
        return {key: to_wire(item) for key, item in value.items()}
    return value


def encode_wire(value: object) -> bytes:
    """Encode `value` as the body of a response."""
    return msgspec.json.encode(to_wire(value))


def _struct_to_wire(value: Struct) -> dict[str, object]:
    config = value.__struct_config__
    fields: dict[str, object] = {}
    if config.tag_field is not None:
        fields[config.tag_field] = config.tag
    for name, how in _list_field_kinds(type(value)):
        content = getattr(value, name)
        if how is _FieldKind.VALUE:
            content = to_wire(content)
        elif how is _FieldKind.TIME and content is not None:
            content = format_rfc3339(content)
        fields[name] = content
    return fields


@cache
def _list_field_kinds(struct_type: type[Struct]) -> tuple[tuple[str, _FieldKind], ...]:
    hints = get_type_hints(struct_type)
    return tuple(
        (name, _find_field_kind(hints[name])) for name in struct_type.__struct_fields__
    )


def _find_field_kind(hint: object) -> _FieldKind:
    # The alias `Json` is `Any` at run time; only fields of user data have that hint.
    if hint is _USER_JSON:
        return _FieldKind.USER_JSON
    return _FieldKind.TIME if hint is Micros or Micros in get_args(hint) else _FieldKind.VALUE


# ── JSON Schema ──────────────────────────────────────────────────────────────


def make_schemas(
    body_types: Iterable[type[Struct]], response_types: Iterable[type[Struct]]
) -> dict[str, object]:
    """Return the schemas of request bodies and of responses.

    msgspec describes the Python classes. The loop adapts the responses to `to_wire`: all fields
    are required, and times are strings. A request body may omit a field that has a default.
    """
    response_types = tuple(response_types)
    _, components = msgspec.json.schema_components(
        (*body_types, *response_types), ref_template="#/components/schemas/{name}"
    )
    for kind in {part for one in response_types for part in _iter_nested_structs(one)}:
        component = components.get(kind.__name__)
        if component is None:
            continue
        component["required"] = sorted(component["properties"])
        for name, how in _list_field_kinds(kind):
            if how is _FieldKind.TIME:
                is_optional = "anyOf" in component["properties"][name]
                component["properties"][name] = (
                    {"anyOf": [_TIME_SCHEMA, {"type": "null"}]} if is_optional else _TIME_SCHEMA
                )
    return components


def _iter_nested_structs(hint: object) -> Iterator[type[Struct]]:
    """Yield a struct and all structs nested in its fields."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
        for inner in get_type_hints(hint).values():
            if inner is not hint:
                yield from _iter_nested_structs(inner)
    for inner in get_args(hint):
        yield from _iter_nested_structs(inner)


# The scope of a halt. `(?!\n)` because `$` also matches before a final newline in Python; in
# JavaScript it does not, and the pattern means the same in both.
HALT_SCOPE_PATTERN = r"^(all|(agent|label|run):[^\n]{1,200})(?!\n)$"


class StartBody(Body, kw_only=True):
    """A run to start. `caps` or `stop` replace the agent's own stop condition.

    `tenant` is by default that of the caller. `team` shares the run with a team.
    """

    agent: Name
    input: Annotated[
        Text, Meta(extra_json_schema={"pattern": NON_SPACE_PATTERN})
    ]  # as `Midrun.start` checks it
    thread_id: Annotated[str, Meta(max_length=ID_MAX_CHARS)] = ""
    labels: Annotated[tuple[Name, ...], Meta(max_length=LABELS_MAX)] = ()
    caps: Caps = Caps()
    stop: Stop | None = None
    files: FileBodies = ()
    tenant: Name | None = None
    team: Annotated[str, Meta(max_length=ID_MAX_CHARS)] = ""


class ForkBody(Body, kw_only=True):
    """Fork the run from the boundary at `seq`, by default from the newest."""

    seq: Annotated[int, Meta(ge=-(2**53) + 1, le=2**53 - 1)] | None = None
    instruction: Text = ""
    files: FileBodies = ()


class CheckpointBody(Body, kw_only=True):
    """A checkpoint to resume, with the answer that it waits for, as for `Midrun.resume`."""

    checkpoint: dict[str, Json]
    answer: Json = None
    instruction: Text = ""
    caps: Caps = Caps()


class HaltBody(Body, kw_only=True):
    """A halt to set. `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`.

    It covers the tenant of the caller. A caller of no tenant may name one; otherwise it covers
    all.
    """

    scope: Annotated[str, Meta(pattern=HALT_SCOPE_PATTERN)]
    reason: Line = ""
    tenant: Name | None = None


class DeletionBody(Body, kw_only=True):
    """The runs to delete, and the reason for their tombstones."""

    runs: RunSelection
    reason: Line = ""


class LiftBody(Body, kw_only=True):
    """The halt to lift; `tenant` as for the halt."""

    scope: Annotated[str, Meta(pattern=HALT_SCOPE_PATTERN)]
    tenant: Name | None = None


class EndSessionsBody(Body, kw_only=True):
    """The actor whose browsers are signed out."""

    actor: Annotated[str, Meta(min_length=1, max_length=200)]
