"""Split the first lines of runs into chunks that runs of a thread share.

The first entry of a run carries the conversation of its thread so far. If each run stored its
own copy, a thread of n runs would take space in the order of n². Therefore a store keeps a long
first line as a *reference line*: its head and its tail as text, and between them the SHA-256
hashes of its chunks. The chunks lie in a table that all runs share.

Only storage knows about this. `join_line` returns exactly the bytes that were split, so the
line that is hashed, read, exported and verified is always the complete one. A chunk that was
changed or removed breaks the hash chain of every run that refers to it.

Two histories share chunks only if both are cut at the same places. So the cuts depend on the
content alone: a line is cut between JSON objects, and a chunk ends after an object whose
checksum says so. A history that continues another one repeats all its chunks but the last.
"""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Final
from zlib import crc32

import msgspec
from msgspec import Meta, Struct

SHARED_MIN_BYTES: Final = 8 * 1024
"""A line with less than this to share is stored unsplit: references would save little."""

CHUNK_MIN_BYTES: Final = 2 * 1024
CHUNK_MAX_BYTES: Final = 64 * 1024
"""A chunk ends after the object that makes it this long; one object may be longer."""

OBJECTS_PER_CHUNK: Final = 4
"""The average number of objects per chunk, once it has its minimum length."""

REFERENCE_PREFIX: Final = b"#"
"""The first byte of a reference line. An ordinary line begins with a brace."""

_BETWEEN_OBJECTS: Final = re.compile(rb'(?<=[\[,])(?=\{")')


_HexHash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _ReferenceLine(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    head: str
    chunks: tuple[_HexHash, ...]
    tail: str


_REFERENCE_DECODER: Final = msgspec.json.Decoder(_ReferenceLine)


def split_line(line: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the stored form of `line` and its chunks by hash.

    The body of an entry, without seq and time, has the same chunks as its complete line.
    """
    head, shared, tail = cut_shared_parts(line)
    if not shared:
        return line, {}
    chunks = [(sha256(chunk).digest(), chunk) for chunk in shared]
    hashes = tuple(digest.hex() for digest, _ in chunks)
    reference = _ReferenceLine(head.decode(), hashes, tail.decode())
    return REFERENCE_PREFIX + msgspec.json.encode(reference), dict(chunks)


def cut_shared_parts(line: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Cut a long line into its head, the parts that runs share, and its tail.

    Without a part to share, the head is the whole line.
    """
    if len(line) < SHARED_MIN_BYTES:
        return line, [], b""
    head, *objects = _BETWEEN_OBJECTS.split(line)
    tail = objects.pop() if objects else b""
    if sum(map(len, objects)) < SHARED_MIN_BYTES:
        return line, [], b""
    # The first part ends before the first object and differs from run to run, as does the last
    # object with everything after it.
    return head, _cut_chunks(objects), tail


def _cut_chunks(objects: Sequence[bytes]) -> list[bytes]:
    chunks: list[bytes] = []
    current: list[bytes] = []
    size = 0
    for item in objects:
        current.append(item)
        size += len(item)
        # Content-defined chunking: the decision looks only at the object and at the chunk so
        # far. A fixed number of objects per chunk would shift every later cut when one object
        # is added.
        ends = size >= CHUNK_MIN_BYTES and crc32(item) % OBJECTS_PER_CHUNK == 0
        if ends or size >= CHUNK_MAX_BYTES:
            chunks.append(b"".join(current))
            current, size = [], 0
    return [*chunks, b"".join(current)] if current else chunks


def list_chunk_hashes(stored: bytes) -> list[bytes]:
    """Return the hashes of the chunks that a stored line refers to."""
    reference = _decode_reference(stored)
    return [] if reference is None else [bytes.fromhex(name) for name in reference.chunks]


def join_line(stored: bytes, chunks: Mapping[bytes, bytes]) -> bytes:
    """Return the line that was split into `stored` and `chunks`.

    If either was changed, the result is another line, and the hash chain of the run reveals it.
    """
    reference = _decode_reference(stored)
    if reference is None:
        return stored
    # A missing chunk yields a wrong line instead of an exception: `JournalCorrupt` then names
    # the run and the seq.
    parts = (chunks.get(bytes.fromhex(name), b"") for name in reference.chunks)
    return b"".join((reference.head.encode(), *parts, reference.tail.encode()))


def _decode_reference(stored: bytes) -> _ReferenceLine | None:
    if not stored.startswith(REFERENCE_PREFIX):
        return None
    try:
        return _REFERENCE_DECODER.decode(stored[len(REFERENCE_PREFIX) :])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
