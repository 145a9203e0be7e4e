"""What every store must refuse, and how it stamps what it accepts: pure, shared by all of them.

A store calls what checks and encodes its arguments before its transaction, so that nothing can
go wrong after its first write for reasons of content; and the rest inside it, with what it has
read there. So the order of refusals and the bytes are the same wherever a journal is kept.

Here and in the stores, what every append makes has `gc=False`: nothing in it can lead back to
it, and in a crowd the collector would look at hundreds of them again and again.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from math import isfinite
from typing import Final

from msgspec import Struct

from midrun.codec.chain import Chain
from midrun.codec.journal import encode_entry, line
from midrun.codec.strict import DEFAULT, INTEGER_MAX, Limits
from midrun.core import follows
from midrun.core.entries import Entry, LeaseTaken, RunStarted
from midrun.core.head import Head
from midrun.core.ids import START, Epoch, Micros, RunId, Seq
from midrun.errors import (
    CursorRefused,
    HaltInForce,
    KindRefused,
    LeaseHeld,
    NoRoom,
    RunNotFound,
    SeqConflict,
    StaleEpoch,
)
from midrun.ports.store import Appended, Halt, Lease, Query, Snapshot, covering
from midrun.ports.writers import CLOSINGS, PERSONAL, UNLEASED

STARTS: Final = frozenset(follows.STARTS)
SCOPES: Final = ("agent", "label", "run")
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Standing(Struct, frozen=True, kw_only=True, gc=False):
    """Where a run stands inside a write transaction: what the write must agree with."""

    run: RunId
    seq: Seq
    hash: bytes
    at: Micros
    epoch: Epoch
    holder: str


class Stamped(Struct, frozen=True, kw_only=True, gc=False):
    """Lines with their hashes, ready to be stored, and the head that they lead to."""

    lines: tuple[tuple[bytes, bytes], ...]
    appended: Appended


def nothing_yet(run: RunId, chain: Chain) -> Standing:
    """Return where a run stands that does not exist."""
    return Standing(
        run=run, seq=START, hash=chain.first(run), at=Micros(0), epoch=Epoch(0), holder=""
    )


def check_id(run: RunId) -> None:
    """Refuse to look for what cannot be there."""
    if not ID.fullmatch(run):
        raise RunNotFound(run)


def check_new_id(run: RunId) -> None:
    """Refuse an id that would not fit into an address."""
    if not ID.fullmatch(run):
        raise ValueError(f"run id {run[:80]!r}: use 1 to 64 letters, digits, - and _")


def encoded_start(
    run: RunId, entries: Sequence[Entry], limits: Limits = DEFAULT
) -> list[bytes]:
    """Return the bodies of a new journal, which begins with the run's start."""
    check_new_id(run)
    if not entries or not isinstance(entries[0], RunStarted):
        raise ValueError(f"run {run}: a journal begins with RunStarted")
    return encoded(run, entries, None, limits)


def encoded(
    run: RunId, entries: Sequence[Entry], lease: Lease | None, limits: Limits = DEFAULT
) -> list[bytes]:
    """Return the bodies of `entries` if this writer may append them."""
    if not entries:
        raise ValueError(f"run {run}: nothing to append")
    if lease is not None and lease.run != run:
        raise ValueError(f"run {run}: the lease is one of run {lease.run}")
    bodies = []
    for entry in entries:
        kind = type(entry)
        if kind is LeaseTaken or (kind in PERSONAL if lease else kind not in UNLEASED):
            raise KindRefused(run, kind.__name__, "driver" if lease else "control")
        bodies.append(encode_entry(entry, limits))
    return bodies


def encoded_taking(
    run: RunId, entries: Sequence[Entry], holder: str, limits: Limits = DEFAULT
) -> list[bytes]:
    """Return the bodies of what a new lease holder appends; the first names the epoch."""
    lease = Lease(run=run, holder=holder, epoch=taken_epoch(run, entries, holder))
    first, *rest = entries
    bodies = encoded(run, rest, lease, limits) if rest else []
    return [encode_entry(first, limits), *bodies]


def taken_epoch(run: RunId, entries: Sequence[Entry], holder: str) -> Epoch:
    """Return the epoch that `entries` take."""
    first = entries[0] if entries else None
    if not holder or not isinstance(first, LeaseTaken) or first.holder not in {"", holder}:
        raise ValueError(f"run {run}: a lease is taken with a LeaseTaken by its holder")
    check_text("holder", holder)
    return first.epoch


def check_evidence(
    run: RunId,
    entries: Sequence[Entry],
    *,
    lease: Lease | None,
    head: Head | None,
    starts: bool,
) -> None:
    """Refuse an append that must say what it depends on and does not; a bug in the caller."""
    if lease is None or head is not None or starts:
        raise ValueError(f"run {run}: only a lease holder's evidence may leave `after` out")
    for entry in entries:
        if type(entry) not in CLOSINGS:
            writer = "driver that leaves `after` out"
            raise KindRefused(run, type(entry).__name__, writer)


