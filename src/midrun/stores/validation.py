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

import msgspec
from msgspec import Struct

from midrun.codec.hash_chain import PLAIN, Chain, check_import
from midrun.codec.journal import decode_line, encode_entry, line, line_of
from midrun.codec.strict_json import DEFAULT, INTEGER_MAX, Limits
from midrun.core import transitions
from midrun.core.entries import Entry, LeaseTaken, Record, RunImported, RunStarted
from midrun.core.evolve import fold
from midrun.core.ids import START, Epoch, Micros, RunId, Seq
from midrun.core.run_head import NAME_MAX_CHARS, Head
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import (
    CursorRefused,
    HaltInForce,
    JournalCorrupt,
    JournalTooNew,
    KindRefused,
    LeaseHeld,
    NoRoom,
    NotJson,
    RunNotFound,
    SeqConflict,
    StaleEpoch,
    TooLarge,
)
from midrun.ports.store import Appended, Halt, Lease, Query, RunRow, Snapshot, covering
from midrun.ports.write_permissions import CLOSINGS, PERSONAL, UNLEASED

# Heads and rows as they are stored. What cannot be is refused before anything is written.

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(Head)


INDEXED: Final = (
    *("phase", "agent", "thread", "parent", "owner", "attention", "wake_at"),
    "labels",
)
"""The fields of a head that the SQL stores keep in columns, too."""

ROW_COLUMNS: Final = 8
"""How many columns `row_of` takes; those that are indexed come after them."""


class StoredHead(Struct, frozen=True, gc=False):
    """A head exactly as it will be read back, and the bytes that say it."""

    head: Head
    body: bytes


def stored(head: Head) -> StoredHead:
    """Return `head` as every store keeps it.

    Raises:
        NotJson: a field of it has no place in a store; `path` names it.
    """
    try:
        body = _ENCODER.encode(head)
        back = _DECODER.decode(body)
    except (TypeError, ValueError) as error:
        raise NotJson(f"$.head{_culprit(head)}", str(error)) from None
    if back != head:
        raise NotJson(f"$.head{_culprit(head)}", "a value of another type")
    for number in (back.asks, back.step, back.wake_at or 0):
        if not -INTEGER_MAX <= number <= INTEGER_MAX:
            raise NotJson(f"$.head{_culprit(head)}", f"integer beyond ±{INTEGER_MAX}")
    return StoredHead(back, body)


def stored_first(head: Head) -> StoredHead:
    """Return the head of a new run as every store keeps it.

    Postgres cannot index more than about 2,700 bytes, so the names of a new run are bounded in
    every store. A run that a store already has keeps its names and goes on.

    Raises:
        NotJson: a field of it has no place in a store.
        TooLarge: a name is longer than `NAME_MAX_CHARS`; `path` names it.
    """
    kept = stored(head)
    names = {name: getattr(head, name) for name in ("agent", "thread", "parent", "owner")}
    names |= {f"labels[{number}]": label for number, label in enumerate(head.labels)}
    for field, name in names.items():
        if len(name) > NAME_MAX_CHARS:
            raise TooLarge(f"$.head.{field}", len(name), NAME_MAX_CHARS)
    return kept


def read_head(body: bytes) -> Head:
    """Return the head that `body` says.

    Raises:
        msgspec.MsgspecError: nobody stored it like that.
    """
    if not isinstance(body, bytes):  # where a page was torn there may be nothing at all
        raise msgspec.ValidationError(f"a head of type {type(body).__name__}")
    return _DECODER.decode(body)


def row_of(
    run: RunId,
    head: bytes,
    seq: Seq,
    link: bytes,
    epoch: Epoch,
    holder: str,
    started_at: Micros,
    changed_at: Micros,
) -> RunRow:
    """Return a row from its columns, in the order in which the stores' queries name them."""
    return RunRow(
        run=run,
        head=read_head(head),
        seq=seq,
        hash=link,
        epoch=epoch,
        holder=holder,
        started_at=started_at,
        changed_at=changed_at,
    )


