r"""The format of a journal: one line of canonical JSON per entry, linked by a hash chain.

**A line** is one entry with its position:

    {"at":1763251200000000,"entry":{"kind":"RunPaused"},"epoch":3,"seq":7,"v":1}

- `at`: microseconds since 1970 by the store's clock. It never decreases within a run, and all
  entries of one append share it.
- `entry`: the entry. `kind` is the name of its class in `core.entries`. Fields with their
  default value are left out. User data is in fields of its own and never determines a type.
- `epoch`: the lease under which it was appended; left out if there was none.
- `seq`: 1, 2, 3 … without gaps.
- `v`: the version of this format. Older lines are upcast when they are read (`upcast_line`).

**Canonical** means: UTF-8, keys sorted by code point, no white space, no duplicate keys, no
`\u` escapes except for control characters, no lone surrogates, no NaN or infinity. Integers are
within ±(2⁵³-1) and have neither point nor exponent. Floats have one or the other, in the
shortest form that reads back the same (`1.0`, `-0.0`, `1e22`). So 1 and 1.0 stay different, and
a line that is read and written again gives the same bytes.

**The chain**: `hash[0] = sha256("midrun journal\n" + run id)` and
`hash[n] = sha256(hash[n-1] + line[n])`. The hashes are of the stored bytes; no line is encoded
again to verify it. See `hash_chain`, also for stores with a key.

**Reading is strict.** An unknown field, a wrong type or a missing field is `JournalCorrupt`. An
unknown kind or a newer version is `JournalTooNew`, and this process must not append to the run.

**Writing is strict, too**: `encode_entry` checks every field and reads its own bytes back, so
that every stored line can be read. Large user data is prepared first, in steps
(`prepare_entry`), so that the event loop is not blocked.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cache
from hashlib import sha256
from math import isfinite
from operator import is_
from typing import (
    Annotated,
    Final,
    Literal,
    NewType,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta, Struct, structs

from midrun.codec.safe_repr import safe_str
from midrun.codec.strict_json import (
    DEFAULT_LIMITS,
    INTEGER_MAX,
    JsonLimits,
    encode_in_steps,
    normalize_json,
)
from midrun.core.entries import ENTRY_TYPES, Entry, Record
from midrun.core.ids import SEQ_ZERO, Epoch, Micros, RunId, Seq
from midrun.core.values import RequestedCall
from midrun.errors import JournalCorrupt, JournalKeyMissing, JournalTooNew, NotJson, TooLarge

# Upcasts: read lines of older versions as lines of the current one.
#
# Stored lines are never rewritten. A change of the format raises `FORMAT_VERSION` by one, adds
# a function that converts a line of the previous version, and adds a stored journal in
# `tests/journals/`. Reading applies as many of these functions as a line needs.

Line = dict[str, object]
"""One line of the journal as plain JSON, with `seq`, `at`, `v` …"""

Upcasts = Mapping[int, Callable[[Line], Line]]
"""Version → the function that converts a line of it to the next version."""

UPCASTS: Final[Upcasts] = {}
"""The upcasts in force. Empty: there has been one version so far."""


def upcast_line(line: Line, *, version: int, to: int, upcasts: Upcasts) -> Line:
    """Convert `line` from `version` to version `to`.

    Raises:
        KeyError: an upcast between the two is missing.
    """
    for step in range(version, to):
        line = {**upcasts[step](line), "v": step + 1}
    return line


FORMAT_VERSION: Final = 1

_KIND_NAMES: Final = frozenset(kind.__name__ for kind in ENTRY_TYPES)


_INTEGER_RANGE: Final = Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)


class _CurrentLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the current version."""

    seq: Annotated[Seq, _INTEGER_RANGE]
    at: Annotated[Micros, _INTEGER_RANGE]
    entry: Entry
    epoch: Annotated[Epoch, _INTEGER_RANGE] | None = None
    v: int


_USER_DATA_HINT: Final = get_type_hints(RequestedCall)["args"]
"""The type hint, at run time, of a field with user data."""

_StructT = TypeVar("_StructT", bound=Struct)

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_LINE_DECODER: Final = msgspec.json.Decoder(_CurrentLine)
_ENTRY_DECODER: Final[msgspec.json.Decoder[Entry]] = msgspec.json.Decoder(Entry)

