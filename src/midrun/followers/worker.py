"""Trails: what keeps a follower told of every run that comes to rest, and remembers how far.

The journals are the queue. How far a follower has got is a mark in the store, moved when
something was told, so that after a restart it goes on where it was: everything is told at least
once, and of one run in order. A follower that cannot tell now is tried again later; what it has
not told waits in the journals and costs nothing but a few entries here. Nobody waits for it:
what is tried again has a lane of its own, so that runs which a far end never takes, however
many, and however slowly it refuses them, do not hold up those that it would.

Of several processes that follow the same store for the same follower, one does the telling.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec import Struct, field

from midrun.core.entries import Record
from midrun.core.ids import RunId, Seq
from midrun.core.retries import doubled
from midrun.core.values import RESTS
from midrun.driver.notifications import Bell
from midrun.errors import MidrunError, Misconfigured, RunNotFound, StoreError
from midrun.ports.environment import Outside
from midrun.ports.follower_cursors import Mark, Marking
from midrun.ports.store import Change, RunRow, Store
from midrun.runs.midrun import Midrun

PLACE: Final = timedelta(seconds=30)
"""How long another process waits for one that has the place and is silent."""

LOOK_S: Final = 10.0
"""How often all runs are looked at, for what nobody told us of; the place is kept so, too."""

GAP_S: Final = 0.25
"""Between two looks at what has changed: a busy run changes thousands of times a minute."""

LEAVE_S: Final = 2.0
"""How long what must still be said is waited for when this is left."""

AT_ONCE: Final = 8
AGAIN_AT_ONCE: Final = 2
"""How many runs are told of at a time: for the first time, and once more."""

MANY: Final = 256
"""How many runs may wait for their turn in a lane; the others stay in the store."""

REMEMBERED: Final = 4096
"""Of how many runs it is known how often they were tried, and when they are next: a megabyte.

Those beyond are tried whenever all runs are looked at."""

FIRST_S: Final = 1.0
LONGEST_S: Final = 3600.0
"""Between two attempts: doubling, from the one to the other."""

log = logging.getLogger("midrun.followers")


class Later(Exception):
    """What happened at `seq` cannot be told now.

    `seconds` is how long the far end wants to be left alone.
    """

    def __init__(self, why: str, seq: Seq, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.seq = seq
        self.seconds = seconds


class Followed(Struct, frozen=True, kw_only=True):
    """A run that rests, and what was not told of it: at least one entry, in order.

    `note` is what the follower kept the last time.
    """

    store: Store
    row: RunRow
    records: Sequence[Record]
    note: str

    @property
    def run(self) -> RunId:
        """The run's id."""
        return self.row.run


