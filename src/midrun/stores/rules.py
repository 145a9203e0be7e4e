"""What every store must refuse, and how it stamps what it accepts: pure, shared by all of them.

A store calls `encoded` before its transaction and the rest inside it, with what it has read
there. So the order of refusals and the bytes are the same wherever a journal is kept.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

from msgspec import Struct

from midrun.codec.journal import chain, decode_lines, encode_entry, genesis, line
from midrun.core.entries import Entry, LeaseTaken, Record, RunStarted
from midrun.core.head import Head
from midrun.core.ids import START, Epoch, Micros, RunId, Seq
from midrun.errors import (
    CursorRefused,
    HaltInForce,
    JournalCorrupt,
    KindRefused,
    LeaseHeld,
    RunNotFound,
    SeqConflict,
    StaleEpoch,
)
from midrun.ports.store import PERSONAL, UNLEASED, Appended, Halt, Lease

SCOPES: Final = ("agent", "label", "run")
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
CURSOR: Final = re.compile(r"r[0-9a-f]{1,15}")


class Standing(Struct, frozen=True, kw_only=True):
    """Where a run stands inside a write transaction: what the write must agree with."""

    run: RunId
    seq: Seq
    hash: bytes
    at: Micros
    epoch: Epoch
    holder: str


class Stamped(Struct, frozen=True, kw_only=True):
    """Lines with their hashes, ready to be stored, and the head that they lead to."""

    lines: tuple[tuple[bytes, bytes], ...]
    appended: Appended


def nothing_yet(run: RunId) -> Standing:
    """Return where a run stands that does not exist."""
    return Standing(
        run=run, seq=START, hash=genesis(run), at=Micros(0), epoch=Epoch(0), holder=""
    )


def encoded_start(run: RunId, entries: Sequence[Entry]) -> list[bytes]:
    """Return the bodies of a new journal, which begins with the run's start."""
    if not ID.fullmatch(run):
        raise ValueError(f"run id {run[:80]!r}: use 1 to 64 letters, digits, - and _")
    if not entries or not isinstance(entries[0], RunStarted):
        raise ValueError(f"run {run}: a journal begins with RunStarted")
    return encoded(run, entries, lease=None)


def check_id(run: RunId) -> None:
    """Refuse to look for what cannot be there."""
    if not ID.fullmatch(run):
        raise RunNotFound(run)


def encoded(run: RunId, entries: Sequence[Entry], *, lease: Lease | None) -> list[bytes]:
    """Return the bodies of `entries` if this writer may append them."""
    if not entries:
        raise ValueError(f"run {run}: nothing to append")
    if lease is not None and lease.run != run:
        raise ValueError(f"run {run}: the lease is one of run {lease.run}")
    for entry in entries:
        kind = type(entry)
        if kind is LeaseTaken or (kind in PERSONAL if lease else kind not in UNLEASED):
            raise KindRefused(run, kind.__name__, "driver" if lease else "control")
    return [encode_entry(entry) for entry in entries]


def encoded_taking(run: RunId, entries: Sequence[Entry], *, holder: str) -> list[bytes]:
    """Return the bodies of what a new lease holder appends; the first names the epoch."""
    lease = Lease(run=run, holder=holder, epoch=taken_epoch(run, entries, holder))
    first = encode_entry(entries[0])
    return [first, *(encoded(run, entries[1:], lease=lease) if len(entries) > 1 else ())]


def taken_epoch(run: RunId, entries: Sequence[Entry], holder: str) -> Epoch:
    """Return the epoch that `entries` take."""
    first = entries[0] if entries else None
    if not holder or not isinstance(first, LeaseTaken) or first.holder not in {"", holder}:
        raise ValueError(f"run {run}: a lease is taken with a LeaseTaken by its holder")
    return first.epoch


def check_shape(
    run: RunId, *, after: Seq | None, lease: Lease | None, head: Head | None, starts: bool
) -> None:
    """Refuse an append that does not say what it depends on; a bug in the caller."""
    if after is None and (lease is None or head is not None or starts):
        raise ValueError(f"run {run}: only a lease holder's evidence may leave `after` out")


def check_append(standing: Standing, *, after: Seq | None, lease: Lease | None) -> None:
    """Refuse an append under a lease that is not in force, or after something unseen."""
    if lease is not None and (lease.epoch != standing.epoch or lease.holder != standing.holder):
        raise StaleEpoch(standing.run, lease.epoch, standing.epoch)
    if after is not None and after != standing.seq:
        raise SeqConflict(standing.run, after, standing.seq)


def check_take(
    standing: Standing, *, after: Seq, holder: str, epoch: Epoch, alive: bool
) -> None:
    """Refuse a lease that somebody else holds; `alive` is whether the present holder is."""
    if alive and standing.holder not in {"", holder}:
        raise LeaseHeld(standing.run, standing.holder)
    if after != standing.seq:
        raise SeqConflict(standing.run, after, standing.seq)
    if epoch != standing.epoch + 1:
        raise ValueError(f"run {standing.run}: the next epoch is {standing.epoch + 1}")


def check_halts(run: RunId, head: Head, halts: Iterable[Halt]) -> None:
    """Refuse a start that a latch forbids."""
    for halt in halts:
        if halt.covers(run, head.agent, head.labels):
            raise HaltInForce(run, halt.scope, halt.reason, halt.by)


def check_scope(scope: str) -> None:
    """Refuse a latch that would hold nothing."""
    kind, _, name = scope.partition(":")
    if scope != "all" and not (kind in SCOPES and name):
        raise ValueError(f"scope {scope!r}: use all, agent:NAME, label:LABEL or run:ID")


def stamp(
    standing: Standing, bodies: Iterable[bytes], *, now: Micros, epoch: Epoch | None
) -> Stamped:
    """Give each body its place, its time and its hash. Time never runs backwards in a run."""
    at = max(now, standing.at)
    seq, link = standing.seq, standing.hash
    lines = []
    for body in bodies:
        seq = Seq(seq + 1)
        data = line(body, seq=seq, at=at, epoch=epoch)
        link = chain(link, data)
        lines.append((data, link))
    return Stamped(lines=tuple(lines), appended=Appended(seq=seq, at=at, hash=link))


def adopted(run: RunId, lines: Sequence[bytes]) -> tuple[Stamped, Sequence[Record]]:
    """Check lines of another store and return them with their hashes, and what they say."""
    check_id(run)
    records = decode_lines(run, lines)
    if not records or not isinstance(records[0].entry, RunStarted):
        raise JournalCorrupt(run, 1, "a journal begins with RunStarted")
    link, hashed = genesis(run), []
    for data in lines:
        link = chain(link, data)
        hashed.append((data, link))
    last = records[-1]
    appended = Appended(seq=last.seq, at=max(r.at for r in records), hash=link)
    return Stamped(lines=tuple(hashed), appended=appended), records


def last_epoch(records: Iterable[Record]) -> Epoch:
    """Return the newest epoch that a journal tells of."""
    taken = (r.entry.epoch for r in records if isinstance(r.entry, LeaseTaken))
    return max(taken, default=Epoch(0))


def later(now: Micros, ttl: timedelta) -> Micros:
    """Return the moment that is `ttl` from `now`."""
    return Micros(now + ttl // timedelta(microseconds=1))


def cursor(number: int) -> str:
    """Return the cursor that goes on after the run of this number."""
    return f"r{number:x}"


def cursor_number(text: str) -> int | None:
    """Return where a page begins: before this number, or at the newest run."""
    if not text:
        return None
    if not CURSOR.fullmatch(text):
        raise CursorRefused(text)
    return int(text[1:], 16)