_DECODE_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions that decoding of arbitrary bytes can raise."""


def encode_entry(
    entry: Entry, limits: JsonLimits = DEFAULT_LIMITS, *, keep: bool = False
) -> bytes:
    """Encode `entry` as canonical JSON, for `format_line`.

    All fields are checked, and the bytes are decoded once and compared. msgspec does not
    validate a struct when it is built, and it encodes some wrong values: bytes as base64 text.

    With `keep`, the text is kept until the same object is encoded again, once: the driver
    encodes each outcome to find out whether it can be stored, and a moment later the store
    gets it and would do all of it again.

    Raises:
        NotJson: JSON cannot represent a field, or it has the wrong type. Any exception of the
            code of such a value becomes this one.
        TooLarge: the entry is longer than `limits.max_bytes`.
    """
    if _ENCODED_ENTRIES and not keep:
        # The identity is compared as well: the id of an object that is gone may be given to
        # another. And the limits of this caller may be smaller than those under which the text
        # was made.
        kept = _ENCODED_ENTRIES.pop(id(entry), None)
        if kept is not None and kept[0] is entry and len(kept[1]) <= limits.max_bytes:
            return kept[1]
    try:
        sound = _normalize_struct(entry, limits)
        if _PREPARED_TEXTS:  # only the text of large data is prepared
            body, same = _encode_prepared(sound, limits)
        else:
            body = _ENCODER.encode(sound)
            same = _ENTRY_DECODER.decode(body) == sound
    except (NotJson, TooLarge):
        raise
    except Exception as error:
        raise NotJson("$", f"{type(entry).__name__}: {safe_str(error)}") from error
    if not same:
        raise NotJson("$", f"a field of {type(entry).__name__} has a value of another type")
    if len(body) > limits.max_bytes:
        raise TooLarge("$", len(body), limits.max_bytes)
    if keep:
        _ENCODED_ENTRIES[id(entry)] = entry, body
        if len(_ENCODED_ENTRIES) > ENCODED_MAX_ENTRIES:
            del _ENCODED_ENTRIES[next(iter(_ENCODED_ENTRIES))]
    return body


ENCODED_MAX_ENTRIES: Final = 256
"""Outcomes that wait for their append; the text of the oldest is dropped, not the outcome."""

_ENCODED_ENTRIES: Final[dict[int, tuple[Entry, bytes]]] = {}
"""`id()` of an entry → the entry, kept alive so that no other gets its id, and its text."""


def prepare_entry(entry: Entry) -> Generator[None, None, Entry]:
    """Normalize the user data of a large entry in steps, and cache its JSON text.

    A store encodes an entry without interruption. For eight megabytes that would block the
    event loop for a noticeable time. The caller therefore prepares large entries first, and
    lets the loop run at every `yield`; `encode_entry` then takes the text from the cache.

    Raises:
        NotJson, TooLarge: as `encode_entry` does.
    """
    changes: dict[str, object] = {}
    for name, usual, free in _list_walked_fields(type(entry)):
        held = getattr(entry, name)
        if not free or held is usual or held is None:
            continue
        plain, text = yield from encode_in_steps(held, f"$.{name}")
        changes[name] = plain
        if len(text) > PREPARED_MIN_BYTES:
            _PREPARED_TEXTS[id(plain)] = plain, text
            while len(_PREPARED_TEXTS) > PREPARED_MAX_TEXTS:
                del _PREPARED_TEXTS[next(iter(_PREPARED_TEXTS))]
    prepared = structs.replace(entry, **changes) if changes else entry
    encode_entry(prepared)  # raises for the other fields here, and not in the store
    return prepared


PREPARED_MIN_BYTES: Final = 16_384
PREPARED_MAX_TEXTS: Final = 4
"""The number of cached texts. Each is needed once, soon, and has up to eight megabytes."""

_PREPARED_TEXTS: Final[dict[int, tuple[object, bytes]]] = {}
"""`id()` of plain data → the data and its text.

