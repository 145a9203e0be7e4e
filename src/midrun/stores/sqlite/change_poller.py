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

from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.stores.sqlite import queries
from midrun.stores.sqlite.connection import FILE_ERRORS, open_reader
from midrun.stores.watchers import HALTS_CHANGED

POLL_INTERVAL_S: Final = 0.005
"""Seconds between two reads of the counter: the usual delay of a foreign change."""


class ChangePoller:
    """Report commits of other connections while at least one watch is open."""

    def __init__(
        self,
        path: Path,
        *,
        busy_ms: int,
        notify: Callable[[Sequence[tuple[RunId, Seq]]], None],
    ) -> None:
        self._path = path
        self._busy_ms = busy_ms
        self._notify = notify
        self._lock = Lock()
        self._listeners = 0
        self._stop = Event()

    def add_listener(self) -> None:
        """Add a listener. Every commit after this call returns is reported."""
        with self._lock:
            self._listeners += 1
            if self._listeners > 1:
                return
            # A fresh event for each thread: the last one may still be on its way out.
            self._stop = Event()
            # The starting position is read here, in the caller's thread. If the new thread read
            # it, a commit between this call and the thread's first statement would be lost.
            position = _PollPosition(open_reader(self._path, busy_ms=self._busy_ms))
            arguments = (position, self._stop)
            Thread(
                target=self._poll_until_stopped,
                args=arguments,
                name="midrun-notice",
                daemon=True,
            ).start()

    def remove_listener(self) -> None:
        """Remove a listener; the thread ends with the last one."""
        with self._lock:
            self._listeners -= 1
            if not self._listeners:
                # The thread is not joined: it may wait for a lock of the file, and the caller
                # is an event loop.
                self._stop.set()

    def _poll_until_stopped(self, position: "_PollPosition", stop: Event) -> None:
        try:
            while not stop.wait(POLL_INTERVAL_S):
                try:
                    changes = position.read_changes()
                except FILE_ERRORS:
                    # The next read or write of the store meets the same error and raises it
                    # to a caller. Here there is no caller: try again.
                    continue
                if changes:
                    self._notify(changes)
        finally:
            position.close()


class _PollPosition:
    """The position up to which one connection has read the commits of others."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._version = db.execute(queries.DATA_VERSION).get
        self._last_entry_id = db.execute(queries.LAST_ENTRY_ID).get
        self._last_tombstone_id = db.execute(queries.LAST_TOMBSTONE_ID).get
        self._halt_counter = db.execute(queries.HALT_COUNTER).get

    def read_changes(self) -> list[tuple[RunId, Seq]]:
        """Return the runs that have grown since the last call, and a halt marker."""
        # The version is read before the entries. A commit that lands between the two reads is
        # reported now; the next poll sees a moved version and finds no new ids.
        version = self._db.execute(queries.DATA_VERSION).get
        if version == self._version:
            return []
        changes: list[tuple[RunId, Seq]] = []
        last_id = self._last_entry_id
        for run, seq, entry_id in self._db.execute(
            queries.CHANGED_RUNS, (self._last_entry_id,)
        ):
            changes.append((run, seq))
            last_id = max(last_id, entry_id)
        last_tombstone_id = self._last_tombstone_id
        for run, seq, tombstone_id in self._db.execute(
            queries.DELETED_RUNS, (self._last_tombstone_id,)
        ):
            changes.append((run, seq))
            last_tombstone_id = max(last_tombstone_id, tombstone_id)
        # Halts belong to no run, so no entry has them. A counter in the file grows with each
        # change.
        halt_counter = self._db.execute(queries.HALT_COUNTER).get
        if halt_counter != self._halt_counter:
            self._halt_counter = halt_counter
            changes.append((HALTS_CHANGED, SEQ_ZERO))
        # Stored only after every query has succeeded: a poll that failed is repeated in full.
        self._version, self._last_entry_id = version, last_id
        self._last_tombstone_id = last_tombstone_id
        return changes

    def close(self) -> None:
        self._db.close()