def index_of(values: Sequence[object]) -> dict[str, object]:
    """Return the indexed columns of a run by name; queries name them in that order."""
    return dict(zip(INDEXED, values, strict=True))


def _culprit(head: Head) -> str:
    """Return the field that cannot be stored, as the end of a path."""
    for name in Head.__struct_fields__:
        held = getattr(head, name)
        try:
            back = _DECODER.decode(_ENCODER.encode({"phase": Phase.QUEUED, name: held}))
        except (TypeError, ValueError):
            return f".{name}"
        number = held if type(held) is int else 0
        if getattr(back, name) != held or not -INTEGER_MAX <= number <= INTEGER_MAX:
            return f".{name}"
    return ""


STARTS: Final = frozenset(transitions.STARTS)
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


# Adoption: lines of another store, checked as if an enemy had written them.


class Adopted(Struct, frozen=True, kw_only=True):
    """A journal that was found sound, ready to be stored byte for byte.

    `end` is where the lines end. The entry that says who brought them follows in the same
    write, so that no reader ever sees them without it.
    """

    lines: tuple[tuple[bytes, bytes], ...]
    end: Standing
    started_at: Micros
    imported: bytes  # the body of the entry

    def stamp(self, chain: Chain, now: Micros) -> Stamped:
        """Return all lines, with the entry that records their import as the last."""
        last = stamp(self.end, [self.imported], chain=chain, now=now, epoch=None)
        return Stamped(lines=(*self.lines, *last.lines), appended=last.appended)


def adopted(run: RunId, lines: Sequence[bytes], imported: RunImported, chain: Chain) -> Adopted:
    """Return `lines` with the hashes that they have in a journal of `run` here.

    Raises:
        JournalCorrupt: with the first seq that no midrun could have written so.
        JournalTooNew: with the first seq that a newer one did.
        ValueError: `imported` names another head than that of `lines`.
    """
    check_new_id(run)
    state, link, epoch = State(run=run), chain.first(run), Epoch(0)
    plain = PLAIN.first(run)  # as the lines were chained where they came from
    records: list[Record] = []
    hashed: list[tuple[bytes, bytes]] = []
    for seq, data in enumerate(lines, start=1):
        record = decode_line(data, run=run, seq=Seq(seq))
        sound = _canonical(run, record, data)
        if records and record.at < records[-1].at:
            raise JournalCorrupt(run, seq, "it is older than the entry before it")
        if isinstance(record.entry, LeaseTaken):
            epoch = max(epoch, record.entry.epoch)
        check_import(run, record, plain)
        state = _followed(state, record)
        link, plain = chain.next(link, sound), PLAIN.next(plain, sound)
        records.append(record)
        hashed.append((sound, link))
    if not records:
        raise JournalCorrupt(run, 1, "a journal begins with RunStarted")
    if imported.head != plain.hex():
        raise ValueError(
            f"Cannot import run {run}: the entry names another head than that of the lines."
        )
    _followed(state, Record(seq=Seq(state.seq + 1), at=state.at, entry=imported))
    end = Standing(run=run, seq=state.seq, hash=link, at=records[-1].at, epoch=epoch, holder="")
    return Adopted(
        lines=tuple(hashed), end=end, started_at=records[0].at, imported=encode_entry(imported)
    )


def _canonical(run: RunId, record: Record, data: bytes) -> bytes:
    """Return the one line that says `record`, which must be what was brought."""
    try:
        sound = line_of(record)
    except (NotJson, TooLarge) as refusal:
        raise JournalCorrupt(run, record.seq, str(refusal)) from None
    if sound != data:
        raise JournalCorrupt(run, record.seq, "the line is not canonical")
    return sound


def _followed(state: State, record: Record) -> State:
    try:
        return fold(state.run, [record], state)
    except (JournalCorrupt, JournalTooNew):
        raise
    except Exception as error:  # a fold relies on what only a sound journal has
        problem = f"{type(record.entry).__name__} cannot stand here: {type(error).__name__}"
        raise JournalCorrupt(state.run, record.seq, problem) from error