The reference to the data keeps it alive: otherwise a new object could get the same id. Nothing
changes the data after it was prepared.
"""


def _find_prepared_text(value: object) -> bytes | None:
    found = _PREPARED_TEXTS.get(id(value))
    return found[1] if found is not None and found[0] is value else None


def _encode_prepared(sound: Struct, limits: JsonLimits) -> tuple[bytes, bool]:
    """Encode a checked struct, and tell whether it reads back equal.

    The text of prepared data is inserted unchanged and not read back: it was made from plain
    data. For the comparison these fields are left out.
    """
    ready: dict[str, object] = {}
    for name, _, free in _list_walked_fields(type(sound)):
        if free and (text := _find_prepared_text(getattr(sound, name))) is not None:
            if len(text) > limits.max_bytes:
                raise TooLarge("$", len(text), limits.max_bytes)
            ready[name] = msgspec.Raw(text)
    if not ready:
        body = _ENCODER.encode(sound)
        return body, _ENTRY_DECODER.decode(body) == sound
    rest = structs.replace(sound, **dict.fromkeys(ready))
    same = _ENTRY_DECODER.decode(_ENCODER.encode(rest)) == rest
    return _ENCODER.encode(structs.replace(sound, **ready)), same


def normalize_entry(entry: Entry) -> Entry:
    """Return `entry` with its user data as plain JSON, equal to the entry that is read back."""
    return _normalize_struct(entry, DEFAULT_LIMITS)


def format_line(body: bytes, *, seq: Seq, at: Micros, epoch: Epoch | None) -> bytes:
    """Return the line of an entry that `encode_entry` has encoded as `body`."""
    # The keys are in canonical order. The version is a literal, for speed: see FORMAT_VERSION.
    if epoch is None:
        return b'{"at":%d,"entry":%b,"seq":%d,"v":1}' % (at, body, seq)
    return b'{"at":%d,"entry":%b,"epoch":%d,"seq":%d,"v":1}' % (at, body, epoch, seq)


def format_record(record: Record) -> bytes:
    """Return the only valid line of `record`; a stored line that differs was changed."""
    body = encode_entry(record.entry)
    return format_line(body, seq=record.seq, at=record.at, epoch=record.epoch)


def hash_run_id(run: RunId) -> bytes:
    """Return the hash before the first entry of `run`."""
    return sha256(b"midrun journal\n" + run.encode()).digest()


def hash_line(previous: bytes, data: bytes) -> bytes:
    """Return the hash of the line `data` that follows the one hashed as `previous`."""
    return sha256(previous + data).digest()


def decode_line(
    data: bytes,
    *,
    run: str = "",
    seq: Seq | None = None,
    upcasts: Upcasts = UPCASTS,
) -> Record:
    """Decode a stored line; `run` and `seq` are the place where it was found.

    Raises:
        JournalCorrupt: it is malformed, or has another seq.
        JournalTooNew: a newer version wrote it.
        JournalKeyMissing: it is encrypted; the caller has to decrypt it first.
    """
    # The fast path decodes a line of the current version in one pass. Everything else takes
    # the slow path, which tells older, newer and corrupt lines apart.
    try:
        found = _LINE_DECODER.decode(data)
    except _DECODE_ERRORS:
        found = _decode_with_upcasts(data, run, seq or SEQ_ZERO, upcasts)
    if found.v != FORMAT_VERSION:
        found = _decode_with_upcasts(data, run, seq or SEQ_ZERO, upcasts)
    if seq is not None and found.seq != seq:
        raise JournalCorrupt(run, seq, f"the line has seq {found.seq}")
    return Record(seq=found.seq, at=found.at, entry=found.entry, epoch=found.epoch)


def decode_lines(run: RunId, lines: Iterable[bytes], *, after: Seq = SEQ_ZERO) -> list[Record]:
    """Decode the consecutive lines that follow `after`."""
    return [
        decode_line(data, run=run, seq=Seq(seq))
        for seq, data in enumerate(lines, start=after + 1)
    ]


def _decode_with_upcasts(data: bytes, run: str, seq: Seq, upcasts: Upcasts) -> _CurrentLine:
    """Decode a line of an older version, or raise for one that cannot be decoded."""
    try:
        raw = msgspec.json.decode(data, type=Line)
    except _DECODE_ERRORS as error:
        raise JournalCorrupt(run, seq, str(error)) from None
    version = raw.get("v")
    if not isinstance(version, int):
        raise JournalCorrupt(run, seq, "the line has no version")
    if version > FORMAT_VERSION:
        raise JournalTooNew(run, seq, f"format version {version}")
    try:
        raw = upcast_line(raw, version=version, to=FORMAT_VERSION, upcasts=upcasts)
    except KeyError as error:
        problem = f"version {version} cannot be read: the upcast from {error} is missing"
        raise JournalCorrupt(run, seq, problem) from None
    # A newer minor version may add kinds without a new format version. An unknown kind is
    # therefore no corruption.
    entry = raw.get("entry")
    if isinstance(entry, dict) and isinstance(sealed := entry.get("enc"), dict):
        raise JournalKeyMissing(run, seq, str(sealed.get("key")))  # `stores/encryption.py`
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if isinstance(kind, str) and kind not in _KIND_NAMES:
        raise JournalTooNew(run, seq, kind)
    try:
        return msgspec.convert(raw, _CurrentLine)
    except _DECODE_ERRORS as error:
        raise JournalCorrupt(run, seq, str(error)) from None


def _normalize_struct(value: _StructT, limits: JsonLimits) -> _StructT:
    """Check every field of `value` and make its user data plain; copy only if that differs."""
    changes: dict[str, object] = {}
    for name, usual, free in _list_walked_fields(type(value)):
        held = getattr(value, name)
        if held is usual or held is None:
            continue
        if type(held) is int and -INTEGER_MAX <= held <= INTEGER_MAX:
            continue  # most fields that are left: without a call
        try:
            if free and _PREPARED_TEXTS and _find_prepared_text(held) is not None:
                continue
            sound: object
            if free:
                sound = normalize_json(held, limits=limits)
            elif isinstance(held, Struct):
                sound = _normalize_struct(held, limits)
            elif type(held) is tuple:
                sound = _normalize_items(held, limits)
            else:
                sound = _normalize_value(held, limits)
        except NotJson as refusal:
            raise NotJson(f"$.{name}{refusal.path[1:]}", refusal.problem) from None
        if sound is not held:
            changes[name] = sound
    return structs.replace(value, **changes) if changes else value


def _normalize_value(value: object, limits: JsonLimits) -> object:
    if isinstance(value, Struct):
        return _normalize_struct(value, limits)
    if isinstance(value, tuple) and value:
        return _normalize_items(value, limits)
    if type(value) is int and not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise NotJson("$", f"integer beyond ±{INTEGER_MAX}")
    if type(value) is float and not isfinite(value):
        raise NotJson("$", f"{value} is not a JSON number")
    # A typed dict, such as `caps`: its values are checked, but it stays the same object, since
    # its type does not allow anything that would have to become plain.
    if type(value) is dict:
        normalize_json(value, limits=limits)
    return value


def _normalize_items(value: tuple[object, ...], limits: JsonLimits) -> tuple[object, ...]:
    sound: list[object] = []
    for item in tuple.__iter__(value):
        try:
            sound.append(
                _normalize_struct(item, limits)
                if isinstance(item, Struct)
                else _normalize_value(item, limits)
            )
        except NotJson as refusal:
            raise NotJson(f"$[{len(sound)}]{refusal.path[1:]}", refusal.problem) from None
    return value if all(map(is_, sound, value)) else tuple(sound)


@cache
def _list_walked_fields(kind: type[Struct]) -> tuple[tuple[str, object, bool], ...]:
    """Return name, default value and "is user data" of the fields that must be checked.

    Fields of type str or bool are left out: the encoder itself refuses lone surrogates, and
    reading back refuses other types.
    """
    hints = get_type_hints(kind)
    return tuple(
        (field.name, field.default, hints[field.name] is _USER_DATA_HINT)
        for field in structs.fields(kind)
        if not _is_text(hints[field.name])
    )


def _is_text(hint: object) -> bool:
    if get_origin(hint) is Literal:
        return all(isinstance(choice, str) for choice in get_args(hint))
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    return isinstance(hint, type) and issubclass(hint, str | bool)
