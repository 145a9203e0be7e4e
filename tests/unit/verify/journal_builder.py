"""Build journals entry by entry, sound and unsound, for the tests of the checks."""

from collections.abc import Iterator

from msgspec.structs import replace

from midrun.core.entries import (
    CallDone,
    CallStarted,
    Entry,
    LateResult,
    LeaseReleased,
    LeaseTaken,
    Record,
    RequestEntry,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunStarted,
    RunWaiting,
)
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros, Seq, make_call_id
from midrun.core.values import Effect, Reply, RequestedCall, Traits
from midrun.verify.journal import check_journal

START_TIME = 1_800_000_000 * MICROS_PER_SECOND

STARTED = RunStarted(agent="clerk", task="Sort the mail", by="ann", undo_attempts=2)
LEASE, LEASE_2 = LeaseTaken(epoch=Epoch(1)), LeaseTaken(epoch=Epoch(2))
LEASED_RUN: tuple[Entry, ...] = (STARTED, LEASE)

MAIL = RequestedCall(tool="mail", args={})
LOOK = RequestedCall(tool="look", args={}, traits=Traits(effect=Effect.READ))
DRAFT = RequestedCall(tool="draft", args={}, traits=Traits(undo=True))
LOCK = RequestedCall(tool="lock", args={}, traits=Traits(release=True))

C1, C2, C3, C4 = map(make_call_id, range(1, 5))

LEASE_ENDS = (LeaseReleased, RunPaused, RunWaiting, RunCompleted, RunFailed, RunCancelled)


def make_step(*uses: RequestedCall, call: CallId = C1, text: str = "") -> tuple[Entry, ...]:
    """Return a model call that proposes these calls; it has seen all entries before it."""
    return (
        CallStarted(call=call, call_kind="model", attempt=1, seen=Seq(-1)),
        CallDone(call=call, reply=Reply(text=text, uses=uses)),
    )


def make_start(call: CallId, *, attempt: int = 1, seen: int = -1) -> CallStarted:
    """Return the start of a tool call; with `seen=-1` it has seen all entries before it."""
    return CallStarted(call=call, call_kind="tool", attempt=attempt, seen=Seq(seen))


def make_call_in_flight(use: RequestedCall) -> tuple[Entry, ...]:
    """Return a run with one model call, which is done, and one tool call, c2."""
    return (*LEASED_RUN, *make_step(use), make_start(C2))


def make_journal(*entries: Entry | Record) -> tuple[Record, ...]:
    """Return the entries with seqs, and with the epoch of the lease if a driver appends them.

    A record that is given in place of an entry keeps its epoch and time.
    """
    return tuple(_make_records(entries))


def _make_records(entries: tuple[Entry | Record, ...]) -> Iterator[Record]:
    epoch, leased = Epoch(0), False
    for seq, item in enumerate(entries, start=1):
        entry = item.entry if isinstance(item, Record) else item
        if isinstance(entry, CallStarted) and entry.seen < 0:
            entry = replace(entry, seen=Seq(seq - 1))
        if isinstance(entry, LeaseTaken):
            epoch, leased = entry.epoch, True
        by_driver = leased and not isinstance(entry, RequestEntry | LateResult)
        if isinstance(item, Record):
            yield Record(seq=Seq(seq), at=item.at, entry=entry, epoch=item.epoch)
        else:
            writer = epoch if by_driver else None
            yield Record(seq=Seq(seq), at=Micros(START_TIME), entry=entry, epoch=writer)
        leased = leased and not isinstance(entry, LEASE_ENDS)


def with_epoch(epoch: int | None, entry: Entry) -> Record:
    """Return `entry` as a record of this epoch."""
    return make_record(entry, epoch=epoch)


def with_time(seconds: float, entry: Entry, *, epoch: int | None = 1) -> Record:
    """Return `entry` as a record of this many seconds after the start."""
    return make_record(entry, epoch=epoch, seconds=seconds)


def make_record(entry: Entry, *, epoch: int | None, seconds: float = 0) -> Record:
    """Return `entry` as a record of this epoch and time; `make_journal` sets its seq."""
    when = Micros(START_TIME + round(seconds * MICROS_PER_SECOND))
    return Record(
        seq=Seq(0), at=when, entry=entry, epoch=None if epoch is None else Epoch(epoch)
    )


def find_violations(*entries: Entry | Record) -> list[str]:
    """Return the names of the invariants that a journal of these entries violates."""
    return [problem.invariant for problem in check_journal(make_journal(*entries))]
