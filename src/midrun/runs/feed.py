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
from midrun.core.values import TERMINAL_PHASES
from midrun.runs.service import RunService
from midrun.runs.values import FeedEntry, FeedItem

_CALL_END_ENTRIES = (CallDone, CallFailed, CallAborted, CallUnknown)


async def stream_feed(
    service: RunService, run: RunId, after: Seq
) -> AsyncGenerator[FeedItem, None]:
    """Yield the entries of `run` after `after`, and live deltas, until the run has ended.

    Deltas of a call come after the entry that starts it. Deltas of a call that has ended are
    left out, because the entry of its end has the complete text.
    """
    calls = _CallTracker(service, run)
    # One wakeup for both sources: new entries and new deltas.
    with (
        service.change_notifier.subscribe(run) as wakeup,
        service.live.watch(run, wakeup) as deltas,
    ):
        while True:
            # The row is read before the journal. If it says that the run has ended at some
            # seq, the read that follows returns all entries up to that seq. In the other order
            # the run could end in between, and its last entries would be missed.
            row = await service.store.get_row(run)
            records = await service.store.read(run, after=after)
            for record in records:
                after = record.seq
                calls.record_entry(record.entry)
                yield make_feed_entry(record)
            if row.head.phase in TERMINAL_PHASES and after >= row.seq:
                return
            # In order, from the oldest delta: one that has to wait for the start of its call
            # holds back those behind it, which came later.
            while deltas and await calls.may_show(deltas[0].call):
                delta = deltas.popleft()
                if delta.call not in calls.ended:
                    yield delta
            # With deltas left over, the first one waits for its call's start: read again.
            if not records and not deltas:
                await service.wait_for_change(wakeup)


class _CallTracker:
    """The calls that have started, and those that have ended, at the position of a feed."""

    def __init__(self, service: RunService, run: RunId) -> None:
        self.ended: set[CallId] = set()
        self._started: set[CallId] = set()
        self._unknown_call: CallId | None = None  # the unknown call of the last `may_show`
        self._service = service
        self._run = run

    def record_entry(self, entry: Entry) -> None:
        """Record the start or the end of a call."""
        if isinstance(entry, CallStarted):
            self._started.add(entry.call)
            self.ended.discard(entry.call)  # this is a retry of a call that had ended
        elif isinstance(entry, _CALL_END_ENTRIES):
            self.ended.add(entry.call)
            # Another process may drive the run. If its last delta was lost, the live text of
            # the call would stay in this process for ever.
            self._service.live.forget_call(self._run, entry.call)

    async def may_show(self, call: CallId) -> bool:
        """Tell whether the feed is past the start of `call`.

        False for the first delta of an unknown call: its start may have been journaled after
        the last read, so the feed reads once more. If the call is still unknown then, it had
        started before the feed's first entry (`after`), and its state is looked up.
        """
        if call in self._started or call in self.ended:
            return True
        if call != self._unknown_call:
            self._unknown_call = call
            return False
        state = await self._service.load_state(self._run)
        (self._started if _is_in_flight(state, call) else self.ended).add(call)
        return True


def make_feed_entry(record: Record) -> FeedEntry:
    """Convert a record of the journal to an item of the feed."""
    return FeedEntry(
        seq=record.seq,
        at=record.at,
        kind=type(record.entry).__name__,
        entry=record.entry,
        epoch=record.epoch,
    )


def _is_in_flight(state: State, call_id: CallId) -> bool:
    call = state.find_call(call_id)
    if call is None:
        return False
    # An undo or a release sends deltas under the id of the call that it cleans up.
    cleaning = () if state.cleanup_in_flight is None else state.cleanup_in_flight[:1]
    return call.number in (*state.in_flight, *cleaning)
