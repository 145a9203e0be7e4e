"""The rules that every store enforces, as pure functions.

A store calls the first half of them before its transaction: they check and encode the
arguments, so that nothing can fail for its content after the first write. It calls the second
half inside the transaction with the row that it has read there: they compare lease, seq, halts
and limits, and stamp the lines. Because all stores share these functions, they refuse in the
same order and store the same bytes.

The last part checks journals that are brought in from another store (`Store.adopt`).

Structs that every append creates have `gc=False`, here and in the stores. They cannot be part
of a reference cycle, and with many appends at once the garbage collector would traverse
hundreds of them again and again.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from math import isfinite
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from midrun.codec.hash_chain import UNKEYED_CHAIN, HashChain, check_import_head
from midrun.codec.journal import decode_line, encode_entry, format_line, format_record
from midrun.codec.strict_json import DEFAULT_LIMITS, INTEGER_MAX, JsonLimits
from midrun.core import transitions
from midrun.core.entries import Entry, LeaseTaken, Record, RunImported, RunStarted
from midrun.core.evolve import fold
from midrun.core.files import FILE_HASH_PATTERN, iter_file_refs
from midrun.core.ids import SEQ_ZERO, Epoch, Micros, RunId, Seq
from midrun.core.run_head import NAME_MAX_CHARS, Head
from midrun.core.state import State
from midrun.core.values import Phase
from midrun.errors import (
    CursorRefused,
    FileMissing,
    HaltInForce,
    JournalCorrupt,
    JournalTooNew,
    KindRefused,
    LeaseHeld,
    NoRoom,
    NotJson,
    QuotaReached,
    RunNotFound,
    SeqConflict,
    StaleEpoch,
    TooLarge,
)
from midrun.ports.store import (
    AppendResult,
    HaltRecord,
    Lease,
    RunGroup,
    RunQuery,
    RunQuota,
    RunRow,
    Snapshot,
    Visibility,
    select_limits,
)
from midrun.ports.write_permissions import (
    CLOSING_ENTRY_TYPES,
    PERSON_ENTRY_TYPES,
    UNLEASED_ENTRY_TYPES,
)
from midrun.stores.encryption import PayloadCipher
from midrun.stores.search import collect_words

# ── Heads and rows in their stored form ──────────────────────────────────────────────────

_HEAD_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_HEAD_DECODER: Final = msgspec.json.Decoder(Head)


INDEXED_FIELDS: Final = (
    *("phase", "agent", "thread", "parent", "owner", "tenant", "team", "attention", "wake_at"),
    "labels",
)
"""The fields of a head that the SQL stores also keep in columns, for lists."""

FIXED_NAMES: Final = ("agent", "thread", "parent", "owner", "tenant", "team")
"""The names in a head that never change."""

ALL_TENANTS: Final = "*"
"""The stored tenant of a halt that covers all tenants. No tenant may have this name."""

ROW_COLUMN_COUNT: Final = 8
"""The number of columns that `build_row` takes. The indexed columns follow them."""


class StoredHead(Struct, frozen=True, gc=False):
    """A head exactly as it will be read back, with its stored bytes."""

    head: Head
    body: bytes


def encode_head(head: Head, cipher: PayloadCipher, run: RunId) -> StoredHead:
    """Encode the head of `run` for a store; encrypt its task.

    Raises:
        NotJson: a field cannot be stored; `path` names it.
    """
    try:
        body = _HEAD_ENCODER.encode(head)
        # The head is decoded again and compared. A field of a wrong type, an int in place of a
        # str, say, would encode without complaint and come back different or not at all.
        decoded = _HEAD_DECODER.decode(body)
    except (TypeError, ValueError) as error:
        raise NotJson(f"$.head{_find_bad_field(head)}", str(error)) from None
    if decoded != head:
        raise NotJson(f"$.head{_find_bad_field(head)}", "a value of another type")
    for number in (decoded.asks, decoded.step, decoded.wake_at or 0):
        if not -INTEGER_MAX <= number <= INTEGER_MAX:
            raise NotJson(f"$.head{_find_bad_field(head)}", f"integer beyond ±{INTEGER_MAX}")
    if cipher.write_id and head.task:
        task = cipher.encrypt_task(run, head.task)
        return StoredHead(decoded, _HEAD_ENCODER.encode(replace(head, task=task)))
    return StoredHead(decoded, body)


def encode_first_head(head: Head, cipher: PayloadCipher, run: RunId) -> StoredHead:
    """Encode the head of a new run for a store.

    Postgres cannot index more than about 2,700 bytes, so the names of a new run are bounded in
    every store. A run that a store already has keeps its names and continues.

    Raises:
        NotJson: a field cannot be stored.
        TooLarge: a name is longer than `NAME_MAX_CHARS`; `path` names it.
    """
    encoded_head = encode_head(head, cipher, run)
    names = {name: getattr(head, name) for name in FIXED_NAMES}
    names |= {f"labels[{number}]": label for number, label in enumerate(head.labels)}
    for field, name in names.items():
        if len(name) > NAME_MAX_CHARS:
            raise TooLarge(f"$.head.{field}", len(name), NAME_MAX_CHARS)
    return encoded_head


def decode_head(body: bytes) -> Head:
    """Decode a stored head.

    Raises:
        msgspec.MsgspecError: the bytes are not a head.
    """
    if not isinstance(body, bytes):  # a damaged page may yield NULL
        raise msgspec.ValidationError(f"head must be bytes, got {type(body).__name__}")
    return _HEAD_DECODER.decode(body)


def build_row(
    run: RunId,
    head: bytes,
    seq: Seq,
    link: bytes,
    epoch: Epoch,
    holder: str,
    started_at: Micros,
    changed_at: Micros,
) -> RunRow:
    """Build a row from its columns, in the order of the stores' queries."""
    return RunRow(
        run=run,
        head=decode_head(head),
        seq=seq,
        hash=link,
        epoch=epoch,
        holder=holder,
        started_at=started_at,
        changed_at=changed_at,
    )


