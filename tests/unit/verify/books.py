"""Journals written by hand, sound and broken: what the tests of the checks are made of."""

from collections.abc import Iterator

from msgspec.structs import replace

from midrun.core.entries import (
    CallDone,
    CallStarted,
    Entry,
    LateResult,
    LeaseTaken,
    Record,
    RequestEntry,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunStarted,
    RunWaiting,
    StoodDown,
)
from midrun.core.ids import MICROS_PER_SECOND, CallId, Epoch, Micros, Seq, make_call_id
from midrun.core.values import Effect, Reply, Traits, Use
from midrun.verify.journal import check_journal

NOON = 1_800_000_000 * MICROS_PER_SECOND

RUN = RunStarted(agent="clerk", task="Sort the mail", by="ann", undo_attempts=2)
TAKEN = LeaseTaken(epoch=Epoch(1))
BEGUN: tuple[Entry, ...] = (RUN, TAKEN)

MAIL = Use(tool="mail", args={})
LOOK = Use(tool="look", args={}, traits=Traits(effect=Effect.READ))
DRAFT = Use(tool="draft", args={}, traits=Traits(undo=True))
LOCK = Use(tool="lock", args={}, traits=Traits(release=True))

C1, C2, C3, C4 = map(make_call_id, range(1, 5))

LETS_GO = (StoodDown, RunPaused, RunWaiting, RunCompleted, RunFailed, RunCancelled)


def step(*uses: Use, call: CallId = C1, text: str = "") -> tuple[Entry, ...]:
    """Return a model call that wants these calls made; it knows everything before it."""
    return (
        CallStarted(call=call, call_kind="model", attempt=1, seen=Seq(-1)),
        CallDone(call=call, reply=Reply(text=text, uses=uses)),
    )


def start(call: CallId, *, attempt: int = 1, seen: int = -1) -> CallStarted:
    """Return the start of a tool call, by somebody who knows everything before it."""
    return CallStarted(call=call, call_kind="tool", attempt=attempt, seen=Seq(seen))


def journal(*given: Entry | Record) -> tuple[Record, ...]:
    """Number the entries and say who wrote them: a driver if it holds the lease, else nobody.

    A record given in place of an entry keeps its epoch and time. A start that has seen -1 has
    seen everything.
    """
    return tuple(_numbered(given))


def _numbered(given: tuple[Entry | Record, ...]) -> Iterator[Record]:
    epoch, leased = Epoch(0), False
    for seq, one in enumerate(given, start=1):
        entry = one.entry if isinstance(one, Record) else one
        if isinstance(entry, CallStarted) and entry.seen < 0:
            entry = replace(entry, seen=Seq(seq - 1))
        if isinstance(entry, LeaseTaken):
            epoch, leased = entry.epoch, True
        by_driver = leased and not isinstance(entry, RequestEntry | LateResult)
        if isinstance(one, Record):
            yield Record(seq=Seq(seq), at=one.at, entry=entry, epoch=one.epoch)
        else:
            writer = epoch if by_driver else None
            yield Record(seq=Seq(seq), at=Micros(NOON), entry=entry, epoch=writer)
        leased = leased and not isinstance(entry, LETS_GO)


def under(epoch: int | None, entry: Entry) -> Record:
    """Return `entry` as if written under this epoch."""
    return placed(entry, epoch=epoch)


def at(seconds: float, entry: Entry, *, epoch: int | None = 1) -> Record:
    """Return `entry` as if written this long after noon."""
    return placed(entry, epoch=epoch, seconds=seconds)


def placed(entry: Entry, *, epoch: int | None, seconds: float = 0) -> Record:
    """Return `entry` with an epoch and a time of its own."""
    when = Micros(NOON + round(seconds * MICROS_PER_SECOND))
    return Record(
        seq=Seq(0), at=when, entry=entry, epoch=None if epoch is None else Epoch(epoch)
    )


def broken(*given: Entry | Record) -> list[str]:
    """Return the names of the invariants that a journal of these entries breaks."""
    return [problem.invariant for problem in check_journal(journal(*given))]
