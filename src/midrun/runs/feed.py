"""The feed of a run: its journal entries, and live deltas between them.

Entries come from the journal, so a feed can start at any seq and be repeated. Deltas (tokens,
notes, "not responding") come from memory and are shown only between the entries that start and
end their call. Entries and deltas arrive by two independent ways, in any order: `_CallTracker`
holds a delta back until the feed has shown the start of its call, and drops it once the feed
has shown the end.
"""

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
    """Yield the entries of `run` after `after`, and live deltas, until the run has ended.

    Deltas of a call come after the entry that starts it. Deltas of a call that has ended are
    left out, because the entry of its end has the complete text.
    """
    calls = _Calls(desk, run)
    # One wakeup for both sources: new entries and new deltas.
    with desk.news.of(run) as wakeup, desk.live.watch(run, wakeup) as deltas:
        while True:
            # The row is read before the journal. If it says that the run has ended at some
            # seq, the read that follows returns all entries up to that seq. In the other order
            # the run could end in between, and its last entries would be missed.
            row = await desk.store.row(run)
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
            # With deltas left over, the first one waits for its call's start: read again.
            if not records and not deltas:
                await desk.rung(wakeup)


class _Calls:
    """The calls that have started, and those that have ended, at the position of a feed."""

    def __init__(self, desk: Desk, run: RunId) -> None:
        self.over: set[CallId] = set()
        self._begun: set[CallId] = set()
        self._sought: CallId | None = None  # the unknown call of the last `may_show`
        self._desk = desk
        self._run = run

    def note(self, entry: Entry) -> None:
        """Record the start or the end of a call."""
        if isinstance(entry, CallStarted):
            self._begun.add(entry.call)
            self.over.discard(entry.call)  # this is a retry of a call that had ended
        elif isinstance(entry, _CLOSINGS):
            self.over.add(entry.call)
            self._desk.live.over(self._run, entry.call)

    async def is_known(self, call: CallId) -> bool:
        """Tell whether the feed is past the start of `call`.

        False for the first delta of an unknown call: its start may have been journaled after
        the last read, so the feed reads once more. If the call is still unknown then, it had
        started before the feed's first entry (`after`), and its state is looked up.
        """
        if call in self._begun or call in self.over:
            return True
        if call != self._sought:
            self._sought = call
            return False
        state = await self._desk.state_of(self._run)
        (self._begun if _under_way(state, call) else self.over).add(call)
        return True


def happened(record: Record) -> Happened:
    """Convert a record of the journal to an item of the feed."""
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
    # An undo or a release sends deltas under the id of the call that it cleans up.
    cleaning = () if state.cleaning is None else state.cleaning[:1]
    return call.number in (*state.in_flight, *cleaning)