def build_run_group(
    agent: str,
    phase: str,
    runs: int,
    asks: int,
    oldest_change: Micros,
    oldest_asking: Micros | None,
) -> RunGroup:
    """Build a group of runs from its columns, in the order of the stores' queries."""
    return RunGroup(
        agent=agent,
        phase=Phase(phase),
        runs=runs,
        asks=asks,
        oldest_change=oldest_change,
        oldest_asking=oldest_asking,
    )


def name_indexed_columns(values: Sequence[object]) -> dict[str, object]:
    """Return indexed columns by name, given in the order of the queries."""
    return dict(zip(INDEXED_FIELDS, values, strict=True))


def _find_bad_field(head: Head) -> str:
    """Return the path suffix of the field that cannot be stored."""
    # The encoder's own message does not always name the field. Each field is tried alone, which
    # is slow but happens only on the way to an error.
    for name in Head.__struct_fields__:
        value = getattr(head, name)
        try:
            decoded = _HEAD_DECODER.decode(
                _HEAD_ENCODER.encode({"phase": Phase.QUEUED, name: value})
            )
        except (TypeError, ValueError):
            return f".{name}"
        number = value if type(value) is int else 0
        if getattr(decoded, name) != value or not -INTEGER_MAX <= number <= INTEGER_MAX:
            return f".{name}"
    return ""


# ── Checks and stamps of a write ─────────────────────────────────────────────────────────

START_ENTRY_TYPES: Final = frozenset(transitions.START_ENTRY_TYPES)
NAMED_HALT_SCOPES: Final = ("agent", "label", "run")
QUOTA_NAMES: Final = ("open_runs", "recent_runs")
RUN_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class RunRowVersion(Struct, frozen=True, kw_only=True, gc=False):
    """The columns of a run's row that a write is compared with.

    `epoch` and `holder` fence off old leases, `seq` detects a conflict, `hash` and `at` are
    continued by the next line.
    """

    run: RunId
    seq: Seq
    hash: bytes
    at: Micros
    epoch: Epoch
    holder: str


class StampedLines(Struct, frozen=True, kw_only=True, gc=False):
    """Lines with their hashes, and the end of the journal after them."""

    lines: tuple[tuple[bytes, bytes], ...]
    appended: AppendResult


