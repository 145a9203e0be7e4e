"""Watchers: who wants to know that runs have grown, and what they have not heard yet."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from anyio.lowlevel import checkpoint

from midrun.core.ids import START, RunId, Seq
from midrun.ports.store import Change
from midrun.stores.cross_thread import new_waiter, running_loop, wake

REMEMBERED: Final = 4096
"""How many runs' newest seqs are remembered so as not to tell the same thing twice."""

IN_A_ROW: Final = 64
"""How many changes a watcher is handed before others have their turn of the event loop."""

LATER_S: Final = 0.002
"""How long what this process wrote itself is gathered: whoever it matters to knows already."""

LATCHES: Final = RunId("")
"""Stands in a change for the latches, which belong to no run."""


class Watchers:
    """Hands changes to every open watch; may be told from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._open: list[Watch] = []
        self._told: OrderedDict[RunId, Seq] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def tell(
        self,
        changes: Iterable[tuple[RunId, Seq]],
        *,
        held: Collection[RunId] = (),
        later: bool = False,
    ) -> None:
        """Tell every watch, without waiting for any; what was told already is left out.

        Somebody has the lease of the runs that are `held`. What can be told `later` waits a
        moment for more of the same.
        """
        if not self._open:
            return
        with self._lock:
            news = {run: seq for run, seq in changes if self._is_news(run, seq)}
            watches = tuple(self._open)
        if news:
            for watch in watches:
                watch.tell(news, held, later=later and LATCHES not in news)

    def end(self) -> None:
        """End every watch; the store is closing."""
        with self._lock:
            watches = tuple(self._open)
        for watch in watches:
            watch.end()

    @contextmanager
    def joined(self) -> Iterator["Watch"]:
        """Give a watch that hears of everything from now on."""
        watch = Watch()
        with self._lock:
            self._open.append(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._open.remove(watch)

    def _is_news(self, run: RunId, seq: Seq) -> bool:
        if run == LATCHES:
            return True
        if self._told.get(run, START) >= seq:
            return False
        self._told[run] = seq
        self._told.move_to_end(run)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return True


class Watch(AsyncIterator[Change]):
    """What one watcher has not heard yet: one number for each run, however slow it is."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._news: dict[RunId, Seq] = {}
        self._held: set[RunId] = set()  # of those in the news
        self._waiter = new_waiter()
        self._in_a_row = 0
        self._due = False  # to be woken in a moment
        self._ended = False

    def tell(
        self, news: dict[RunId, Seq], held: Collection[RunId] = (), *, later: bool = False
    ) -> None:
        """Add `news`; the newest seq of a run stands for the older ones."""
        with self._lock:
            for run, seq in news.items():
                if seq >= self._news.get(run, START):
                    self._news[run] = seq
                    (self._held.add if run in held else self._held.discard)(run)
        loop = self._waiter.get_loop()
        if not later or running_loop() is not loop:
            wake([self._waiter])
        elif not (self._due or self._waiter.done()):
            self._due = True
            loop.call_later(LATER_S, self._come_due)

    def _come_due(self) -> None:
        self._due = False
        wake([self._waiter])

    def end(self) -> None:
        """Let the iteration end once everything was heard."""
        with self._lock:
            self._ended = True
        wake([self._waiter])

    async def __anext__(self) -> Change:
        self._in_a_row += 1
        if self._in_a_row > IN_A_ROW:
            self._in_a_row = 1
            await checkpoint()
        while True:
            with self._lock:
                for run in self._news:
                    held = run in self._held
                    self._held.discard(run)
                    return Change(run=run, seq=self._news.pop(run), held=held)
                if self._ended:
                    raise StopAsyncIteration
                self._waiter = waiter = new_waiter()
            self._in_a_row = 1
            await waiter
