"""Snapshots: a state at a seq as bytes, a cache of a long journal.

A snapshot is safe to delete at any time. One that was written by another version of the code is
ignored, so no decoder has to know older shapes of a state. Two constants make sure of that:

- `STATE_LAYOUT` is a fingerprint of the schema of all fields. A test computes it, and fails
  after a change of a field with the new value to write here. To compute it in each process
  would take longer than to load the state of 1,000 steps.
- `STATE_MEANING_VERSION` is part of it. A schema does not show that a function of `evolve` now
  computes another state from the same entries: raise this number with every such change.

The chain of the journal does not cover snapshots. A hash of the body stands before it and is
checked before the body is decompressed, so that a damaged snapshot is ignored as well.
"""

import zlib
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from midrun.codec.redaction import Steps, run_steps
from midrun.core.state import Ask, CallState, State
from midrun.core.values import Message
from midrun.core.vector import Vector

STATE_MEANING_VERSION: Final = 4
STATE_LAYOUT: Final = "92fd950eb8faa701"
DIGEST_BYTES: Final = 32
COMPRESSION_LEVEL: Final = 1
"""The fastest level of compression: states are repetitive, a higher level gains little."""

STEP_ITEMS: Final = 256
"""Calls or messages that are encoded in one step."""

STEP_BYTES: Final = 262_144
"""Bytes that are compressed in one step."""

SNAPSHOT_MIN_ENTRIES: Final = 256
"""A shorter journal is folded faster than a snapshot is loaded."""


class StoredState(msgspec.Struct, frozen=True, kw_only=True):
    """A state with its large vectors as plain lists, which decode several times faster."""

    layout: str
    state: State
    calls: list[CallState]
    asks: list[Ask]
    messages: list[Message]


@lru_cache(maxsize=1)
def _get_decoder() -> msgspec.json.Decoder[StoredState]:
    return msgspec.json.Decoder(StoredState, dec_hook=lambda _, raw: Vector(raw))


def encode_snapshot(state: State) -> bytes:
    """Encode `state`: the digest of the body, then the compressed body."""
    return run_steps(encode_in_steps(state))


def encode_in_steps(state: State) -> Steps[bytes]:
    """Encode `state` as `encode_snapshot` does, in steps.

    The state of 10,000 steps takes 80 milliseconds. Each step takes about one, and the caller
    lets the event loop run in between.
    """
    compressor = zlib.compressobj(COMPRESSION_LEVEL)
    parts: list[bytes] = []
    for text in _iter_json(state):
        for start in range(0, len(text), STEP_BYTES):
            parts.append(compressor.compress(text[start : start + STEP_BYTES]))
            yield
    parts.append(compressor.flush())
    body = b"".join(parts)
    return sha256(body).digest() + body


def _iter_json(state: State) -> Iterator[bytes]:
    """Yield the JSON text of the `StoredState` of `state`, piece by piece."""
    bare = replace(state, calls=Vector(), asks=Vector(), messages=Vector())
    # The hook is for `State.cleanup_calls`, the vector that stays in the state.
    body = msgspec.json.encode(bare, enc_hook=list)
    yield b'{"layout":"%b","state":%b' % (STATE_LAYOUT.encode(), body)
    vectors: tuple[tuple[bytes, Vector[CallState] | Vector[Ask] | Vector[Message]], ...] = (
        (b"calls", state.calls),
        (b"asks", state.asks),
        (b"messages", state.messages),
    )
    for name, vector in vectors:
        yield b',"%b":[' % name
        items: Iterator[object] = iter(vector)
        comma = b""
        while piece := list(islice(items, STEP_ITEMS)):
            yield comma + msgspec.json.encode(piece)[1:-1]
            comma = b","
        yield b"]"
    yield b"}"


def decode_snapshot(frozen: bytes) -> State | None:
    """Decode a snapshot; None if it is damaged or of another version of the code."""
    body = memoryview(frozen)[DIGEST_BYTES:]
    if sha256(body).digest() != frozen[:DIGEST_BYTES]:
        return None
    try:
        stored = _get_decoder().decode(zlib.decompress(body))
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if stored.layout != STATE_LAYOUT:
        return None
    return replace(
        stored.state,
        calls=Vector(stored.calls),
        asks=Vector(stored.asks),
        messages=Vector(stored.messages),
    )


def is_snapshot_due(*, seq: int, snapshot: int) -> bool:
    """Tell whether a journal at `seq` has outgrown its snapshot at seq `snapshot`.

    The distance between two snapshots grows with the journal. Writing snapshots therefore costs
    a constant amount per entry, and loading folds at most about a quarter of the journal.
    """
    return seq >= find_next_snapshot_seq(snapshot)


def find_next_snapshot_seq(snapshot: int) -> int:
    """Return the seq at which the snapshot after that at seq `snapshot` is due."""
    return snapshot + max(SNAPSHOT_MIN_ENTRIES, snapshot // 4)
