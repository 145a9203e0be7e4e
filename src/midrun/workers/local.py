"""The local worker: drive the runs of one store in this process.

Three sources lead to a run being started. The program itself: a run is started or resumed here
(`handle_append`). The store's watch: another process has changed a run (`_handle_change`). And
the *sweep*, once a second, which needs no notification: runs whose `wake_at` has passed, runs
that are halted although their halt was removed, and drivable runs without a live holder,
because their worker died or because a notification was lost. The sweep makes all other paths
optional; they only make the worker faster.

Every path ends in `start_drive`, which starts one task per run. The task takes the lease in the
store and drives the run to its rest. Several workers may try the same run at once: taking the
lease is compare-and-append, so one of them wins and the others stop.

The whole worker runs inside a shielded scope. A cancellation of the program does not reach the
runs before they were told to stand down: calls get their grace, and leases are given back.
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

EVERY_S: Final = 60.0
"""Seconds between two warnings that a newer midrun has upgraded the store."""


class Seldom:
    """Rate-limit a log message that would otherwise repeat on every sweep."""

    def __init__(self) -> None:
        self._due = 0.0

    def level(self, error: MidrunError) -> int:
        """Return the level for logging `error`: DEBUG if it was a warning recently.

        Only `StoreForeign` is throttled. Every run of the process meets a newer schema again
        and again, and only an upgrade of the process ends it.
        """
        if not isinstance(error, StoreForeign):
            return logging.WARNING
        now = anyio.current_time()
        if now < self._due:
            return logging.DEBUG
        self._due = now + EVERY_S
        return logging.WARNING


FAR_SEQ: Final = Seq(2**53)
"""A seq beyond every journal. It marks a run that is never tried again, whatever is added."""

ENGINE: Final = Actor(name="system:engine", role="system")

log = logging.getLogger("midrun")

SWEEP_S: Final = 1.0
"""Seconds between two sweeps: the longest delay after a lost notification."""

MANY: Final = 256
"""The most runs that one query of a sweep returns."""

LEAVE_S: Final = 15.0
"""The longest time a shutdown waits for the runs, beyond the grace of their calls."""


class Local:
    """Drive runs in this process while `running` is open."""

    def __init__(  # noqa: PLR0913 - the parts of a process, one by one
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
        # `_active_runs` is the superset: a run is in it from `start_drive` until its task ends.
        # It enters `_run_loops` only when its journal was read and its loop exists.
        self._taken: set[RunId] = set()
        # Runs that a store error interrupted. Their lease may still belong to this process, so
        # `list_drivable` does not list them while it is alive; the sweep tries them once more.
        self._left: set[RunId] = set()
        # Runs that cannot be driven, with the seq at which that was found. They are tried
        # again when their journal grows beyond it.
        self._broken: dict[RunId, Seq] = {}
        self._empty = anyio.Event()
        self._look = Bell()  # starts the next sweep early: a limit has a free place
        self._seldom = Seldom()
        self._leave = anyio.Event()
        self._leaving = False
        self._tasks: TaskGroup
        self._means: Means

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Drive runs while the context is open; stand down on exit.

        A cancellation from outside does not reach the runs before they were told to stand down.
        """
        # The worker runs in a task of its own inside this group. The group waits for its end
        # even if the body was cancelled, and the shield in that task keeps the cancellation
        # out.
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
        # Without a request to stop, the group above has ended because foreign code cancelled
        # one of its tasks. The body of `running` must not wait for a worker that is gone.
        if not self._leave.is_set():
            around.cancel()

    def take_up(self, run: RunId, state: State | None = None) -> None:
        """Start a task that drives `run`, unless it has one; `state` saves a read."""
        if not (self._leaving or run in self._taken or run in self._broken):
            self._taken.add(run)
            self._tasks.start_soon(self._drive, run, state)

    def _offer(
        self, run: RunId, head: Head, state: State | None = None, *, own: bool = False
    ) -> None:
        """Have `run` driven: here, or where the placement decides.

        If a limit is reached, the run waits for a free place or for another process. A run
        whose lease this process still holds (`own`) is always started: it already counts for
        the limits, and no other process can take it while this one is alive.
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
        """Drive `run` if possible; return when it is not driven here."""
        with self._news.of(run) as bell:
            self.take_up(run)
            # The end of a drive notifies the subscribers of the run, see `_drive_guarded`.
            while run in self._taken:
                await bell.wait()

    def known(self, run: RunId) -> State | None:
        """Return the state that a drive here has of `run`, if any."""
        drive = self._drives.get(run)
        return None if drive is None else drive.state

    def hear(self, run: RunId, state: State) -> None:
        """Handle an append of this process, before the store's own notification arrives."""
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
        # No further entry can repair this journal: the run is left alone for good.
        except (JournalCorrupt, JournalTooNew) as error:
            self._broken[run] = FAR_SEQ
            log.error("Cannot drive run %s: %s", run, error)  # noqa: TRY400 - a traceback adds nothing
        except NoRoom as refused:
            # The store counts the runs of the whole fleet in the transaction that takes the
            # lease. A place may have become free while its answer was on the way.
            if self._room.fill(refused):
                self._look.ring()
        except StoreError as error:
            self._left.add(run)
            log.log(self._seldom.level(error), "Cannot drive run %s for now: %s", run, error)
        except Exception:
            # A bug that one run triggers must not end the other runs of this process. The run
            # is tried again when its journal grows: a person may cancel it, say.
            self._broken[run] = state.seq if (state := self.known(run)) else START
            log.exception("Cannot drive run %s until its journal grows", run)
        finally:
            self._drives.pop(run, None)
            self._taken.discard(run)
            if self._room.leave(run):
                self._look.ring()
            # Waiters that relied on the state of this drive have to read the store now.
            self._news.tell(run)
            if self._leaving and not self._taken:
                self._empty.set()

    def _may_go_on(self, run: RunId) -> bool:
        """Tell whether a run whose drive has ended must be looked at again.

        It may need a driver once more, or its parent must learn of its rest.
        """
        if (drive := self._drives.get(run)) is None:
            return True
        # A control may have woken the run while its drive was ending. No other process looks at
        # a run that is held, so this one has to.
        state = drive.state
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
        # A shutdown may have begun during the reads above. `_shut_down` tells only the drives
        # that exist at that moment, so a later one must not start.
        if self._leaving:
            return
        await drive.run()

    def _hear(self, change: Change) -> None:
        """Handle a change that the store reports: wake the drive, or start the run."""
        if self._broken.get(change.run, FAR_SEQ) < change.seq:
            del self._broken[change.run]
        self._room.hears(change.run, change.seq)
        if (drive := self._drives.get(change.run)) is not None:
            drive.grew(change.seq)
        elif self._leaving:
            return
        # An empty run id stands for the halts.
        elif not change.run:
            self._tasks.start_soon(self._latched)
        # A run with a live lease is driven elsewhere; reading its row would be wasted. If that
        # holder dies, the sweep finds the run.
        elif not (change.held or change.run in self._taken):
            self._tasks.start_soon(self._consider, change.run)

    async def _consider(self, run: RunId, *, left: bool = False) -> None:
        """Start `run` if it is drivable and free; `holder_dead` makes its lease free."""
        if run in self._taken or run in self._room.strange:
            return  # a direct call in this process was faster than the notification
        try:
            row = await self._store.row(run)
        except RunNotFound:
            return
        except StoreError:
            self._left.add(run)
            return
        head = row.head
        # A run that rests frees its place in the limits of the whole fleet.
        if head.phase not in DRIVABLE and self._room.rested(head):
            self._look.ring()
        if head.parent and head.phase not in DRIVABLE:
            await self._tell_parent(run)
        # This process still holds the lease in the store, from a drive that it has dropped (a
        # store error, or a fence). It takes the next epoch; the old one is then refused.
        own = row.holder == self._holder.name
        free = left or own or not row.holder
        if head.phase in DRIVABLE and free and head.agent in self._agents:
            self._offer(run, head, own=own)

    async def _tell_parent(self, run: RunId) -> None:
        try:
            await tell_parent(self._means, await load(self._store, run))
        except MidrunError as error:
            log.warning("Cannot notify the parent of run %s yet: %s", run, error)

    async def _latched(self) -> None:
        """Stop every drive that a halt covers.

        The drive stops its calls and records the halt. The halt itself is already in force: the
        store refuses every start that it covers.
        """
        try:
            halts = await self._store.halts()
        except StoreError as error:
            log.warning("Cannot read the halts, which are in force all the same: %s", error)
            return
        for run, drive in tuple(self._drives.items()):
            started = drive.state.started
            for halt in halts:
                if halt.covers(run, started.agent, started.labels):
                    drive.meet(halt.scope, halt.by, halt.reason)
                    break

    async def _sweep(self) -> None:
        """Find runs to start without any notification, once per `SWEEP_S`.

        It also runs early when a limit gets a free place. Then only the runs that such a place
        could help are read again; a full sweep still comes once per `SWEEP_S`.
        """
        last_full_sweep = -math.inf
        while True:
            if full := anyio.current_time() - last_full_sweep >= SWEEP_S:
                last_full_sweep = anyio.current_time()
            self._room.looks(everywhere=full)
            try:
                for run in await self._store.due(limit=MANY):
                    await self._looked_at(run, self._wake)
                await self._lift_forgotten()
                # Each run once per sweep: `_start_if_drivable` adds it again if it still fails.
                for run in tuple(self._left):
                    self._left.discard(run)
                    await self._consider(run)
                await self._find_work()
            except MidrunError as error:
                log.log(self._seldom.level(error), "Cannot sweep the store: %s", error)
            await self._look.wait(SWEEP_S)

    async def _find_work(self) -> None:
        """Start drivable runs without a live holder, as far as the limits allow.

        The oldest come first. If the list is full, one agent may have filled it; then each
        agent's runs are listed separately and started in turn, so that every agent gets its
        share.
        """
        names = list(self._agents)
        # Runs of another version of their agent stay in the list for ever. The limit grows by
        # their number, or they could crowd out the runs that this worker can drive.
        limit = MANY + len(self._room.strange)
        lists = [await self._store.drivable(limit=limit, agents=names)]
        if len(lists[0]) == limit and len(names) > 1:
            lists = [await self._store.drivable(limit=limit, agents=[name]) for name in names]
        for next_of_each in zip_longest(*lists):
            for run in next_of_each:
                if run is not None and not self._room.waits(run):
                    await self._consider(run, left=True)

    async def _lift_forgotten(self) -> None:
        """Lift runs that are halted although no halt covers them any more.

        Two crash windows lead here: a drive writes `RunHalted` just after the halt was removed,
        or the process that removed it died before it had lifted all runs.
        """
        query = Query(phases=(Phase.HALTED,), limit=MANY)
        rows = (await self._store.runs(query)).items
        halts = await self._store.halts() if rows else ()
        for row in rows:
            if any(h.covers(row.run, row.head.agent, row.head.labels) for h in halts):
                continue
            if row.head.parent and await self._is_halted(row.head.parent):
                continue  # halted together with its parent, and lifted together with it
            await self._looked_at(row.run, self._lift)

    async def _lift(self, run: RunId) -> None:
        state = await load(self._store, run)
        decision = await bring(self._store, state, Lift(by=ENGINE), self._outside.clock)
        self.hear(run, decision.after)

    async def _looked_at(self, run: RunId, look: Callable[[RunId], Awaitable[None]]) -> None:
        """Call `action` for one run; skip a journal that cannot be read.

        One such journal must not stop the sweep.
        """
        if run in self._broken:
            return
        try:
            await look(run)
        except (JournalCorrupt, JournalTooNew) as error:
            self._broken[run] = FAR_SEQ
            log.error("Cannot read run %s; it is skipped from now on: %s", run, error)  # noqa: TRY400 - a traceback adds nothing

    async def _is_halted(self, run: RunId) -> bool:
        try:
            return (await self._store.row(run)).head.phase is Phase.HALTED
        except RunNotFound:
            return False

    async def _wake(self, run: RunId) -> None:
        """Append the entries that are due in a run that rests."""
        if run not in self._taken:
            decision = await bring(
                self._store, await load(self._store, run), Wake(), self._outside.clock
            )
            self.hear(run, decision.after)

    # ── fencing and shutdown ──────────────────────────────────────────────────────────────

    def _fence(self) -> None:
        """Drop every drive because the lease of this process may have expired."""
        for drive in tuple(self._drives.values()):
            drive.fence()
        # Another worker may already act, so the calls get no grace.
        self._tasks.start_soon(self._means.zygote.kill_calls)

    async def _shut_down(self) -> None:
        """Stand down from every run.

        This is not a pause: the runs go on elsewhere.
        """
        self._leaving = True
        for drive in tuple(self._drives.values()):
            drive.stand_down("shutdown")
        if not self._taken:
            return
        grace = max((agent.grace for agent in self._agents.values()), default=timedelta())
        # The bound leaves time for two graces and for the appends that give the leases back.
        with anyio.move_on_after(LEAVE_S + 2 * grace.total_seconds()):
            await self._empty.wait()
