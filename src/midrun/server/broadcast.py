"""Channels: one reader for each run that is watched, however many watch it.

The reader is the task of whoever watches: the first one's, and when they leave, the next one's.
So it ends with the last watcher, and nothing runs outside of a request.
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

GAP_S: Final = 0.015
GAP_EACH_S: Final = 0.001
"""Between two writes of one stream, in a burst: at least, and for each that watches."""

_LOG: Final = logging.getLogger("midrun.server")


@dataclass(frozen=True)
class Seat:
    """One watcher's place: rung for whatever is new, with the deltas it has not written."""

    bell: Bell = field(default_factory=Bell)
    deltas: deque[Delta] = field(default_factory=deque)


class Channel:
    """A run that is watched. `tip` is the newest entry that its watchers can have.

    `over` says that no more will come: the run has ended, or `broken`, its journal cannot be
    read any more.
    """

    def __init__(self, run: Run, events: Events, tip: int) -> None:
        self.tip = tip
        self.over = False
        self.broken = False
        self.seats: list[Seat] = []
        self._said: dict[CallId, Saying] = {}  # by calls that are in flight
        self._run = run
        self._events = events
        self._reading = anyio.Lock()

    @property
    def gap(self) -> float:
        """Seconds between two writes of one watcher, in a burst.

        The more there are, the longer: what a run costs for being watched is bounded.
        """
        return max(GAP_S, len(self.seats) * GAP_EACH_S)

    def seat(self) -> Seat:
        """Return a new place, with what the calls in flight have said so far."""
        seat = Seat(deltas=deque(self._openings()))
        seat.bell.ring()
        self.seats.append(seat)
        return seat

    async def keep(self) -> None:
        """Read for everybody, as soon as nobody else does; until the run has ended."""
        async with self._reading:
            if self.over:
                return
            try:
                await self._read()
            except MidrunError as error:
                _LOG.error("run %s cannot be watched: %s", self._run.id, error)
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
                    # A page at a time, and before anybody is told: they all find it read.
                    page = await self._events.after(self._run.id, self.tip)
                    self.tip = page[-1].seq
                    for event in page:  # what has ended is an entry, and so is a new attempt
                        self._said.pop(event.closes or event.starts or CallId(""), None)
                    self._ring()

    def _openings(self) -> Iterator[Delta]:
        for saying in self._said.values():
            yield from saying.openings()

    def _ring(self) -> None:
        for seat in self.seats:
            seat.bell.ring()


class Channels:
    """The runs of one server that are watched now."""

    def __init__(self, mid: Midrun, events: Events) -> None:
        self._mid = mid
        self._events = events
        self._open: dict[RunId, Channel] = {}

    def watched(self, run: RunId) -> bool:
        """Tell whether somebody watches `run`."""
        return run in self._open

    @asynccontextmanager
    async def joined(self, run: Run) -> AsyncIterator[tuple[Channel, Seat]]:
        """Give a seat at the channel of `run` for as long as the context is open.

        Raises:
            RunNotFound: no such run.
        """
        row = await self._mid.store.row(run.id)
        channel = self._open.get(run.id)
        if channel is None:
            channel = self._open[run.id] = Channel(run, self._events, row.seq)
        seat = channel.seat()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(channel.keep)
                yield channel, seat
                tasks.cancel_scope.cancel()
        finally:
            channel.seats.remove(seat)
            if not channel.seats and self._open.get(run.id) is channel:
                del self._open[run.id]
