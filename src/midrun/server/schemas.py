"""Bodies: what clients send. A field that is not here is refused, not passed over."""

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

# Whole numbers: to JSON, and so to a description in JSON Schema, 5.0 is the integer 5.
#
# We tell them apart, because what a user's data says is kept as it was said. Where a body wants
# an integer of its own, whoever writes one with a point has it all the same.


def whole(data: object, kind: type[Struct]) -> object:
    """Return `data`, which is to become a `kind`, with its integers written as such."""
    return _whole(data, _type(kind))


@cache
def _type(kind: type[Struct]) -> info.Type:
    return info.type_info(kind)


def _whole(data: object, kind: info.Type) -> object:
    match kind, data:
        case info.IntType(), float() if data.is_integer():
            return int(data)
        case info.UnionType(), _:
            for one in kind.types:
                data = _whole(data, one)
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
    """Tell whether `data` says that it is of this kind, or need not say so."""
    return kind.tag_field is None or data.get(kind.tag_field) == kind.tag


# Values as the wire has them: every field there, times as RFC 3339.
#
# In code a default is left out and a time is a number; a client that never saw our classes
# needs neither riddle. What a user's data says is passed on as it is.

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


SCOPE = r"^(all|(agent|label|run):[^\n]{1,200})(?!\n)$"  # as JavaScript reads it, too

REASON_MAX: Final = REASON_MAX_CHARS

ID_MAX: Final = NAME_MAX_CHARS
"""Characters of what clients name things by: it stands in every line of a list."""

Text = Annotated[str, Meta(max_length=100_000)]
Line = Annotated[str, Meta(max_length=REASON_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=ID_MAX)]
Count = Annotated[int, Meta(ge=1, le=10**9)]
Amount = Annotated[float, Meta(gt=0, le=1e9)]


class Body(Value, kw_only=True):
    """Base of the bodies."""


class Caps(Body, kw_only=True):
    """Bounds by name; money in dollars, time in seconds."""

    steps: Count | None = None
    tokens: Count | None = None
    cost: Amount | None = None
    time: Amount | None = None
    tool_calls: Count | None = None
    repeats: Count | None = None

    def given(self) -> dict[str, float]:
        """Return those that were named."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Empty(Body, kw_only=True):
    """Nothing to say but why."""

    reason: Line = ""


class StartBody(Body, kw_only=True):
    """A run to start. `caps`, or a whole `stop`, stand in for the agent's own condition."""

    agent: Name
    input: Annotated[Text, Meta(extra_json_schema={"pattern": WORDS})]  # as a start has it
    thread_id: Annotated[str, Meta(max_length=ID_MAX)] = ""
    labels: Annotated[tuple[Name, ...], Meta(max_length=LABELS_MAX)] = ()
    caps: Caps = Caps()
    stop: Stop | None = None


class PauseBody(Body, kw_only=True):
    """Pause at the boundary or now; with `hold_s`, the run goes on by itself after that."""

    mode: Literal["boundary", "now"] = "boundary"
    hold_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    reason: Line = ""


class ResumeBody(Body, kw_only=True):
    """Go on, with an instruction and raised caps if given."""

    instruction: Text = ""
    caps: Caps = Caps()
    reason: Line = ""


class RedirectBody(Body, kw_only=True):
    """A new course."""

    instruction: Text
    when: When = "next_step"
    reason: Line = ""


class MessageBody(Body, kw_only=True):
    """Something said to the run while it works; with `at`, not before that time."""

    text: Text
    urgency: Urgency = "next"
    at: Annotated[datetime, Meta(tz=True)] | None = None
    reason: Line = ""


class CancelBody(Body, kw_only=True):
    """Stop everything, and undo what was in flight or all that can be undone."""

    undo: UndoSet = "in_flight"
    reason: Line = ""


class ChangeBody(Body, kw_only=True):
    """Bounds to raise."""

    caps: Caps
    reason: Line = ""


class DecisionBody(Body, kw_only=True):
    """What somebody decided about an ask. `edit` is an approval with other arguments."""

    decision: Literal["approve", "edit", "decline", "answer"]
    args: Json = None
    value: Json = None
    comment: Line = ""


class WriteBody(Body, kw_only=True):
    """What the person at the wheel says as the assistant."""

    text: Text
    reason: Line = ""


class UseToolBody(Body, kw_only=True):
    """A call that the person at the wheel wants made."""

    tool: Name
    args: Json = None
    reason: Line = ""


class HandBackBody(Body, kw_only=True):
    """The run goes back to its agent, with an instruction if given."""

    instruction: Text = ""
    reason: Line = ""


class ForkBody(Body, kw_only=True):
    """Continue from a boundary of the run, the newest unless `seq` names one, as another."""

    seq: Annotated[int, Meta(ge=-(2**53) + 1, le=2**53 - 1)] | None = None
    instruction: Text = ""


class CheckpointBody(Body, kw_only=True):
    """A checkpoint to go on from, with the answer it waits for, as `Midrun.resume` has it."""

    checkpoint: dict[str, Json]
    answer: Json = None
    instruction: Text = ""
    caps: Caps = Caps()


class HaltBody(Body, kw_only=True):
    """A latch: `all`, `agent:NAME`, `label:LABEL` or `run:ID`. It must be named."""

    scope: Annotated[str, Meta(pattern=SCOPE)]
    reason: Line = ""


class LiftBody(Body, kw_only=True):
    """The latch to take away."""

    scope: Annotated[str, Meta(pattern=SCOPE)]
