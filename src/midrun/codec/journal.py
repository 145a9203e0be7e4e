r"""The journal's format: entries as lines of bytes, tied together by a chain of hashes.

**A line** is one entry in its place, as canonical JSON:

    {"at":1763251200000000,"entry":{"kind":"RunPaused"},"epoch":3,"seq":7,"v":1}

- `at`: microseconds since 1970 by the store's clock. It never decreases within a run, and all
  entries of one append share it.
- `entry`: the fact. `kind` names its class in `core.entries`. Fields that have their default
  value are left out. User data sits under fields that are opaque to us and is never looked at
  to find out a type.
- `epoch`: the lease under which it was appended; left out when there was none.
- `seq`: 1, 2, 3 … without gaps.
- `v`: the version of this format. Older lines are upcast on reading, see `upcast`.

**Canonical** means: UTF-8, keys sorted by code point, no white space, no duplicate keys, no
`\u` escapes but for control characters, no lone surrogates, no NaN or infinity. Integers are
within ±(2⁵³-1) and have neither point nor exponent. Floats have one or the other, in the
shortest form that reads back the same (`1.0`, `-0.0`, `1e22`), so 1 and 1.0 stay different and
what is read and written again gives the same bytes.

**The chain**: `hash[0] = sha256("midrun journal\n" + run id)` and
`hash[n] = sha256(hash[n-1] + line[n])`. The run's id is in the first link, so lines cannot be
moved from one run to another. Stored bytes are what was hashed; nothing is ever re-serialised
to be verified. A chain alone cannot show that its tail was cut off: compare with any head hash
that was handed out. A store may have a key for it, see `chain`.

**Reading is strict.** A field that is not known, a wrong type, a missing field:
`JournalCorrupt`. A kind or version that is not known: `JournalTooNew`, and this process must
not write to the run.
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
from midrun.codec.strict_json import DEFAULT, INTEGER_MAX, Limits, checked, encode_in_steps
from midrun.core.entries import KINDS, Entry, Record
from midrun.core.ids import START, Epoch, Micros, RunId, Seq
from midrun.core.values import Use
from midrun.errors import JournalCorrupt, JournalTooNew, NotJson, TooLarge

# Upcasts: how lines of older versions are read as lines of today.
#
# Stored lines are never rewritten. When the format changes, `VERSION` in `journal` grows by one
# and a function that turns a line of the version before into the next one is added here,
# together with a stored journal in `tests/journals/`. Reading applies as many as a line needs.

Line = dict[str, object]
"""One line of the journal as plain JSON, outer keys and all."""

Upcasts = Mapping[int, Callable[[Line], Line]]
"""Version → what makes a line of it one of the next version."""

UPCASTS: Final[Upcasts] = {}
"""The upcasts in force. Empty: there has been one version so far."""


def lifted(line: Line, *, version: int, to: int, upcasts: Upcasts) -> Line:
    """Return `line` of `version` as a line of version `to`.

    Raises:
        KeyError: an upcast on the way is missing.
    """
    for step in range(version, to):
        line = {**upcasts[step](line), "v": step + 1}
    return line


VERSION: Final = 1

_NAMES: Final = frozenset(kind.__name__ for kind in KINDS)


_WITHIN: Final = Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)


class _Line(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the current version."""

    seq: Annotated[Seq, _WITHIN]
    at: Annotated[Micros, _WITHIN]
    entry: Entry
    epoch: Annotated[Epoch, _WITHIN] | None = None
    v: int


_FREE: Final = get_type_hints(Use)["args"]
"""How the type hints of a struct, at run time, say that a field is free user data."""

_Checked = TypeVar("_Checked", bound=Struct)

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_LINES: Final = msgspec.json.Decoder(_Line)
_ENTRIES: Final[msgspec.json.Decoder[Entry]] = msgspec.json.Decoder(Entry)

