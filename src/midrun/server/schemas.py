"""Schemas of the wire: request bodies, and the conversion of values to JSON.

- `normalize_integers` prepares a body for msgspec: JSON Schema treats 5.0 as an integer.
- `to_wire` converts values to JSON: all fields present, times as RFC 3339.
- `make_schemas` describes both directions as JSON Schema for the OpenAPI document.
- The `Body` classes are the request bodies. An unknown field is refused, not ignored.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum, auto
from functools import cache
from typing import Annotated, Final, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec import inspect as info
from msgspec.structs import asdict

from midrun.core.ids import Micros, date_of
from midrun.core.run_head import NAME_MAX_CHARS
from midrun.core.stops import Stop
from midrun.core.values import Json, UndoSet, Urgency, Use, Value, When
from midrun.runs.validation import LABELS_MAX, REASON_MAX_CHARS, WORDS

# Integral floats in bodies.
#
# JSON Schema treats 5.0 as an integer, msgspec does not. The JSON parser keeps the difference,
# because user data (tool arguments, answers) is stored as it was sent. So floats are converted
# only where the body's type is int.


def whole(data: object, kind: type[Struct]) -> object:
    """Convert integral floats in `data` to int where `kind` has an int field."""
    return _whole(data, _type(kind))


@cache
def _type(kind: type[Struct]) -> info.Type:
    return info.type_info(kind)


def _whole(data: object, kind: info.Type) -> object:
    match kind, data:
        case info.IntType(), float() if data.is_integer():
            return int(data)
        case info.UnionType(), _:
            # Every member may convert its part; one that does not fit changes nothing.
            for member in kind.types:
                data = _whole(data, member)
        case info.StructType(), dict() if _is(data, kind):
            fields = {field.encode_name: field.type for field in kind.fields}
            known = data.keys() & fields.keys()
            return data | {name: _whole(data[name], fields[name]) for name in known}
        case info.VarTupleType(), list():
            return [_whole(item, kind.item_type) for item in data]
        case _:
            pass
    return data


def _is(data: dict[object, object], kind: info.StructType) -> bool:
    """Return whether `data` has the tag of this struct, or the struct has none."""
    return kind.tag_field is None or data.get(kind.tag_field) == kind.tag


# Values on the wire.
#
# Internally, default fields are omitted and times are integers. On the wire, every field is
# present and times are RFC 3339, so a client needs no knowledge of the classes. User data is
# passed on unchanged.

_FREE: Final = get_type_hints(Use)["args"]
_TIME_SCHEMA: Final = {"type": "string", "format": "date-time"}


class _As(Enum):
    TIME = auto()
    FREE = auto()  # JSON of the user: passed on unchanged
    VALUE = auto()


def rfc3339(at: Micros) -> str:
    """Format a time as RFC 3339, in UTC, with microseconds."""
    return date_of(at).isoformat().replace("+00:00", "Z")


def plain(value: object) -> object:
    """Convert `value` to JSON data with all fields present."""
    if isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def encoded(value: object) -> bytes:
    """Encode `value` as the body of a response."""
    return msgspec.json.encode(plain(value))


def _fields(value: Struct) -> dict[str, object]:
    config = value.__struct_config__
    fields: dict[str, object] = {}
    if config.tag_field is not None:
        fields[config.tag_field] = config.tag
    for name, how in _shape(type(value)):
        content = getattr(value, name)
        if how is _As.VALUE:
            content = plain(content)
        elif how is _As.TIME and content is not None:
            content = rfc3339(content)
        fields[name] = content
    return fields


@cache
def _shape(kind: type[Struct]) -> tuple[tuple[str, _As], ...]:
    hints = get_type_hints(kind)
    return tuple((name, _how(hints[name])) for name in kind.__struct_fields__)


def _how(hint: object) -> _As:
    # The alias `Json` is `Any` at run time; only fields of user data have that hint.
    if hint is _FREE:
        return _As.FREE
    return _As.TIME if hint is Micros or Micros in get_args(hint) else _As.VALUE


# ── JSON Schema ──────────────────────────────────────────────────────────────


def schemas(given: Iterable[type[Struct]], shown: Iterable[type[Struct]]) -> dict[str, object]:
    """Return the schemas of request bodies and of responses.

    msgspec describes the Python classes. The loop adapts the responses to `to_wire`: all fields
    are required, and times are strings. A request body may omit a field that has a default.
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
                is_optional = "anyOf" in component["properties"][name]
                component["properties"][name] = (
                    {"anyOf": [_TIME_SCHEMA, {"type": "null"}]} if is_optional else _TIME_SCHEMA
                )
    return components


