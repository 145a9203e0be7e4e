"""The feed: everything that happens to a run, replayable by seq, and what is live between."""

from collections.abc import AsyncIterator, Iterator
from typing import TypeAlias

from msgspec import Struct

from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    Entry,
    Record,
    RunCancelled,
    RunCompleted,
)
from midrun.core.ids import CallId, Epoch, Micros, RunId, Seq
from midrun.driver.live import Delta
from midrun.embed.desk import Desk


class Happened(Struct, frozen=True, kw_only=True):
    """An entry of the journal, in its place."""

    seq: Seq
    at: Micros
    kind: str
    entry: Entry
    epoch: Epoch | None = None


Item: TypeAlias = Happened | Delta

_CLOSINGS = (CallDone, CallFailed, CallAborted, CallUnknown)
_ENDS = (RunCompleted, RunCancelled)


async def feed(desk: Desk, run: RunId, after: Seq) -> AsyncIterator[Item]:
    """Yield what happens to `run` after `after`, until it has ended.

    Deltas of a call that has ended meanwhile are left out: its entry has the whole of it.
    """
    closed: set[CallId] = set()
    with desk.news.of(run) as bell, desk.live.watch(run, bell) as deltas:
        while True:
            last: Entry | None = None
            for record in await desk.store.read(run, after=after):
                after, last = record.seq, record.entry
                closed.update(_closed(record.entry))
                yield happened(record)
            if isinstance(last, _ENDS):
                return
            while deltas:
                delta = deltas.popleft()
                if delta.call not in closed:
                    yield delta
            if last is None:
                await bell.wait()


def happened(record: Record) -> Happened:
    """Return a record as an item of the feed."""
    return Happened(
        seq=record.seq,
        at=record.at,
        kind=type(record.entry).__name__,
        entry=record.entry,
        epoch=record.epoch,
    )


def _closed(entry: Entry) -> Iterator[CallId]:
    if isinstance(entry, _CLOSINGS):
        yield entry.call
