"""Broadcast a run's feed: one reader per watched run, however many subscribers it has.

Each subscriber starts `RunChannel.read` in its own request's task group, and a lock lets one
of them read. When that subscriber leaves, its task is cancelled, the lock passes on, and the
next one continues from `last_seq`. So the reading ends with the last subscriber, and no task
runs outside of a request.

The reader does not copy entries to subscribers. It raises `last_seq` and wakes them; each
reads the entries after its own position from the `EventReader`, whose cache the reader has
just filled. Only deltas, which no store keeps, are put into a queue per subscriber.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from midrun.core.ids import CallId, RunId
from midrun.driver.delta import Delta, LiveTranscript
from midrun.driver.live import append_delta
from midrun.driver.notifications import Wakeup
from midrun.errors import MidrunError
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run
from midrun.server.events import EventReader

# The minimum time between two writes to one stream, in a burst: a constant, or a share per
# subscriber if that is longer.
WRITE_GAP_S: Final = 0.015
WRITE_GAP_PER_SUBSCRIBER_S: Final = 0.001

_LOG: Final = logging.getLogger("midrun.server")


@dataclass(frozen=True)
class Subscriber:
    """One stream of a run: its wake-up and the deltas that it has not written yet."""

    wakeup: Wakeup = field(default_factory=Wakeup)
    deltas: deque[Delta] = field(default_factory=deque)


class RunChannel:
    """A watched run. `last_seq` is the newest entry that its subscribers may read.

    `has_ended` is set when no more entries will come: the run has ended, or its journal cannot
    be read (`is_broken`).
    """

    def __init__(self, run: Run, events: EventReader, last_seq: int) -> None:
        self.last_seq = last_seq
        self.has_ended = False
        self.is_broken = False
        self.subscribers: list[Subscriber] = []
        # The live text of each call in flight, for subscribers that come late.
        self._live_transcripts: dict[CallId, LiveTranscript] = {}
        self._run = run
        self._events = events
        self._reader_lock = anyio.Lock()

    @property
    def write_gap_s(self) -> float:
        """Seconds between two writes to one subscriber, in a burst.

        It grows with the number of subscribers, so the writes per second of one run are
        bounded: at most one per `WRITE_GAP_PER_SUBSCRIBER_S`, over all subscribers.
        """
        return max(WRITE_GAP_S, len(self.subscribers) * WRITE_GAP_PER_SUBSCRIBER_S)

    def add_subscriber(self) -> Subscriber:
        """Add a subscriber, with the live text so far of the calls in flight."""
        subscriber = Subscriber(deltas=deque(self._iter_live_snapshots()))
        subscriber.wakeup.set()  # the first look must not wait for the next change
        self.subscribers.append(subscriber)
        return subscriber

    async def read(self) -> None:
        """Read the feed for all subscribers, once no other task does, until the run ends."""
        async with self._reader_lock:
            # This task waited for the lock while that of another subscriber read to the end.
            if self.has_ended:
                return
            try:
                await self._read_feed()
            except MidrunError as error:
                _LOG.error("Cannot watch run %s: %s", self._run.id, error)
                self.is_broken = True
            self.has_ended = True
            self._wake_subscribers()

    async def _read_feed(self) -> None:
        async with aclosing(self._run.feed(self.last_seq)) as feed:
            async for item in feed:
                if item.seq is None:
                    self._live_transcripts.setdefault(item.call, LiveTranscript()).add(item)
                    for subscriber in self.subscribers:
                        append_delta(subscriber.deltas, item, self._iter_live_snapshots())
                    self._wake_subscribers()
                while item.seq is not None and self.last_seq < item.seq:
                    # Read a page before the subscribers are woken: each then finds it in the
                    # cache of the EventReader, and the store is read once for all of them.
                    page = await self._events.read_after(self._run.id, self.last_seq)
                    self.last_seq = page[-1].seq
                    # Live text lasts until the call ends (then the entry has the text) or
                    # starts again (then the text is of the attempt before).
                    for event in page:
                        self._live_transcripts.pop(
                            event.closes or event.starts or CallId(""), None
                        )
                    self._wake_subscribers()

    def _iter_live_snapshots(self) -> Iterator[Delta]:
        for transcript in self._live_transcripts.values():
            yield from transcript.snapshot()

    def _wake_subscribers(self) -> None:
        for subscriber in self.subscribers:
            subscriber.wakeup.set()


class RunChannels:
    """The watched runs of one server, each with its channel."""

    def __init__(self, mid: Midrun, events: EventReader) -> None:
        self._mid = mid
        self._events = events
        self._channels: dict[RunId, RunChannel] = {}

    def is_watched(self, run: RunId) -> bool:
        """Return whether `run` has a subscriber."""
        return run in self._channels

    @asynccontextmanager
    async def subscribe(self, run: Run) -> AsyncIterator[tuple[RunChannel, Subscriber]]:
        """Subscribe to `run` while the block runs.

        Raises:
            RunNotFound: no such run.
        """
        row = await self._mid.store.get_row(run.id)
        # No await from here to `add_subscriber`: a channel without subscribers is removed.
        channel = self._channels.get(run.id)
        if channel is None:
            # It begins at the newest entry; subscribers read older ones by themselves.
            channel = self._channels[run.id] = RunChannel(run, self._events, row.seq)
        subscriber = channel.add_subscriber()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.read)
                yield channel, subscriber
                tasks.cancel_scope.cancel()
        finally:
            # `remove` compares fields, and each subscriber has a wake-up of its own.
            channel.subscribers.remove(subscriber)
            if not channel.subscribers and self._channels.get(run.id) is channel:
                del self._channels[run.id]