def make_first_version(run: RunId, chain: HashChain) -> RunRowVersion:
    """Return the version of a run that does not exist yet."""
    return RunRowVersion(
        run=run,
        seq=SEQ_ZERO,
        hash=chain.make_first_link(run),
        at=Micros(0),
        epoch=Epoch(0),
        holder="",
    )


def check_run_id(run: RunId) -> None:
    """Refuse to look up an id that no run can have."""
    if not RUN_ID_PATTERN.fullmatch(run):
        raise RunNotFound(run)


def check_new_run_id(run: RunId) -> None:
    """Refuse an id that would not fit into a URL."""
    if not RUN_ID_PATTERN.fullmatch(run):
        raise ValueError(
            f"run id must have 1 to 64 letters, digits, '-' or '_', got {run[:80]!r}"
        )


def encode_first_entries(
    run: RunId, entries: Sequence[Entry], limits: JsonLimits = DEFAULT_LIMITS
) -> list[bytes]:
    """Encode the entries of a new journal; the first is a `RunStarted`."""
    check_new_run_id(run)
    if not entries or not isinstance(entries[0], RunStarted):
        raise ValueError(f"Cannot create run {run}: the first entry must be RunStarted.")
    # The entries of a new run follow the rules of a writer without a lease: a client that
    # starts a run must not be able to bring results of calls along.
    return encode_entries(run, entries, None, limits)


def encode_entries(
    run: RunId,
    entries: Sequence[Entry],
    lease: Lease | None,
    limits: JsonLimits = DEFAULT_LIMITS,
) -> list[bytes]:
    """Encode `entries` if this writer may append them."""
    if not entries:
        raise ValueError(f"Cannot append to run {run}: entries must not be empty.")
    if lease is not None and lease.run != run:
        raise ValueError(f"Cannot append to run {run}: the lease is for run {lease.run}.")
    bodies = []
    for entry in entries:
        kind = type(entry)
        # A driver (with a lease) may not write entries that only people decide. A control
        # (without one) may write only requests of people and the entries that follow from them
        # at once. `LeaseTaken` is written by `Store.take_lease` alone.
        if kind is LeaseTaken or (
            kind in PERSON_ENTRY_TYPES if lease else kind not in UNLEASED_ENTRY_TYPES
        ):
            raise KindRefused(run, kind.__name__, "driver" if lease else "control")
        bodies.append(encode_entry(entry, limits))
    return bodies


def encode_lease_entries(
    run: RunId, entries: Sequence[Entry], holder: str, limits: JsonLimits = DEFAULT_LIMITS
) -> list[bytes]:
    """Encode the entries of a new lease holder; the first names the epoch."""
    lease = Lease(run=run, holder=holder, epoch=read_taken_epoch(run, entries, holder))
    first, *rest = entries
    bodies = encode_entries(run, rest, lease, limits) if rest else []
    return [encode_entry(first, limits), *bodies]


def read_taken_epoch(run: RunId, entries: Sequence[Entry], holder: str) -> Epoch:
    """Return the epoch that the `LeaseTaken` at the start of `entries` takes."""
    first = entries[0] if entries else None
    if not holder or not isinstance(first, LeaseTaken) or first.holder not in {"", holder}:
        raise ValueError(
            f"Cannot take the lease of run {run}: the first entry must be a LeaseTaken of the"
            " same holder."
        )
    check_text("holder", holder)
    return first.epoch


def check_append_without_after(
    run: RunId,
    entries: Sequence[Entry],
    *,
    lease: Lease | None,
    head: Head | None,
    starts: bool,
) -> None:
    """Refuse an append without `after` whose entries depend on the state of the run."""
    # Without `after`, nothing is compared with the seq, so the entries may land behind a
    # control that the writer has not seen. That is harmless only for entries that end
    # something.
    if lease is None or head is not None or starts:
        raise ValueError(
            f"Cannot append to run {run} without `after`: a lease is needed, and neither a"
            " head nor starts."
        )
    for entry in entries:
        if type(entry) not in CLOSING_ENTRY_TYPES:
            writer = "driver that leaves `after` out"
            raise KindRefused(run, type(entry).__name__, writer)


