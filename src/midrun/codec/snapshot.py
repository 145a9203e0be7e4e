"""Snapshots: a stored state at a seq. A cache, never the truth, safe to delete at any time.

One that was written by other code is not read but ignored: `LAYOUT` is the fingerprint of
everything a state is made of, so that no decoder has to know an older shape. It cannot see a
changed meaning: whoever changes what an entry means for the state raises `MEANING`.

Nothing else would notice a flipped digit in a cache, so a hash of the body stands before it,
and is looked at before the body is unpacked.
"""

import zlib
from functools import lru_cache
from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace

from midrun.core.state import Ask, Call, State
from midrun.core.values import Message
from midrun.core.vector import Vector

MEANING: Final = 4
DIGEST: Final = 32
LEVEL: Final = 1
"""Of compression: what a state says twice, its journal said before; the quickest will do."""

SMALLEST: Final = 256
"""Journals shorter than this fold faster than a snapshot is found."""


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A state with what grows in it laid flat, which decodes several times faster."""

    layout: str
    state: State
    calls: list[Call]
    asks: list[Ask]
    messages: list[Message]


@lru_cache(maxsize=1)
def layout() -> str:
    """Return the fingerprint of the shape and meaning of states."""
    schema = msgspec.json.schema(_Stored, schema_hook=lambda _: {"type": "array"})
    shape = msgspec.json.encode([MEANING, schema], order="sorted")
    return sha256(shape).hexdigest()[:16]


@lru_cache(maxsize=1)
def _decoder() -> msgspec.json.Decoder[_Stored]:
    return msgspec.json.Decoder(_Stored, dec_hook=lambda _, raw: Vector(raw))


def freeze(state: State) -> bytes:
    """Return `state` as bytes."""
    body = msgspec.json.encode(
        _Stored(
            layout=layout(),
            state=replace(state, calls=Vector(), asks=Vector(), messages=Vector()),
            calls=list(state.calls),
            asks=list(state.asks),
            messages=list(state.messages),
        ),
        enc_hook=list,
    )
    body = zlib.compress(body, LEVEL)
    return sha256(body).digest() + body


def thaw(frozen: bytes) -> State | None:
    """Return the state in `frozen`, or None if other code wrote it or it is damaged."""
    body = memoryview(frozen)[DIGEST:]
    if sha256(body).digest() != frozen[:DIGEST]:
        return None
    try:
        stored = _decoder().decode(zlib.decompress(body))
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if stored.layout != layout():
        return None
    return replace(
        stored.state,
        calls=Vector(stored.calls),
        asks=Vector(stored.asks),
        messages=Vector(stored.messages),
    )


def due(*, seq: int, snapshot: int) -> bool:
    """Tell whether a journal at `seq` has outgrown its snapshot at seq `snapshot`.

    The distance grows with the journal, so that writing snapshots costs a constant amount per
    entry and loading never folds more than a quarter of it.
    """
    return seq - snapshot >= max(SMALLEST, snapshot // 4)
