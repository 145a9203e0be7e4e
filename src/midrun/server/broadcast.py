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
from midrun.driver.delta import Delta, Saying
from midrun.driver.live import append
from midrun.driver.notifications import Bell
from midrun.errors import MidrunError
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run
from midrun.server.events import Events

# The minimum time between two writes to one stream, in a burst: a constant, or a share per
# subscriber if that is longer.
GAP_S: Final = 0.015
GAP_EACH_S: Final = 0.001

_LOG: Final = logging.getLogger("midrun.server")


@dataclass(frozen=True)
class Seat:
    """One stream of a run: its wake-up and the deltas that it has not written yet."""

    bell: Bell = field(default_factory=Bell)
    deltas: deque[Delta] = field(default_factory=deque)


class Channel:
    """A watched run. `last_seq` is the newest entry that its subscribers may read.

    `has_ended` is set when no more entries will come: the run has ended, or its journal cannot
    be read (`is_broken`).
    """

    def __init__(self, run: Run, events: Events, tip: int) -> None:
        self.tip = tip
        self.over = False
        self.broken = False
        self.seats: list[Seat] = []
        # The live text of each call in flight, for subscribers that come late.
        self._said: dict[CallId, Saying] = {}
        self._run = run
        self._events = events
        self._reading = anyio.Lock()

    @property
    def gap(self) -> float:
        """Seconds between two writes to one subscriber, in a burst.

        It grows with the number of subscribers, so the writes per second of one run are
        bounded: at most one per `WRITE_GAP_PER_SUBSCRIBER_S`, over all subscribers.
        """
        return max(GAP_S, len(self.seats) * GAP_EACH_S)

    def seat(self) -> Seat:
        """Add a subscriber, with the live text so far of the calls in flight."""
        seat = Seat(deltas=deque(self._openings()))
        seat.bell.ring()  # the first look must not wait for the next change
        self.seats.append(seat)
        return seat

    async def keep(self) -> None:
        """Read the feed for all subscribers, once no other task does, until the run ends."""
        async with self._reading:
            if self.over:
                return
            try:
                await self._read()
            except MidrunError as error:
                _LOG.error("Cannot watch run %s: %s", self._run.id, error)
                self.broken = True
            self.over = True
            self._ring()

    async def _read(self) -> None:
        async with aclosing(self._run.feed(self.tip)) as feed:
            async for item in feed:
                if item.seq is None:
                    self._said.setdefault(item.call, Saying()).add(item)
                    for seat in self.seats:
                        append(seat.deltas, item, self._openings())
                    self._ring()
                while item.seq is not None and self.tip < item.seq:
                    # Read a page before the subscribers are woken: each then finds it in the
                    # cache of the EventReader, and the store is read once for all of them.
                    page = await self._events.after(self._run.id, self.tip)
                    self.tip = page[-1].seq
                    # Live text lasts until the call ends (then the entry has the text) or
                    # starts again (then the text is of the attempt before).
                    for event in page:
                        self._said.pop(event.closes or event.starts or CallId(""), None)
                    self._ring()

    def _openings(self) -> Iterator[Delta]:
        for saying in self._said.values():
            yield from saying.openings()

    def _ring(self) -> None:
        for seat in self.seats:
            seat.bell.ring()


class Channels:
    """The watched runs of one server, each with its channel."""

    def __init__(self, mid: Midrun, events: Events) -> None:
        self._mid = mid
        self._events = events
        self._open: dict[RunId, Channel] = {}

    def watched(self, run: RunId) -> bool:
        """Return whether `run` has a subscriber."""
        return run in self._open

    @asynccontextmanager
    async def joined(self, run: Run) -> AsyncIterator[tuple[Channel, Seat]]:
        """Subscribe to `run` while the block runs.

        Raises:
            RunNotFound: no such run.
        """
        row = await self._mid.store.row(run.id)
        # No await from here to `add_subscriber`: a channel without subscribers is removed.
        channel = self._open.get(run.id)
        if channel is None:
            # It begins at the newest entry; subscribers read older ones by themselves.
            channel = self._open[run.id] = Channel(run, self._events, row.seq)
        seat = channel.seat()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.keep)
                yield channel, seat
                tasks.cancel_scope.cancel()
        finally:
            # `remove` compares fields, and each subscriber has a wake-up of its own.
            channel.seats.remove(seat)
            if not channel.seats and self._open.get(run.id) is channel:
                del self._open[run.id]