class NamedFiles(Struct, frozen=True, gc=False):
    """The files that the entries of a write name, by hash, and the bodies that came along."""

    hashes: tuple[str, ...] = ()
    bodies: Mapping[str, bytes] = {}


NO_FILES: Final = NamedFiles()


def encrypt_files(cipher: PayloadCipher, files: NamedFiles) -> NamedFiles:
    """Encrypt the bodies of files."""
    if not cipher or not files.bodies:
        return files
    sealed = {key: cipher.encrypt_file(key, body) for key, body in files.bodies.items()}
    return NamedFiles(files.hashes, sealed)


def collect_files(entries: Iterable[Entry], files: Mapping[str, bytes] | None) -> NamedFiles:
    """Return the files that `entries` name; refuse a body that does not have its hash.

    Bodies that no entry names are left out.
    """
    hashes = tuple(dict.fromkeys(ref.hash for e in entries for ref in iter_file_refs(e)))
    if not hashes:
        return NO_FILES
    bodies = {key: files[key] for key in hashes if key in files} if files else {}
    for key in hashes:
        if not FILE_HASH_PATTERN.fullmatch(key):
            raise ValueError(f"the hash of a file must be a SHA-256 in hex, got {key[:80]!r}")
        if key in bodies and sha256(bodies[key]).hexdigest() != key:
            raise ValueError(f"the body of file {key[:12]} has another hash")
    return NamedFiles(hashes, bodies)


def check_file_hash(run: RunId, file_hash: str) -> None:
    """Refuse to look up a hash that no file can have."""
    if not FILE_HASH_PATTERN.fullmatch(file_hash):
        raise FileMissing(run, file_hash)


def has_starts(entries: Iterable[Entry]) -> bool:
    """Tell whether one of `entries` starts a call: then the halts are checked."""
    return not START_ENTRY_TYPES.isdisjoint(map(type, entries))


def check_append(current: RunRowVersion, after: Seq | None, lease: Lease | None) -> None:
    """Refuse an append under an old lease or after a conflicting entry."""
    # The fence. The row's epoch grows by one with every lease, so an epoch that differs belongs
    # to a lease that was replaced. An equal epoch with another holder (the empty one) was given
    # back. This comes first: a driver that lost its run must learn that, not that it should
    # read on.
    if lease is not None and (lease.epoch != current.epoch or lease.holder != current.holder):
        raise StaleEpoch(current.run, lease.epoch, current.epoch)
    if after is not None and after != current.seq:
        raise SeqConflict(current.run, after, current.seq)


def check_take(
    current: RunRowVersion, *, after: Seq, holder: str, epoch: Epoch, holder_alive: bool
) -> None:
    """Refuse a lease while another holder is alive."""
    # Before the seq is compared: a worker that has read everything must still not take a run
    # from a live one. A holder may take its own run again, with a new epoch.
    if holder_alive and current.holder not in {"", holder}:
        raise LeaseHeld(current.run, current.holder)
    if after != current.seq:
        raise SeqConflict(current.run, after, current.seq)
    # `after` matches, so the caller has read every `LeaseTaken`. A wrong epoch is a bug in it.
    if epoch != current.epoch + 1:
        raise ValueError(
            f"Cannot take the lease of run {current.run}: epoch must be"
            f" {current.epoch + 1}, got {epoch}."
        )


def check_halts(run: RunId, head: Head, halts: Iterable[HaltRecord]) -> None:
    """Refuse a start that one of `halts` forbids."""
    for halt in halts:
        if halt.covers(run, head):
            raise HaltInForce(run, halt.scope, halt.reason, halt.by)


def select_valid_limits(head: Head, limits: Mapping[str, int] | None) -> dict[str, int]:
    """Return the limits that a run with this head counts for; check their values."""
    selected = select_limits(limits, head)
    for scope, limit in selected.items():
        clamp_limit(limit, at_least=1)
        check_text("scope", scope)
    return selected


