"""Noticing: how a process learns what another has written to the same file.

SQLite has no notifications. It has a counter, `PRAGMA data_version`, that moves for one
connection when another has committed, and asking for it costs a few microseconds. A thread asks
while somebody watches; a loop that is blocked does not make it deaf.
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


class Notice:
    """Tells what other connections have committed, for as long as anybody listens."""

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
        """Begin to tell; everything committed after this returns will be told."""
        with self._lock:
            self._listeners += 1
            if self._listeners > 1:
                return
            self._stop = Event()
            place = _Place(open_reader(self._path, busy_ms=self._busy_ms))
            arguments = (place, self._stop)
            Thread(
                target=self._serve, args=arguments, name="midrun-notice", daemon=True
            ).start()

    def leave(self) -> None:
        """Listen no longer; the thread ends with the last listener."""
        with self._lock:
            self._listeners -= 1
            if not self._listeners:
                self._stop.set()

    def _serve(self, place: "_Place", stop: Event) -> None:
        try:
            while not stop.wait(PERIOD_S):
                try:
                    news = place.news()
                except DAMAGE:
                    continue  # a reader has no say: whoever writes or reads will report it
                if news:
                    self._tell(news)
        finally:
            place.close()


class _Place:
    """How far one connection has looked."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._version = db.execute(queries.DATA_VERSION).get
        self._newest = db.execute(queries.NEWEST).get
        self._turns = db.execute(queries.TURNS).get

    def news(self) -> list[tuple[RunId, Seq]]:
        """Return which runs have grown since the last look, and whether the latches moved."""
        version = self._db.execute(queries.DATA_VERSION).get
        if version == self._version:
            return []
        news: list[tuple[RunId, Seq]] = []
        seen = self._newest
        for run, seq, newest in self._db.execute(queries.NEWS, (self._newest,)):
            news.append((run, seq))
            seen = max(seen, newest)
        turns = self._db.execute(queries.TURNS).get
        if turns != self._turns:
            self._turns = turns
            news.append((LATCHES, START))
        self._version, self._newest = version, seen  # only now: a look that failed is repeated
        return news

    def close(self) -> None:
        """Close the connection."""
        self._db.close()