def has_starts(entries: Iterable[Entry]) -> bool:
    """Tell whether something leaves the process after `entries`: whether latches matter."""
    return not STARTS.isdisjoint(map(type, entries))


def check_append(standing: Standing, after: Seq | None, lease: Lease | None) -> None:
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


def limits_on(head: Head, limits: Mapping[str, int] | None) -> dict[str, int]:
    """Return the limits that a run with this head counts for, if they are any."""
    found = covering(limits, head)
    for scope, most in found.items():
        bounded(most, at_least=1)
        check_text("scope", scope)
    return found


def check_room(
    standing: Standing, holder: str, limits: Mapping[str, int], held: Callable[[str], int]
) -> None:
    """Refuse one more where there are enough; `held` counts the other runs of a scope.

    Only those count whose holder is alive. What is the holder's own has its place.
    """
    for scope, most in limits.items():
        if standing.holder != holder and held(scope) >= most:
            raise NoRoom(standing.run, scope, most)


def check_scope(scope: str) -> None:
    """Refuse a latch that would hold nothing."""
    kind, _, name = scope.partition(":")
    if scope != "all" and not (kind in SCOPES and name):
        raise ValueError(f"scope {scope!r}: use all, agent:NAME, label:LABEL or run:ID")


def stamp(
    standing: Standing,
    bodies: Iterable[bytes],
    *,
    chain: Chain,
    now: Micros,
    epoch: Epoch | None,
) -> Stamped:
    """Give each body its place, its time and its hash. Time never runs backwards in a run."""
    at = max(now, standing.at)
    seq, link = standing.seq, standing.hash
    lines = []
    for body in bodies:
        seq = Seq(seq + 1)
        data = line(body, seq=seq, at=at, epoch=epoch)
        link = chain.next(link, data)
        lines.append((data, link))
    return Stamped(lines=tuple(lines), appended=Appended(seq=seq, at=at, hash=link))


def check_text(name: str, text: str) -> None:
    """Refuse text that is not Unicode, which no store could keep."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: lone surrogate at character {error.start}") from None


def check_holder(holder: str) -> None:
    """Refuse a name that nobody can have; the empty one stands for nobody."""
    if not holder:
        raise ValueError("holder: it is empty, which stands for nobody")
    check_text("holder", holder)


def check_halt(halt: Halt) -> None:
    """Refuse a latch that would hold nothing, or that cannot be stored."""
    check_scope(halt.scope)
    for name in ("scope", "by", "reason"):
        check_text(name, getattr(halt, name))


def check_snapshot(snapshot: Snapshot) -> None:
    """Refuse a snapshot of what cannot be an entry."""
    if not START < snapshot.seq <= INTEGER_MAX:
        raise ValueError(f"snapshot: seq {snapshot.seq} is no entry's")


def opened(chain: Chain, snapshot: Snapshot) -> Snapshot | None:
    """Return a stored snapshot as it was saved, unless somebody without the key made it."""
    body = chain.opened(snapshot.hash, snapshot.body)
    return None if body is None else Snapshot(seq=snapshot.seq, hash=snapshot.hash, body=body)


def check_stretch(after: Seq, limit: int | None) -> None:
    """Refuse to read from before the beginning, or less than nothing."""
    if after < START or (limit is not None and limit < 0):
        raise ValueError(f"after {after}, limit {limit}: neither may be negative")


def bounded(limit: int, *, at_least: int = 0) -> int:
    """Return a `limit` of a list that every store can count to."""
    if limit < at_least:
        raise ValueError(f"limit {limit}: use {at_least} or more")
    return min(limit, INTEGER_MAX - 1)


def check_beat(holder: str, ttl: timedelta, lag: float) -> int:
    """Return for how many microseconds a beat is good, if it is one."""
    check_holder(holder)
    micros = ttl // timedelta(microseconds=1)
    if not 0 <= micros <= INTEGER_MAX:
        raise ValueError(f"ttl {ttl}: neither negative nor beyond three centuries, please")
    if not isfinite(lag):
        raise ValueError(f"lag {lag}: not a number of seconds")
    return micros


def check_agents(agents: Iterable[str]) -> None:
    """Refuse names that no agent can have."""
    for name in agents:
        check_text("agent", name)


def is_fresh(now: Micros, beat_at: Micros, ttl: int) -> bool:
    """Tell whether a holder that beat at `beat_at` is alive; the queries say the same.

    A beat from the future counts too, up to its `ttl`: the clock was set back, by little. One
    from further ahead is nobody's word: whoever lives will beat again.
    """
    return abs(now - beat_at) < ttl


def page_limit(query: Query) -> int:
    """Return how many runs `query` asks for, if a store can answer it.

    The cursor of a page is the id of its last run: ids are random, so unlike a position in the
    list they do not reveal how many runs of other users there are.
    """
    for name in ("agent", "label", "thread", "parent", "owner", "decider"):
        check_text(name, getattr(query, name))
    if query.cursor and not ID.fullmatch(query.cursor):
        raise CursorRefused(query.cursor)
    return bounded(query.limit, at_least=1)