def check_limits(
    current: RunRowVersion,
    holder: str,
    limits: Mapping[str, int],
    count_held: Callable[[str], int],
) -> None:
    """Refuse a lease if one of `limits` is reached.

    `count_held` counts the other runs of a scope. Only runs with a live holder count. A holder
    that takes its own run again needs no new place.
    """
    for scope, limit in limits.items():
        # The count is made in the transaction that takes the lease. If it were made before, two
        # workers could both see the last free place.
        if current.holder != holder and count_held(scope) >= limit:
            raise NoRoom(current.run, scope, limit)


def check_quota_values(quotas: Sequence[RunQuota]) -> None:
    """Refuse quotas whose names cannot be stored, or whose bounds are negative."""
    for quota in quotas:
        check_visibility(Visibility(tenant=quota.tenant, owner=quota.owner))
        for name in QUOTA_NAMES:
            bound = getattr(quota, name)
            if bound is not None and not 0 <= bound <= INTEGER_MAX:
                raise ValueError(f"{name} must be from 0 to {INTEGER_MAX}, got {bound}")


def check_quotas(
    run: RunId,
    quotas: Sequence[RunQuota],
    count_runs: Callable[[RunQuota], tuple[int, int]],
) -> None:
    """Refuse a new run if one of `quotas` is reached.

    `count_runs` returns the open runs of a quota and those that were started recently. It may
    stop to count at the bound.
    """
    for quota in quotas:
        counts = zip(QUOTA_NAMES, count_runs(quota), strict=True)
        for name, count in counts:
            bound = getattr(quota, name)
            if bound is not None and count >= bound:
                raise QuotaReached(run, quota.tenant, quota.owner, name, bound)


def encode_halt_tenant(tenant: str | None) -> str:
    """Return the stored tenant of a halt."""
    return ALL_TENANTS if tenant is None else tenant


def build_halt(scope: str, by: str, reason: str, at: Micros, tenant: str) -> HaltRecord:
    """Build a halt from its columns, in the order of the stores' queries."""
    covered = None if tenant == ALL_TENANTS else tenant
    return HaltRecord(scope=scope, by=by, reason=reason, at=at, tenant=covered)


def check_halt_scope(scope: str) -> None:
    """Refuse a halt whose scope covers no run."""
    kind, _, name = scope.partition(":")
    if scope != "all" and not (kind in NAMED_HALT_SCOPES and name):
        raise ValueError(f"scope must be all, agent:NAME, label:LABEL or run:ID, got {scope!r}")


def stamp_lines(
    current: RunRowVersion,
    bodies: Iterable[bytes],
    *,
    chain: HashChain,
    now: Micros,
    epoch: Epoch | None,
) -> StampedLines:
    """Give each body its seq, its time and its hash."""
    # Time never runs backwards within a run, even if the clock was set back or the last entry
    # was written by a process whose clock is ahead.
    at = max(now, current.at)
    seq, link = current.seq, current.hash
    lines = []
    for body in bodies:
        seq = Seq(seq + 1)
        data = format_line(body, seq=seq, at=at, epoch=epoch)
        link = chain.make_next_link(link, data)
        lines.append((data, link))
    return StampedLines(lines=tuple(lines), appended=AppendResult(seq=seq, at=at, hash=link))