class Follower(Protocol):
    """Tells somebody what happened. `name` is what its marks are kept under."""

    @property
    def name(self) -> str:
        """A name that it has in every process."""
        ...

    @property
    def attempts(self) -> int:
        """How often something is tried before it is left out."""
        ...

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Give what it needs for as long as the context is open."""
        ...

    async def tell(self, followed: Followed) -> Mark:
        """Tell the first thing that there is to tell, and return how far that was.

        May be called again with the same, also at once and from another process: what it tells
        must say what it is.

        Raises:
            Later: it could not be told, and should be tried again.
        """
        ...


@asynccontextmanager
async def following(
    midrun: Midrun, *followers: Follower, outside: Outside | None = None
) -> AsyncIterator[None]:
    """Keep `followers` told of what happens in the store of `midrun` while this is open.

    A follower that comes for the first time is told of what happens from then on.

    Raises:
        Misconfigured: the store keeps no marks, or two followers have one name.
    """
    if not isinstance(midrun.store, Marking):
        raise Misconfigured("followers", "this store keeps no marks of how far they are")
    if len({follower.name for follower in followers}) < len(followers):
        raise Misconfigured("followers", "two of them have the same name; give them name=…")
    async with AsyncExitStack() as stack:
        for follower in followers:
            await stack.enter_async_context(follower.opened())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tasks.cancel_scope.cancel)
        for follower in followers:
            trail = Trail(midrun.store, follower, outside or Outside())
            await tasks.start(trail.follow)
        yield


class Trail:
    """One follower at work on one store."""

    def __init__(self, store: Store, follower: Follower, outside: Outside) -> None:
        assert isinstance(store, Marking)
        self._store = store
        self._marks = store.marks()
        self._follower = follower
        self._chance = outside.chance
        self._holder = f"f_{outside.ids()}"
        self._bell = Bell()
        self._changed: set[RunId] = set()
        self._later: dict[RunId, _Later] = {}
        self._first = _Lane(room=anyio.Semaphore(AT_ONCE))
        self._again = _Lane(room=anyio.Semaphore(AGAIN_AT_ONCE))
        self._next_look = 0.0
        self._attending = False

    async def follow(self, *, task_status: TaskStatus[None]) -> None:
        """Follow until cancelled; started once it is known from where on."""
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._hear)
                await self._attend()
                task_status.started()
                while True:
                    await self._look(tasks)
                    await self._bell.wait(self._pause())
                    await anyio.sleep(GAP_S)
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVE_S):
                await self._give_up_place()

    async def _hear(self, *, task_status: TaskStatus[None]) -> None:
        async with self._store.watch() as changes:
            task_status.started()
            async for change in changes:
                self._note(change)

    def _note(self, change: Change) -> None:
        if change.run and len(self._changed) < MANY:  # the rest is found by looking at all
            self._changed.add(change.run)
            self._bell.ring()

    async def _attend(self) -> None:
        """Have the place, or keep it; without it nothing is told here."""
        name = self._follower.name
        try:
            self._attending = await self._marks.attend(name, holder=self._holder, ttl=PLACE)
        except StoreError as error:
            self._attending = False
            log.warning("%s is not told for now: %s", name, error)

    async def _give_up_place(self) -> None:
        if self._attending:
            try:
                await self._marks.leave(self._follower.name, holder=self._holder)
            except StoreError:
                return  # then it ends by itself

    # ── looking ───────────────────────────────────────────────────────────────────────────

    async def _look(self, tasks: TaskGroup) -> None:
        """Take up whatever there is to tell, as far as there is room."""
        now = anyio.current_time()
        found = self._changed
        self._changed = set()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            await self._attend()
            found |= await self._behind()
        if not self._attending:
            return
        again = found & self._busy  # it may have grown since it was last read
        due = [run for run, later in self._later.items() if later.due <= now]
        due.sort(key=lambda run: self._later[run].due)
        left = self._take(tasks, self._first, [run for run in found if run not in self._later])
        self._take(tasks, self._again, due)
        self._changed |= again | set(left[:MANY])  # the rest is found by looking at all

    def _take(self, tasks: TaskGroup, lane: "_Lane", found: Sequence[RunId]) -> Sequence[RunId]:
        """Let runs into a lane for as long as it has room; return those that found none."""
        busy = self._busy
        free = [run for run in found if run not in busy]
        fits = max(0, MANY - len(lane.runs))
        for run in free[:fits]:
            lane.runs.add(run)
            tasks.start_soon(self._tell, run, lane)
        return free[fits:]

    @property
    def _busy(self) -> set[RunId]:
        return self._first.runs | self._again.runs

    async def _behind(self) -> set[RunId]:
        if not self._attending:
            return set()
        try:
            limit = MANY + len(self._later.keys() | self._busy)
            marks = await self._marks.behind(self._follower.name, limit=limit)
        except StoreError as error:
            log.warning("cannot look for what %s was not told: %s", self._follower.name, error)
            return set()
        if len(marks) == limit:
            self._next_look = 0.0  # there is more than one look can take
        return {mark.run for mark in marks}

    def _pause(self) -> float:
        """Return for how long nothing is to be done unless something changes."""
        if not self._attending:
            return max(0.0, self._next_look - anyio.current_time())
        busy, due = self._busy, self._next_look
        if len(self._again.runs) < MANY:
            waiting = (at.due for run, at in self._later.items() if run not in busy)
            due = min((due, *waiting))
        return max(0.0, due - anyio.current_time())

    # ── telling ───────────────────────────────────────────────────────────────────────────

    async def _tell(self, run: RunId, lane: "_Lane") -> None:
        """Tell everything of one run, in order; what cannot be told is tried again later."""
        try:
            if (await self._store.row(run)).head.phase in RESTS:
                async with lane.room:
                    while await self._tell_next(run):
                        pass
        except Later as later:
            self._put_off(run, str(later), later.seconds)
        except RunNotFound:
            self._later.pop(run, None)
        except MidrunError as error:  # a store that is busy, a journal that cannot be read
            self._put_off(run, str(error))
        except Exception as error:
            log.exception("%s was not told of run %s", self._follower.name, run)
            self._put_off(run, type(error).__name__)
        else:
            self._later.pop(run, None)
        finally:
            lane.runs.discard(run)
            self._bell.ring()

    async def _tell_next(self, run: RunId) -> bool:
        """Tell one thing, and mark it; False if there is no more."""
        row = await self._store.row(run)
        mark = await self._marks.marked(self._follower.name, run)
        if row.head.phase not in RESTS or mark.seq >= row.seq:
            return False
        limit = row.seq - mark.seq
        records = await self._store.read(run, after=mark.seq, limit=limit)
        followed = Followed(store=self._store, row=row, records=records, note=mark.note)
        told = await self._told(followed, mark)
        with anyio.CancelScope(shield=True), anyio.move_on_after(LEAVE_S):
            await self._marks.mark(self._follower.name, told)  # or it would be told again
        if (later := self._later.pop(run, None)) is not None:
            log.info("%s is told of run %s after %d attempts", *self._of(run), later.attempts)
        return True

    async def _told(self, followed: Followed, mark: Mark) -> Mark:
        """Return how far the follower has come; past what it was tried too often with."""
        try:
            return await self._follower.tell(followed)
        except Later as later:
            tried = self._later.get(followed.run)
            if tried is None or tried.attempts + 1 < self._follower.attempts:
                raise
            log.error("%s was never told of run %s: %s", *self._of(followed.run), later)  # noqa: TRY400 - the text says it all
            return Mark(run=followed.run, seq=later.seq, note=mark.note)

    def _of(self, run: RunId) -> tuple[str, RunId]:
        return self._follower.name, run

    def _put_off(self, run: RunId, why: str, seconds: float = 0.0) -> None:
        before = self._later.get(run)
        attempts = 1 + (0 if before is None else before.attempts)
        wait = doubled(attempts, first=FIRST_S, longest=LONGEST_S, chance=self._chance())
        due = anyio.current_time() + max(wait, min(seconds, LONGEST_S))
        if before is not None or len(self._later) < REMEMBERED:
            self._later[run] = _Later(attempts=attempts, due=due)
        level = logging.WARNING if attempts == 1 else logging.DEBUG
        log.log(level, "%s is told of run %s later: %s", *self._of(run), why)


class _Later(Struct, frozen=True, kw_only=True):
    """When something is tried again, and how often it was."""

    attempts: int
    due: float


class _Lane(Struct, frozen=True, kw_only=True):
    """The runs that are told of, or wait for their turn, and how many may at a time."""

    room: anyio.Semaphore
    runs: set[RunId] = field(default_factory=set)
