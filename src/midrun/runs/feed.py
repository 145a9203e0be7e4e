"""The feed: everything that happens to a run, replayable by seq, and what is live between."""

from collections.abc import AsyncGenerator

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
from midrun.core.state import State
from midrun.core.values import TERMINAL
from midrun.runs.service import Desk
from midrun.runs.values import FeedItem, Happened

_CLOSINGS = (CallDone, CallFailed, CallAborted, CallUnknown)


async def feed(desk: Desk, run: RunId, after: Seq) -> AsyncGenerator[FeedItem, None]:
    """Yield what happens to `run` after `after`, until it has ended.

    Deltas come after the entry that starts their call. Those of a call that has ended meanwhile
    are left out: its entry has the whole of it.
    """
    calls = _Calls(desk, run)
    with desk.news.of(run) as bell, desk.live.watch(run, bell) as deltas:
        while True:
            row = await desk.store.row(run)  # before the read, so that no end is overlooked
            records = await desk.store.read(run, after=after)
            for record in records:
                after = record.seq
                calls.note(record.entry)
                yield happened(record)
            if row.head.phase in TERMINAL and after >= row.seq:
                return
            while deltas and await calls.is_known(deltas[0].call):
                delta = deltas.popleft()
                if delta.call not in calls.over:
                    yield delta
            if not records and not deltas:
                await desk.rung(bell)


class _Calls:
    """Which calls have begun and which are over, as far as a feed has come."""

    def __init__(self, desk: Desk, run: RunId) -> None:
        self.over: set[CallId] = set()
        self._begun: set[CallId] = set()
        self._sought: CallId | None = None
        self._desk = desk
        self._run = run

    def note(self, entry: Entry) -> None:
        """Take in what was read."""
        if isinstance(entry, CallStarted):
            self._begun.add(entry.call)
            self.over.discard(entry.call)  # another attempt at it
        elif isinstance(entry, _CLOSINGS):
            self.over.add(entry.call)
            self._desk.live.over(self._run, entry.call)

    async def is_known(self, call: CallId) -> bool:
        """Tell whether the feed may speak of `call`: not before the entry that starts it.

        The first time of one that is not: that may have been journaled since the last read.
        """
        if call in self._begun or call in self.over:
            return True
        if call != self._sought:
            self._sought = call
            return False
        state = await self._desk.state_of(self._run)  # it is from before the feed
        (self._begun if _under_way(state, call) else self.over).add(call)
        return True


def happened(record: Record) -> Happened:
    """Return a record as an item of the feed."""
    return Happened(
        seq=record.seq,
        at=record.at,
        kind=type(record.entry).__name__,
        entry=record.entry,
        epoch=record.epoch,
    )


def _under_way(state: State, call_: CallId) -> bool:
    call = state.call(call_)
    if call is None:
        return False
    cleaning = () if state.cleaning is None else state.cleaning[:1]
    return call.number in (*state.in_flight, *cleaning)