def check_text(name: str, text: str) -> None:
    """Refuse text that is not valid Unicode, which no store can keep."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} must be valid Unicode, got a lone surrogate at character {error.start}"
        ) from None


DROPPED_HOLDER: Final = "restored"
"""The holder of a lease that `drop_leases` has taken away. It has no heartbeats."""


def check_holder(holder: str) -> None:
    """Refuse an empty holder; in a row it means that the lease is free."""
    if not holder:
        raise ValueError("holder must not be empty")
    check_text("holder", holder)


def check_halt(halt: HaltRecord) -> None:
    """Refuse a halt that covers no run or cannot be stored."""
    check_halt_scope(halt.scope)
    for name in ("scope", "by", "reason"):
        check_text(name, getattr(halt, name))
    check_text("tenant", halt.tenant or "")


def check_snapshot(snapshot: Snapshot) -> None:
    """Refuse a snapshot at a seq that no entry can have."""
    if not SEQ_ZERO < snapshot.seq <= INTEGER_MAX:
        raise ValueError(f"snapshot.seq must be 1 or more, got {snapshot.seq}")


def encode_stored_snapshot(
    chain: HashChain, cipher: PayloadCipher, run: RunId, snapshot: Snapshot
) -> Snapshot:
    """Return the stored form of a snapshot: encrypted, then sealed by the key of the chain."""
    # The seal is outside: a snapshot that an attacker has written is refused before it is
    # decrypted or decoded.
    body = chain.seal_snapshot(snapshot.hash, cipher.encrypt_snapshot(run, snapshot.body))
    return replace(snapshot, body=body)


def open_stored_snapshot(
    chain: HashChain, cipher: PayloadCipher, run: RunId, snapshot: Snapshot
) -> Snapshot | None:
    """Return a stored snapshot; None if its seal or its key does not match."""
    sealed = chain.open_snapshot(snapshot.hash, snapshot.body)
    body = None if sealed is None else cipher.decrypt_snapshot(run, sealed)
    return None if body is None else Snapshot(seq=snapshot.seq, hash=snapshot.hash, body=body)


def check_read_range(after: Seq, limit: int | None) -> None:
    """Refuse a read with a negative `after` or `limit`."""
    if after < SEQ_ZERO or (limit is not None and limit < 0):
        raise ValueError(f"after and limit must not be negative, got {after} and {limit}")


def clamp_limit(limit: int, *, at_least: int = 0) -> int:
    """Return `limit`, reduced to the greatest number that every store can count to."""
    if limit < at_least:
        raise ValueError(f"limit must be {at_least} or more, got {limit}")
    return min(limit, INTEGER_MAX - 1)


def check_heartbeat(holder: str, ttl: timedelta, lag: float) -> int:
    """Check a heartbeat; return its `ttl` in microseconds."""
    check_holder(holder)
    micros = ttl // timedelta(microseconds=1)
    if not 0 <= micros <= INTEGER_MAX:
        raise ValueError(f"ttl must be between 0 and about 285 years, got {ttl}")
    if not isfinite(lag):
        raise ValueError(f"lag must be a finite number of seconds, got {lag}")
    return micros


def check_agent_names(agents: Iterable[str]) -> None:
    """Refuse agent names that are not valid Unicode."""
    for name in agents:
        check_text("agent", name)


def is_holder_alive(now: Micros, beat_at: Micros, ttl_micros: int) -> bool:
    """Tell whether a holder that beat at `beat_at` is alive; the SQL queries agree.

    A beat from the future counts, too, up to its `ttl`: the clock was set back a little. A beat
    from further ahead does not: a live holder will soon beat again.
    """
    # The wall clock of the store is used, because processes of several machines share it. A
    # clock that jumps can only end leases early or late; the epoch keeps that safe.
    return abs(now - beat_at) < ttl_micros


def check_query(query: RunQuery) -> int:
    """Check `query`; return the number of runs that it asks for.

    The cursor of a page is the id of its last run. Ids are random, so unlike a position in the
    list they do not reveal how many runs of other users there are.
    """
    for name in ("agent", "label", "thread", "parent", "owner", "decider"):
        check_text(name, getattr(query, name))
    check_visibility(get_visibility(query))
    if query.cursor and not RUN_ID_PATTERN.fullmatch(query.cursor):
        raise CursorRefused(query.cursor)
    return clamp_limit(query.limit, at_least=1)


def get_visibility(query: RunQuery) -> Visibility:
    """Return the runs to which tenant, owner and teams restrict `query`."""
    return Visibility(tenant=query.tenant, owner=query.owner, teams=query.teams)


def check_visibility(seen_by: Visibility) -> None:
    """Refuse names that are not valid Unicode."""
    for name in (seen_by.tenant or "", seen_by.owner, *seen_by.teams):
        check_text("tenant, owner and teams", name)


# ── Adoption: lines of another store, which may have been forged ─────────────────────────


class AdoptedJournal(Struct, frozen=True, kw_only=True):
    """A verified journal of another store, ready to be stored byte for byte.

    `last_version` is the version of the run after the lines. The entry that records the import
    follows in the same transaction, so that no reader ever sees the lines without it.
    """

    lines: tuple[tuple[bytes, bytes], ...]
    last_version: RunRowVersion
    started_at: Micros
    import_body: bytes  # the body of the entry
    files: NamedFiles = NO_FILES
    search_words: str = ""  # see `stores/search.py`

    def stamp_with_import(self, chain: HashChain, now: Micros) -> StampedLines:
        """Return all lines, followed by the entry that records their import."""
        last = stamp_lines(
            self.last_version, [self.import_body], chain=chain, now=now, epoch=None
        )
        return StampedLines(lines=(*self.lines, *last.lines), appended=last.appended)


def verify_adopted_lines(
    run: RunId,
    lines: Sequence[bytes],
    imported: RunImported,
    chain: HashChain,
    cipher: PayloadCipher,
    files: Mapping[str, bytes] | None = None,
) -> AdoptedJournal:
    """Verify `lines`; encrypt and hash them as a journal of `run` in this store.

    Raises:
        JournalCorrupt: with the first seq that no midrun could have written so.
        JournalTooNew: with the first seq that a newer one did.
        ValueError: `imported` names another head than that of `lines`.
    """
    check_new_run_id(run)
    state, link, epoch = State(run=run), chain.make_first_link(run), Epoch(0)
    # Two chains run in parallel: the chain of this store, which may be keyed, and the plain
    # one, whose hashes the exporter published and `RunImported` entries name.
    plain = UNKEYED_CHAIN.make_first_link(run)
    records: list[Record] = []
    hashed: list[tuple[bytes, bytes]] = []
    for seq, data in enumerate(lines, start=1):
        record = decode_line(data, run=run, seq=Seq(seq))
        canonical = _check_canonical(run, record, data)
        if records and record.at < records[-1].at:
            raise JournalCorrupt(run, seq, "it is older than the entry before it")
        if isinstance(record.entry, LeaseTaken):
            epoch = max(epoch, record.entry.epoch)
        check_import_head(run, record, plain)
        # Folding the entry proves that it may follow: the driver will fold the same journal.
        state = _fold_record(state, record)
        stored = _encrypt_line(cipher, run, record) if cipher else canonical
        link, plain = (
            chain.make_next_link(link, stored),
            UNKEYED_CHAIN.make_next_link(plain, canonical),
        )
        records.append(record)
        hashed.append((stored, link))
    if not records:
        raise JournalCorrupt(run, 1, "a journal begins with RunStarted")
    if imported.head != plain.hex():
        raise ValueError(
            f"Cannot import run {run}: the entry names another head than that of the lines."
        )
    # The import itself must be allowed after the last line, before anything is written.
    _fold_record(state, Record(seq=Seq(state.seq + 1), at=state.at, entry=imported))
    end = RunRowVersion(
        run=run, seq=state.seq, hash=link, at=records[-1].at, epoch=epoch, holder=""
    )
    return AdoptedJournal(
        lines=tuple(hashed),
        last_version=end,
        started_at=records[0].at,
        import_body=cipher.encrypt_entry(run, encode_entry(imported)),
        files=encrypt_files(cipher, collect_files((record.entry for record in records), files)),
        search_words=collect_words((r.entry for r in records), has_texts=not cipher),
    )


def _encrypt_line(cipher: PayloadCipher, run: RunId, record: Record) -> bytes:
    body = cipher.encrypt_entry(run, encode_entry(record.entry), is_first=record.seq == 1)
    return format_line(body, seq=record.seq, at=record.at, epoch=record.epoch)


def _check_canonical(run: RunId, record: Record, data: bytes) -> bytes:
    """Return the canonical line of `record`, which must equal the given line."""
    try:
        canonical = format_record(record)
    except (NotJson, TooLarge) as refusal:
        raise JournalCorrupt(run, record.seq, str(refusal)) from None
    if canonical != data:
        raise JournalCorrupt(run, record.seq, "the line is not canonical")
    return canonical


def _fold_record(state: State, record: Record) -> State:
    try:
        return fold(state.run, [record], state)
    except (JournalCorrupt, JournalTooNew):
        raise
    # The fold assumes a valid journal and may fail in any way on a forged one.
    except Exception as error:
        problem = f"{type(record.entry).__name__} cannot stand here: {type(error).__name__}"
        raise JournalCorrupt(state.run, record.seq, problem) from error