def _parts(hint: object) -> Iterator[type[Struct]]:
    """Yield a struct and all structs nested in its fields."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
        for inner in get_type_hints(hint).values():
            if inner is not hint:
                yield from _parts(inner)
    for inner in get_args(hint):
        yield from _parts(inner)


# The scope of a halt. `(?!\n)` because `$` also matches before a final newline in Python; in
# JavaScript it does not, and the pattern means the same in both.
SCOPE = r"^(all|(agent|label|run):[^\n]{1,200})(?!\n)$"

REASON_MAX: Final = REASON_MAX_CHARS

ID_MAX: Final = NAME_MAX_CHARS
"""The maximum length of an id, in characters: ids are part of every line of a list."""

Text = Annotated[str, Meta(max_length=100_000)]
Line = Annotated[str, Meta(max_length=REASON_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=ID_MAX)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Amount = Annotated[float, Meta(gt=0, le=1e9)]


class Body(Value, kw_only=True):
    """Base of the request bodies."""


class Caps(Body, kw_only=True):
    """Caps by name; cost in dollars, time in seconds."""

    steps: Count | None = None
    tokens: Count | None = None
    cost: Amount | None = None
    time: Amount | None = None
    tool_calls: Count | None = None
    repeats: Count | None = None

    def given(self) -> dict[str, float]:
        """Return the caps that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Empty(Body, kw_only=True):
    """A body with an optional reason."""

    reason: Line = ""


class StartBody(Body, kw_only=True):
    """A run to start. `caps` or `stop` replace the agent's own stop condition."""

    agent: Name
    input: Annotated[
        Text, Meta(extra_json_schema={"pattern": WORDS})
    ]  # as `Midrun.start` checks it
    thread_id: Annotated[str, Meta(max_length=ID_MAX)] = ""
    labels: Annotated[tuple[Name, ...], Meta(max_length=LABELS_MAX)] = ()
    caps: Caps = Caps()
    stop: Stop | None = None


class PauseBody(Body, kw_only=True):
    """Pause at the boundary or now. With `hold_s`, the run resumes after that many seconds."""

    mode: Literal["boundary", "now"] = "boundary"
    hold_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    reason: Line = ""


class ResumeBody(Body, kw_only=True):
    """Resume, optionally with an instruction and raised caps."""

    instruction: Text = ""
    caps: Caps = Caps()
    reason: Line = ""


class RedirectBody(Body, kw_only=True):
    """A new instruction that replaces the current course."""

    instruction: Text
    when: When = "next_step"
    reason: Line = ""


class MessageBody(Body, kw_only=True):
    """A message to the run while it works; with `at`, delivered no earlier than that."""

    text: Text
    urgency: Urgency = "next"
    at: Annotated[datetime, Meta(tz=True)] | None = None
    reason: Line = ""


class CancelBody(Body, kw_only=True):
    """Cancel the run, and undo the calls in flight or all calls that can be undone."""

    undo: UndoSet = "in_flight"
    reason: Line = ""


class ChangeBody(Body, kw_only=True):
    """Caps to raise."""

    caps: Caps
    reason: Line = ""


class DecisionBody(Body, kw_only=True):
    """A decision about an ask. `edit` approves with other arguments."""

    decision: Literal["approve", "edit", "decline", "answer"]
    args: Json = None
    value: Json = None
    comment: Line = ""


class WriteBody(Body, kw_only=True):
    """Text that the person who took over writes as the assistant."""

    text: Text
    reason: Line = ""


class UseToolBody(Body, kw_only=True):
    """A tool call by the person who took over."""

    tool: Name
    args: Json = None
    reason: Line = ""


class HandBackBody(Body, kw_only=True):
    """Hand the run back to its agent, optionally with an instruction."""

    instruction: Text = ""
    reason: Line = ""


class ForkBody(Body, kw_only=True):
    """Fork the run from the boundary at `seq`, by default from the newest."""

    seq: Annotated[int, Meta(ge=-(2**53) + 1, le=2**53 - 1)] | None = None
    instruction: Text = ""


class CheckpointBody(Body, kw_only=True):
    """A checkpoint to resume, with the answer that it waits for, as for `Midrun.resume`."""

    checkpoint: dict[str, Json]
    answer: Json = None
    instruction: Text = ""
    caps: Caps = Caps()


class HaltBody(Body, kw_only=True):
    """A halt to set. `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`."""

    scope: Annotated[str, Meta(pattern=SCOPE)]
    reason: Line = ""


class LiftBody(Body, kw_only=True):
    """The halt to lift."""

    scope: Annotated[str, Meta(pattern=SCOPE)]
