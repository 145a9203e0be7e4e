"""News: one watch on the store for the whole process, handed on to whoever waits for a run."""

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import TaskStatus

from midrun.core.ids import RunId
from midrun.errors import Misconfigured
from midrun.ports.store import Change, Store

# A bell: rung by whoever has news, waited for by the one who takes them.


class Bell:
    """Remembers that it was rung until somebody has waited for it.

    Every step of every run waits for one: a bare future costs a third of an event.
    """

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: Future[None] | None = None

    def ring(self) -> None:
        """Wake the one who waits, or whoever waits next."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Return when it was rung since the last time, or when so much time has passed."""
        if not self._rung:
            self._waiter = get_running_loop().create_future()
            try:
                if seconds is None:
                    await self._waiter
                else:
                    with anyio.move_on_after(max(seconds, 0.0)):
                        await self._waiter
            finally:
                self._waiter = None
        self._rung = False


class News:
    """Rings the bells of those who wait for a run that has grown."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bells: dict[RunId, list[tuple[Bell, Callable[[], bool]]]] = {}
        self._hears: list[Callable[[Change], None]] = []
        self._loop: AbstractEventLoop | None = None
        self.over = False

    def everything(self, hear: Callable[[Change], None]) -> None:
        """Have `hear` called for every change."""
        self._hears.append(hear)

    @contextmanager
    def of(self, run: RunId, worth: Callable[[], bool] = lambda: True) -> Iterator[Bell]:
        """Give a bell that rings whenever `run` has grown and `worth` says that it matters."""
        self.check_loop()  # in another it would never ring
        waiting = (Bell(), worth)
        self._bells.setdefault(run, []).append(waiting)
        try:
            yield waiting[0]
        finally:
            left = self._bells[run]
            left.remove(waiting)
            if not left:
                del self._bells[run]

    def check_loop(self) -> None:
        """See that this is asked in the event loop in which the store is watched.

        Raises:
            Misconfigured: it is not, and what would be started here would end with this loop.
        """
        if self._loop is not None and self._loop is not get_running_loop():
            problem = "it is open in another event loop; go there with anyio.from_thread.run"
            raise Misconfigured("Midrun", f"{problem}, or open a second one on the same store")

    def tell(self, run: RunId) -> None:
        """Have whoever waits for `run` look again."""
        for bell, worth in self._bells.get(run, ()):
            if self.over or worth():
                bell.ring()

    async def watch(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Watch the store until cancelled, or until it is closed."""
        self._loop = get_running_loop()
        try:
            async with self._store.watch() as changes:
                task_status.started()
                async for change in changes:
                    for hear in self._hears:
                        hear(change)
                    self.tell(change.run)
        finally:
            self.over = True  # whoever waits must not wait for ever
            for run in tuple(self._bells):
                self.tell(run)
