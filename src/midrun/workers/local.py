"""The local engine: drives the runs of one store in this process, as many as there are.

It takes up what can be driven: runs that are started or resumed here, runs that another process
has left, and, every now and then, whatever it finds. Fencing in the store makes it harmless
that several processes do the same.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import zip_longest
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus

from midrun.agents.agent import Agent
from midrun.core.controls import Lift
from midrun.core.driver_inputs import Wake
from midrun.core.ids import START, RunId, Seq
from midrun.core.run_head import Head, head_of
from midrun.core.state import State
from midrun.core.values import DRIVABLE, Actor, Phase
from midrun.driver.child_runs import tell_parent
from midrun.driver.context import Means
from midrun.driver.heartbeat import Holder
from midrun.driver.journal_writer import bring, load
from midrun.driver.live import Live
from midrun.driver.notifications import Bell, News
from midrun.driver.redaction import Vault
from midrun.driver.run_loop import Drive
from midrun.driver.subprocess.zygote_client import Zygote
from midrun.driver.user_tasks import UserTasks
from midrun.errors import (
    JournalCorrupt,
    JournalTooNew,
    MidrunError,
    NoRoom,
    RunNotFound,
    StoreError,
    StoreForeign,
)
from midrun.ports.environment import Outside
from midrun.ports.model import Model
from midrun.ports.store import Change, Query, Store
from midrun.workers.concurrency_limits import Fleet, Room

# What happens every second for as long as it lasts, and need not be said as often.

EVERY_S: Final = 60.0
"""How often it is said again that a newer midrun has made the store its own."""


class Seldom:
    """Knows when it was last said that nothing more can be written here."""

    def __init__(self) -> None:
        self._due = 0.0

    def level(self, error: MidrunError) -> int:
        """Return at which level `error` is logged: a warning, unless that was said just now.

        All runs of a process meet a newer schema, again and again, and nothing but an upgrade
        of the process ends it.
        """
        if not isinstance(error, StoreForeign):
            return logging.WARNING
        now = anyio.current_time()
        if now < self._due:
            return logging.DEBUG
        self._due = now + EVERY_S
        return logging.WARNING


FAR_SEQ: Final = Seq(2**53)
"""Beyond every journal: of one that cannot be read, whatever is added to it."""

ENGINE: Final = Actor(name="system:engine", role="system")

log = logging.getLogger("midrun")

SWEEP_S: Final = 1.0
"""How often it looks for runs that nobody told it of: the net under lost notifications."""

MANY: Final = 256
"""How many runs one look takes up."""

LEAVE_S: Final = 15.0
"""How long a shutdown waits for runs to be let go, beyond the grace of their calls."""


class Local:
    """Drives runs in this process while `running` is open."""

    def __init__(  # noqa: PLR0913 - what a process has, one by one
        self,
        store: Store,
        news: News,
        agents: Mapping[str, Agent],
        *,
        live: Live,
        vault: Vault,
        model_of: Callable[[Agent], Model],
        outside: Outside,
        place: Callable[[RunId], None] | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        self._place = place
        self._room = Room(fleet or Fleet())
        self._deltas = live
        self._vault = vault
        self._store = store
        self._news = news
        self._agents = agents
        self._model_of = model_of
        self._outside = outside
        name = f"p_{outside.ids()}"
        self._holder = Holder(store, name, ttl=outside.lease, on_fence=self._fence)
        self._drives: dict[RunId, Drive] = {}
        self._taken: set[RunId] = set()
        self._left: set[RunId] = set()  # whose lease may still be ours: to be looked at again
        self._broken: dict[RunId, Seq] = {}  # runs whose journal cannot be driven, at which seq
        self._empty = anyio.Event()
        self._look = Bell()  # rung when there is room again
        self._seldom = Seldom()
        self._leave = anyio.Event()
        self._leaving = False
        self._tasks: TaskGroup
        self._means: Means

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Drive whatever can be driven; on the way out, stand down from everything.

        However the context is left: a cancellation of what is around it does not reach the runs
        before they have been told.
        """
        async with anyio.create_task_group() as outer:
            await outer.start(self._live, outer.cancel_scope)
            try:
                yield
            finally:
                self._leave.set()

    async def _live(self, around: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        with anyio.CancelScope(shield=True):
            async with (
                Zygote() as zygote,
                self._holder.beating(),
                anyio.create_task_group() as tasks,
            ):
                self._tasks = tasks
                self._holder.on_renewed = zygote.set_deadline
                user_tasks = UserTasks()
                self._means = Means(
                    store=self._store,
                    holder=self._holder,
                    agents=self._agents,
                    model_of=self._model_of,
                    zygote=zygote,
                    user_tasks=user_tasks,
                    threads=anyio.CapacityLimiter(math.inf),
                    live=self._deltas,
                    news=self._news,
                    vault=self._vault,
                    hear=self.hear,
                    limits_on=self._room.limits_on,
                    clock=self._outside.clock,
                    chance=self._outside.chance,
                    tasks=tasks,
                )
                self._news.everything(self._hear)
                tasks.start_soon(self._sweep)
                task_status.started()
                try:
                    await self._leave.wait()
                    await self._shut_down()
                finally:
                    tasks.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await user_tasks.leave()
        if not self._leave.is_set():
            around.cancel()  # others have cancelled a task of ours: nobody may wait on in there

    def take_up(self, run: RunId, state: State | None = None) -> None:
        """Drive `run` unless it is driven here already; `state` saves reading it."""
        if not (self._leaving or run in self._taken or run in self._broken):
            self._taken.add(run)
            self._tasks.start_soon(self._drive, run, state)

    def _offer(
        self, run: RunId, head: Head, state: State | None = None, *, own: bool = False
    ) -> None:
        """See to it that `run` is driven: here, or wherever who places runs says.

        Where there is no room for it, it waits: for room, or for another process. But what is
        our `own` has its place, and nobody else can take it while we are alive.
        """
        if self._leaving or run in self._taken or run in self._room.strange:
            return
        if self._place is not None:
            self._place(run)
            return
        if own or self._room.has(run, head):
            self._room.enter(run, head, own=own)
            self.take_up(run, state)

    async def driven(self, run: RunId) -> None:
        """Drive `run` here if that can be done, and return when it is not driven here."""
        with self._news.of(run) as bell:
            self.take_up(run)
            while run in self._taken:
                await bell.wait()

    def known(self, run: RunId) -> State | None:
        """Return what a drive here has read of `run`, if there is one."""
        drive = self._drives.get(run)
        return None if drive is None else drive.state

    def hear(self, run: RunId, state: State) -> None:
        """Hear of what was just appended here, before the store's own word comes round."""
        drive = self._drives.get(run)
        if drive is not None:
            drive.grew(state.seq)
        elif state.phase in DRIVABLE and state.started.agent in self._agents:
            self._offer(run, head_of(state), state)

    # ── driving ───────────────────────────────────────────────────────────────────────────

    async def _drive(self, run: RunId, state: State | None) -> None:
        try:
            await self._drive_once(run, state)
            if not self._leaving and self._may_go_on(run):
                self._tasks.start_soon(self._consider, run)
        except (JournalCorrupt, JournalTooNew) as error:
            self._broken[run] = FAR_SEQ
            log.error("run %s is not driven: %s", run, error)  # noqa: TRY400 - the text says it all
        except NoRoom as refused:
            if self._room.fill(refused):
                self._look.ring()
        except StoreError as error:
            self._left.add(run)
            log.log(self._seldom.level(error), "run %s is left for now: %s", run, error)
        except Exception:
            # A fault of ours in one run must not end the others of this process.
            # It is tried again once somebody has added to its journal: cancelled it, say.
            self._broken[run] = state.seq if (state := self.known(run)) else START
            log.exception("run %s is not driven here for now", run)
        finally:
            self._drives.pop(run, None)
            self._taken.discard(run)
            if self._room.leave(run):
                self._look.ring()
            self._news.tell(run)  # nobody here knows it any more: look at the store
            if self._leaving and not self._taken:
                self._empty.set()

    def _may_go_on(self, run: RunId) -> bool:
        """Tell whether a run that is being let go may need a driver, or its parent a word."""
        if (drive := self._drives.get(run)) is None:
            return True
        state = drive.state  # it may have been woken while it was let go
        return drive.behind or state.phase in DRIVABLE or state.started.parent is not None

    async def _drive_once(self, run: RunId, state: State | None) -> None:
        if state is None:
            state = await load(self._store, run)
        agent = self._agents.get(state.started.agent)
        if agent is None or self._room.is_strange(state, agent):
            return
        if not await tell_parent(self._means, state):
            return
        drive = self._drives[run] = Drive(self._means, agent, state)
        if self._leaving:
            return
        await drive.run()

    def _hear(self, change: Change) -> None:
        """Tell a drive what others appended; see to what has become drivable."""
        if self._broken.get(change.run, FAR_SEQ) < change.seq:
            del self._broken[change.run]
        self._room.hears(change.run, change.seq)
        if (drive := self._drives.get(change.run)) is not None:
            drive.grew(change.seq)
        elif self._leaving:
            return
        elif not change.run:
            self._tasks.start_soon(self._latched)
        elif not (change.held or change.run in self._taken):
            self._tasks.start_soon(self._consider, change.run)

    async def _consider(self, run: RunId, *, left: bool = False) -> None:
        """Take a run up if it can be driven, here and now; `left`: whoever has it is gone."""
        if run in self._taken or run in self._room.strange:
            return  # whoever started or woke it here was quicker than the store's word
        try:
            row = await self._store.row(run)
        except RunNotFound:
            return
        except StoreError:
            self._left.add(run)
            return
        head = row.head
        if head.phase not in DRIVABLE and self._room.rested(head):
            self._look.ring()
        if head.parent and head.phase not in DRIVABLE:
            await self._tell_parent(run)
        own = row.holder == self._holder.name  # from an epoch that was dropped
        free = left or own or not row.holder
        if head.phase in DRIVABLE and free and head.agent in self._agents:
            self._offer(run, head, own=own)

    async def _tell_parent(self, run: RunId) -> None:
        try:
            await tell_parent(self._means, await load(self._store, run))
        except MidrunError as error:
            log.warning("the parent of run %s hears of it later: %s", run, error)

    async def _latched(self) -> None:
        """Have every drive that a latch covers meet it."""
        try:
            halts = await self._store.halts()
        except StoreError as error:
            log.warning("cannot read the latches, which hold all the same: %s", error)
            return
        for run, drive in tuple(self._drives.items()):
            spec = drive.state.started
            for halt in halts:
                if halt.covers(run, spec.agent, spec.labels):
                    drive.meet(halt.scope, halt.by, halt.reason)
                    break

    async def _sweep(self) -> None:
        """Look for what nobody told us of: runs that are left, and runs whose time has come."""
        looked = -math.inf
        while True:
            if everywhere := anyio.current_time() - looked >= SWEEP_S:
                looked = anyio.current_time()
            self._room.looks(everywhere=everywhere)
            try:
                for run in await self._store.due(limit=MANY):
                    await self._looked_at(run, self._wake)
                await self._lift_forgotten()
                for run in tuple(self._left):  # each once: what cannot be read comes back
                    self._left.discard(run)
                    await self._consider(run)
                await self._find_work()
            except MidrunError as error:
                log.log(self._seldom.level(error), "cannot look for runs: %s", error)
            await self._look.wait(SWEEP_S)

    async def _find_work(self) -> None:
        """Take up what is left, as far as there is room; every agent has its turn.

        The oldest come first, but where one agent has more waiting than a look can hold, the
        others are asked for on their own.
        """
        names = list(self._agents)
        limit = MANY + len(self._room.strange)
        found = [await self._store.drivable(limit=limit, agents=names)]
        if len(found[0]) == limit and len(names) > 1:
            found = [await self._store.drivable(limit=limit, agents=[n]) for n in names]
        for turn in zip_longest(*found):
            for run in turn:
                if run is not None and not self._room.waits(run):
                    await self._consider(run, left=True)

    async def _lift_forgotten(self) -> None:
        """Lift what is still halted although no latch covers it any more.

        A latch may be met just after it was lifted, and who lifts it may die on the way.
        """
        query = Query(phases=(Phase.HALTED,), limit=MANY)
        rows = (await self._store.runs(query)).items
        halts = await self._store.halts() if rows else ()
        for row in rows:
            if any(h.covers(row.run, row.head.agent, row.head.labels) for h in halts):
                continue
            if row.head.parent and await self._is_halted(row.head.parent):
                continue  # it is held with its parent, and goes on with it
            await self._looked_at(row.run, self._lift)

    async def _lift(self, run: RunId) -> None:
        state = await load(self._store, run)
        ruled = await bring(self._store, state, Lift(by=ENGINE), self._outside.clock)
        self.hear(run, ruled.after)

    async def _looked_at(self, run: RunId, look: Callable[[RunId], Awaitable[None]]) -> None:
        """Look at one run; a journal that cannot be read is nobody else's problem."""
        if run in self._broken:
            return
        try:
            await look(run)
        except (JournalCorrupt, JournalTooNew) as error:
            self._broken[run] = FAR_SEQ
            log.error("run %s is not looked at any more: %s", run, error)  # noqa: TRY400 - the text says it all

    async def _is_halted(self, run: RunId) -> bool:
        try:
            return (await self._store.row(run)).head.phase is Phase.HALTED
        except RunNotFound:
            return False

    async def _wake(self, run: RunId) -> None:
        """Do what is due in a run that rests."""
        if run not in self._taken:
            ruled = await bring(
                self._store, await load(self._store, run), Wake(), self._outside.clock
            )
            self.hear(run, ruled.after)

    # ── letting go ────────────────────────────────────────────────────────────────────────

    def _fence(self) -> None:
        for drive in tuple(self._drives.values()):
            drive.fence()
        # Another worker may act by now, so there is no time left for the calls' grace.
        self._tasks.start_soon(self._means.zygote.kill_calls)

    async def _shut_down(self) -> None:
        """Stand down from every run: not a pause by anyone."""
        self._leaving = True
        for drive in tuple(self._drives.values()):
            drive.stand_down("shutdown")
        if not self._taken:
            return
        grace = max((agent.grace for agent in self._agents.values()), default=timedelta())
        with anyio.move_on_after(LEAVE_S + 2 * grace.total_seconds()):
            await self._empty.wait()
