"""Detect commits of other processes, and wake the watchers of this one.

SQLite has no notifications between processes. It has a counter, `PRAGMA data_version`, that
changes for one connection when another connection has committed. Reading it costs a few
microseconds. While a watch is open, a daemon thread reads it every `POLL_INTERVAL_S`. Only when
it has moved does the thread query which runs have grown.

`entries.id` is the order of commits over all runs, because SQLite has one writer at a time. So
the poller keeps one number, the highest id it has seen, and "every entry with a higher id" is
exactly the set of new entries.

A thread is used because a task would be deaf while the event loop is blocked. The poller's
connection also sees commits of this process's own writer; `Watchers` drops a change that it has
already reported.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

import apsw

from midrun.core.ids import START, RunId, Seq
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import DAMAGE, open_reader
from midrun.stores.watchers import LATCHES

PERIOD_S: Final = 0.005
"""Seconds between two reads of the counter: the usual delay of a foreign change."""


class Notice:
    """Report commits of other connections while at least one watch is open."""

    def __init__(
        self,
        path: Path,
        *,
        busy_ms: int,
        tell: Callable[[Sequence[tuple[RunId, Seq]]], None],
    ) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._tell = tell
        self._lock = Lock()
        self._listeners = 0
        self._stop = Event()

    def listen(self) -> None:
        """Add a listener. Every commit after this call returns is reported."""
        with self._lock:
            self._listeners += 1
            if self._listeners > 1:
                return
            # A fresh event for each thread: the last one may still be on its way out.
            self._stop = Event()
            # The starting position is read here, in the caller's thread. If the new thread read
            # it, a commit between this call and the thread's first statement would be lost.
            position = _Place(open_reader(self._path, busy_ms=self._busy_ms))
            arguments = (position, self._stop)
            Thread(
                target=self._serve, args=arguments, name="midrun-notice", daemon=True
            ).start()

    def leave(self) -> None:
        """Remove a listener; the thread ends with the last one."""
        with self._lock:
            self._listeners -= 1
            if not self._listeners:
                self._stop.set()

    def _serve(self, place: "_Place", stop: Event) -> None:
        try:
            while not stop.wait(PERIOD_S):
                try:
                    changes = place.news()
                except DAMAGE:
                    # The next read or write of the store meets the same error and raises it
                    # to a caller. Here there is no caller: try again.
                    continue
                if changes:
                    self._tell(changes)
        finally:
            place.close()


class _Place:
    """The position up to which one connection has read the commits of others."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._version = db.execute(queries.DATA_VERSION).get
        self._newest = db.execute(queries.NEWEST).get
        self._turns = db.execute(queries.TURNS).get

    def news(self) -> list[tuple[RunId, Seq]]:
        """Return the runs that have grown since the last call, and a halt marker."""
        # The version is read before the entries. A commit that lands between the two reads is
        # reported now; the next poll sees a moved version and finds no new ids.
        version = self._db.execute(queries.DATA_VERSION).get
        if version == self._version:
            return []
        changes: list[tuple[RunId, Seq]] = []
        last_id = self._newest
        for run, seq, entry_id in self._db.execute(queries.NEWS, (self._newest,)):
            changes.append((run, seq))
            last_id = max(last_id, entry_id)
        halt_counter = self._db.execute(queries.TURNS).get
        if halt_counter != self._turns:
            self._turns = halt_counter
            changes.append((LATCHES, START))
        # Stored only after every query has succeeded: a poll that failed is repeated in full.
        self._version, self._newest = version, last_id
        return changes

    def close(self) -> None:
        self._db.close()
