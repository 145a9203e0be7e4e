"""The writer: one connection through which everything this process writes goes, in groups.

**Groups.** A commit costs an fsync whether it holds one append or two hundred. The first writer
of a loop's turn leads: it lets every task that is ready hand in its request, then carries all of
them out in one transaction and answers each after the commit.

**Inline or by thread.** A hop to a thread and back costs about as much as a commit on a good
disk, and under a busy loop the thread waits milliseconds for the interpreter lock. So a group is
committed right here, in the event loop's thread, as long as that is quick: it blocks the loop no
longer than any other callback would. A commit that took longer than `QUICK_S` (a slow disk, a
checkpoint elsewhere) sends the next ones to the thread, for twice as long every time it happens
again. Waiting for a lock of another process is always left to the thread.

**Cancellation.** A request that was handed in is carried out, whatever becomes of its waiter.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Final, Generic, TypeVar

import anyio
import anyio.to_thread
import apsw
from anyio.lowlevel import RunVar, cancel_shielded_checkpoint, checkpoint_if_cancelled

from midrun.core.ids import RunId, Seq
from midrun.errors import StoreBusy, StoreClosed
from midrun.stores.hop import Signal, set_all
from midrun.stores.sqlite.connect import meaning_of

T = TypeVar("T")

GROUP_MAX: Final = 256
QUICK_S: Final = 0.002
DETOUR: Final = 64
DETOUR_MAX: Final = 4096

PAGES: Final = 1000
"""A checkpoint is due when the write-ahead log has this many pages: SQLite's own default."""

FRAME: Final = 4096 + 24
WARM: Final = 16
"""After so many commits a process is not a passing command: the log is grown to full size."""


class Request(Generic[T]):
    """One write on its way: what to do, and what came of it."""

    def __init__(
        self,
        work: Callable[[apsw.Connection], T],
        told: Callable[[T], tuple[RunId, Seq]] | None,
    ) -> None:
        self.work = work
        self.told = told
        self.signal = Signal()
        self.done = False
        self._value: T
        self._failure: Exception | None = None

    def attempt(self, db: apsw.Connection) -> None:
        """Carry it out inside a transaction; a refusal is an outcome, SQLite's errors are not."""
        self._failure = None
        try:
            self._value = self.work(db)
        except apsw.Error:
            raise
        except Exception as refusal:  # noqa: BLE001 - it is raised where the request came from
            self._failure = refusal

    def fail(self, failure: Exception) -> None:
        """Have it end with `failure`."""
        self._failure = failure

    def changes(self) -> list[tuple[RunId, Seq]]:
        """Return what watchers should hear once it is committed."""
        return [self.told(self._value)] if self.told and self._failure is None else []

    def result(self) -> T:
        """Return what came of it, or raise why nothing did."""
        if self._failure is not None:
            raise self._failure
        return self._value


class _Gate:
    """The requests of one event loop's turn."""

    def __init__(self) -> None:
        self.led = False
        self.waiting: list[Request[object]] = []
