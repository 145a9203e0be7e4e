"""The feed: everything that happens to a run, replayable by seq, and what is live between."""

from collections.abc import AsyncGenerator, Iterator

from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    Entry,
    Record,
)
from midrun.core.ids import CallId, RunId, Seq
from midrun.core.values import TERMINAL
from midrun.embed.desk import Desk
from midrun.handles.item import Happened, Item

_CLOSINGS = (CallDone, CallFailed, CallAborted, CallUnknown)


async def feed(desk: Desk, run: RunId, after: Seq) -> AsyncGenerator[Item, None]:
    """Yield what happens to `run` after `after`, until it has ended.

    Deltas of a call that has ended meanwhile are left out: its entry has the whole of it.
    """
    closed: set[CallId] = set()
    with desk.news.of(run) as bell, desk.live.watch(run, bell) as deltas:
        while True:
            row = await desk.store.row(run)  # before the read, so that no end is overlooked
            records = await desk.store.read(run, after=after)
            for record in records:
                after = record.seq
                closed.update(_closed(record.entry))
                if isinstance(record.entry, CallStarted):
                    closed.discard(record.entry.call)  # another attempt at it
                yield happened(record)
            if row.head.phase in TERMINAL and after >= row.seq:
                return
            while deltas:
                delta = deltas.popleft()
                if delta.call not in closed:
                    yield delta
            if not records:
                await desk.rung(bell)


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