_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding any bytes at all can raise."""


def encode_entry(entry: Entry, limits: Limits = DEFAULT) -> bytes:
    """Return `entry` as canonical JSON: what `line` puts into its place.

    Everything in it has been walked, and the bytes have been read back once: what is stored can
    be read.

    Raises:
        NotJson: a field holds what JSON cannot say, or a value of the wrong type. Whatever a
            value in the wrong place does when it is looked at, it comes out as this.
        TooLarge: the entry is longer than `limits.size`.
    """
    try:
        sound = _checked_struct(entry, limits)
        body, same = _encode_struct(sound, limits)
    except (NotJson, TooLarge):
        raise
    except Exception as error:
        raise NotJson("$", f"{type(entry).__name__}: {safe_str(error)}") from error
    if not same:
        raise NotJson("$", f"{type(entry).__name__}: a field has a value of another type")
    if len(body) > limits.size:
        raise TooLarge("$", len(body), limits.size)
    return body


def prepare_entry(entry: Entry, limits: Limits = DEFAULT) -> Generator[None, None, Entry]:
    """Return `entry` with its user data as plain JSON, and remember the text of it.

    For large entries: `encode_entry` takes the text from there instead of walking the data
    again. It yields now and then, see `encode_in_steps`.

    Raises:
        NotJson, TooLarge: as `encode_entry` does.
    """
    changes: dict[str, object] = {}
    for name, usual, free in _fields(type(entry)):
        held = getattr(entry, name)
        if not free or held is usual or held is None:
            continue
        plain, text = yield from encode_in_steps(held, f"$.{name}", limits)
        changes[name] = plain
        if len(text) > PREPARED_MIN_BYTES:
            _PREPARED[id(plain)] = plain, text
            while len(_PREPARED) > PREPARED_MAX:
                del _PREPARED[next(iter(_PREPARED))]
    prepared = structs.replace(entry, **changes) if changes else entry
    encode_entry(prepared, limits)
    return prepared


PREPARED_MIN_BYTES: Final = 16_384
PREPARED_MAX: Final = 4
"""How many texts are remembered: each is within `DEFAULT.size`, and needed once, soon."""

_PREPARED: Final[dict[int, tuple[object, bytes]]] = {}
"""Id of plain data → the data, which keeps the id from being used again, and its text."""


def _prepared_text(value: object) -> bytes | None:
    found = _PREPARED.get(id(value))
    return found[1] if found is not None and found[0] is value else None


def _encode_struct(sound: Struct, limits: Limits) -> tuple[bytes, bool]:
    """Return the text of a sound struct, and whether reading it back gives the same.

    Prepared data is put in as it is, and not read back: its walk has shown that it can be.
    """
    ready: dict[str, object] = {}
    for name, _, free in _fields(type(sound)):
        if free and (text := _prepared_text(getattr(sound, name))) is not None:
            if len(text) > limits.size:
                raise TooLarge("$", len(text), limits.size)
            ready[name] = msgspec.Raw(text)
    if not ready:
        body = _ENCODER.encode(sound)
        return body, _ENTRIES.decode(body) == sound
    rest = structs.replace(sound, **dict.fromkeys(ready))
    same = _ENTRIES.decode(_ENCODER.encode(rest)) == rest
    return _ENCODER.encode(structs.replace(sound, **ready)), same


def checked_entry(entry: Entry) -> Entry:
    """Return `entry` with its user data as plain JSON: exactly what a reader will get."""
    return _checked_struct(entry, DEFAULT)


def line(body: bytes, *, seq: Seq, at: Micros, epoch: Epoch | None) -> bytes:
    """Return the line that has `body`, made by `encode_entry`, at its place in a journal."""
    if epoch is None:
        return b'{"at":%d,"entry":%b,"seq":%d,"v":1}' % (at, body, seq)
    return b'{"at":%d,"entry":%b,"epoch":%d,"seq":%d,"v":1}' % (at, body, epoch, seq)


def line_of(record: Record) -> bytes:
    """Return the one line that says `record`; a stored line that differs was tampered with."""
    body = encode_entry(record.entry)
    return line(body, seq=record.seq, at=record.at, epoch=record.epoch)


def genesis(run: RunId) -> bytes:
    """Return the hash before the first entry of `run`."""
    return sha256(b"midrun journal\n" + run.encode()).digest()


def chain(previous: bytes, data: bytes) -> bytes:
    """Return the hash of the line `data` that follows the one hashed as `previous`."""
    return sha256(previous + data).digest()


def decode_line(
    data: bytes,
    *,
    run: str = "",
    seq: Seq | None = None,
    upcasts: Upcasts = UPCASTS,
) -> Record:
    """Return what a stored line says. `run` and `seq` are where it was found.

    Raises:
        JournalCorrupt: it is malformed, or belongs elsewhere.
        JournalTooNew: a newer version wrote it.
    """
    try:
        found = _LINES.decode(data)
    except _UNREADABLE:
        found = _decode_slowly(data, run, seq or START, upcasts)
    if found.v != VERSION:
        found = _decode_slowly(data, run, seq or START, upcasts)
    if seq is not None and found.seq != seq:
        raise JournalCorrupt(run, seq, f"the line says that it is seq {found.seq}")
    return Record(seq=found.seq, at=found.at, entry=found.entry, epoch=found.epoch)


def decode_lines(run: RunId, lines: Iterable[bytes], *, after: Seq = START) -> list[Record]:
    """Return what the lines that follow `after` say; they must be consecutive."""
    return [
        decode_line(data, run=run, seq=Seq(seq))
        for seq, data in enumerate(lines, start=after + 1)
    ]


def _decode_slowly(data: bytes, run: str, seq: Seq, upcasts: Upcasts) -> _Line:
    """Read an older line, or find out what is wrong with this one."""
    try:
        raw = msgspec.json.decode(data, type=Line)
    except _UNREADABLE as error:
        raise JournalCorrupt(run, seq, str(error)) from None
    version = raw.get("v")
    if not isinstance(version, int):
        raise JournalCorrupt(run, seq, "the line has no version")
    if version > VERSION:
        raise JournalTooNew(run, seq, f"format version {version}")
    try:
        raw = lifted(raw, version=version, to=VERSION, upcasts=upcasts)
    except KeyError as error:
        problem = f"no way to read version {version}: {error} is missing"
        raise JournalCorrupt(run, seq, problem) from None
    entry = raw.get("entry")
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if isinstance(kind, str) and kind not in _NAMES:
        raise JournalTooNew(run, seq, kind)
    try:
        return msgspec.convert(raw, _Line)
    except _UNREADABLE as error:
        raise JournalCorrupt(run, seq, str(error)) from None


def _checked_struct(value: _Checked, limits: Limits) -> _Checked:
    """Return `value` with every field walked; rebuilt only where the walk changed something."""
    changes: dict[str, object] = {}
    for name, usual, free in _fields(type(value)):
        held = getattr(value, name)
        if held is usual or held is None:
            continue
        try:
            if free and _prepared_text(held) is not None:
                continue
            sound = checked(held, limits=limits) if free else _checked_value(held, limits)
        except NotJson as refusal:
            raise NotJson(f"$.{name}{refusal.path[1:]}", refusal.problem) from None
        if sound is not held:
            changes[name] = sound
    return structs.replace(value, **changes) if changes else value


def _checked_value(value: object, limits: Limits) -> object:
    if isinstance(value, Struct):
        return _checked_struct(value, limits)
    if isinstance(value, tuple) and value:
        return _checked_items(value, limits)
    if type(value) is int and not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise NotJson("$", f"integer beyond ±{INTEGER_MAX}")
    if type(value) is float and not isfinite(value):
        raise NotJson("$", f"{value} is not a JSON number")
    if type(value) is dict:
        checked(value, limits=limits)
    return value


def _checked_items(value: tuple[object, ...], limits: Limits) -> tuple[object, ...]:
    sound: list[object] = []
    for item in tuple.__iter__(value):
        try:
            sound.append(_checked_value(item, limits))
        except NotJson as refusal:
            raise NotJson(f"$[{len(sound)}]{refusal.path[1:]}", refusal.problem) from None
    return value if all(map(is_, sound, value)) else tuple(sound)


@cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, object, bool], ...]:
    """Return the fields of `kind` that must be walked, unless they have their default value.

    For each its name, that value, and whether it is user data. Fields that are nothing but text
    are left out: the encoder refuses lone surrogates itself.
    """
    hints = get_type_hints(kind)
    return tuple(
        (field.name, field.default, hints[field.name] is _FREE)
        for field in structs.fields(kind)
        if not _is_text(hints[field.name])
    )


def _is_text(hint: object) -> bool:
    if get_origin(hint) is Literal:
        return all(isinstance(choice, str) for choice in get_args(hint))
    while isinstance(hint, NewType):
        hint = hint.__supertype__
    return isinstance(hint, type) and issubclass(hint, str | bool)
