"""The local worker: drive the runs of one store in this process.

A worker learns of a run in three ways. This process has appended to its journal
(`handle_append`). The store reports the append of another process (`_handle_change`). Or the
*sweep* finds the run, once a second and without any notification: its `wake_at` has passed, its
halt was removed, or it has no live holder, because its worker died or because a notification
was lost. The sweep would be enough; the other ways only make the worker faster.
`_free_leases_of_dead` does that, too: it frees the leases of workers of this host whose
processes are gone, and starts a sweep. A parent that waits for its child has no driver:
`_check_asking_parents` finds the parents that wait although their child has continued.

Every path ends in `start_loop`, which starts one task per run. The task takes the lease in the
store and drives the run to its rest. Several workers may try the same run at once: taking the
lease is compare-and-append, so one of them wins and the others stop.

The whole worker runs inside a shielded scope. A cancellation of the program does not reach the
runs before they were told to stand down: calls get their grace, and leases are given back.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from itertools import zip_longest
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus
from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.core.controls import Lift
from midrun.core.driver_inputs import Wake
from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.core.lru import LruDict
from midrun.core.run_head import Head, build_head
from midrun.core.state import State
from midrun.core.values import DRIVABLE_PHASES, Actor, Phase
from midrun.driver.call_contexts import CallContexts
from midrun.driver.child_runs import close_moot_asks, update_parent
from midrun.driver.context import DriverContext
from midrun.driver.deletion import RetentionRules, run_retention
from midrun.driver.heartbeat import LeaseHeartbeat
from midrun.driver.holder_socket import HolderSocket, is_holder_gone
from midrun.driver.journal_writer import append_input, load_run_state, load_run_to_drive
from midrun.driver.live import LiveOutput
from midrun.driver.notifications import ChangeNotifier, Wakeup
from midrun.driver.redaction import SecretRegistry
from midrun.driver.run_loop import RunLoop
from midrun.driver.subprocess.zygote_client import Zygote
from midrun.driver.user_code import UserTasks
from midrun.errors import (
    JournalUnreadable,
    MidrunError,
    NoRoom,
    RunNotFound,
    StoreError,
    StoreForeign,
)
from midrun.ports.environment import Environment
from midrun.ports.log_context import LogContext, set_log_context
from midrun.ports.model import Model
from midrun.ports.store import Change, RunQuery, Store
from midrun.workers.concurrency_limits import ConcurrencyLimiter, Fleet

LOG_REPEAT_S: Final = 60.0
"""Seconds between two warnings that a newer midrun has upgraded the store."""


class LogThrottle:
    """Rate-limit a log message that would otherwise repeat on every sweep."""

    def __init__(self) -> None:
        self._next_warning_at = 0.0

    def choose_log_level(self, error: MidrunError) -> int:
        """Return the level for logging `error`: DEBUG if it was a warning recently.

        Only `StoreForeign` is throttled. Every run of the process meets a newer schema again
        and again, and only an upgrade of the process ends it.
        """
        if not isinstance(error, StoreForeign):
            return logging.WARNING
        now = anyio.current_time()
        if now < self._next_warning_at:
            return logging.DEBUG
        self._next_warning_at = now + LOG_REPEAT_S
        return logging.WARNING


BEYOND_EVERY_SEQ: Final = Seq(2**53)
"""A seq beyond every journal. It marks a run that is never tried again, whatever is added."""

WORKER_ACTOR: Final = Actor(name="system:engine", role="system")

log = logging.getLogger("midrun")

SWEEP_S: Final = 1.0
"""Seconds between two sweeps: the longest delay after a lost notification."""

HOLDER_CHECK_S: Final = 0.5
"""Seconds between two checks whether other workers of this host are alive."""

CHILDREN_CHECK_S: Final = 30.0
"""Seconds between two checks of the children of all runs that ask."""

SWEEP_MAX_RUNS: Final = 256
"""The most runs that one query of a sweep returns."""

SNAPSHOTS_MAX_REMEMBERED: Final = 4096
"""The runs whose newest snapshot a worker remembers."""

SHUTDOWN_MAX_S: Final = 15.0
"""The longest time a shutdown waits for the runs, beyond the grace of their calls."""


class LocalWorker:
    """Drive runs in this process while `running` is open."""

    def __init__(  # noqa: PLR0913 - the parts of a process, one by one
        self,
        store: Store,
        change_notifier: ChangeNotifier,
        agents: Mapping[str, Agent],
        *,
        live_output: LiveOutput,
        secret_registry: SecretRegistry,
        get_models: Callable[[Agent], Sequence[Model]],
        environment: Environment,
        place_run: Callable[[RunId], None] | None = None,
        fleet: Fleet | None = None,
        retention: RetentionRules | None = None,
    ) -> None:
        self._place_run = place_run
        self._retention = retention or RetentionRules({})
        self._limiter = ConcurrencyLimiter(fleet or Fleet())
        self._quotas = (fleet or Fleet()).make_quota_limiter(store, environment.clock)
        self._live_output = live_output
        self._secret_registry = secret_registry
        self._store = store
        self._change_notifier = change_notifier
        self._agents = agents
        self._parent_agents = frozenset(
            agent.name
            for agent in agents.values()
            for member in agent.family.values()
            if any(tool.agent is not None for tool in member.tools.values())
        )
        self._get_models = get_models
        self._environment = environment
        self._run_loops: dict[RunId, RunLoop] = {}
        # `_active_runs` is the superset: a run is in it from `start_loop` until its task ends.
        # It enters `_run_loops` only when its journal was read and its loop exists.
        self._active_runs: set[RunId] = set()
        # Runs that a store error interrupted. Their lease may still belong to this process, so
        # `list_drivable` does not list them while it is alive; the sweep tries them once more.
        self._runs_to_recheck: set[RunId] = set()
        # The seqs of the newest snapshots of runs that were driven here. A control of this
        # process brings the state of its run along, so that the snapshot is not read again.
        self._snapshot_seqs: LruDict[RunId, Seq] = LruDict(max_items=SNAPSHOTS_MAX_REMEMBERED)
        self._uncovered_runs: set[RunId] = set()  # see `_lift_uncovered_runs`
        # Runs that cannot be driven, with the seq at which that was found. They are tried
        # again when their journal grows beyond it.
        self._undrivable_runs: dict[RunId, Seq] = {}
        self._all_runs_ended = anyio.Event()
        self._sweep_early = Wakeup()  # starts the next sweep early: a limit has a free place
        self._log_throttle = LogThrottle()
        self._stop_requested = anyio.Event()
        self._shutting_down = False
        self._heartbeat: LeaseHeartbeat
        self._task_group: TaskGroup
        self._context: DriverContext

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Drive runs while the context is open; stand down on exit.

        A cancellation from outside does not reach the runs before they were told to stand down.
        """
        # The worker runs in a task of its own inside this group. The group waits for its end
        # even if the body was cancelled, and the shield in that task keeps the cancellation
        # out.
        async with anyio.create_task_group() as outer:
            await outer.start(self._run_until_stopped, outer.cancel_scope)
            try:
                yield
            finally:
                self._stop_requested.set()

    async def _run_until_stopped(
        self, caller_scope: anyio.CancelScope, *, task_status: TaskStatus[None]
    ) -> None:
        with (
            anyio.CancelScope(shield=True),
            HolderSocket(f"p_{self._environment.make_id()}") as holder_socket,
        ):
            self._heartbeat = heartbeat = LeaseHeartbeat(
                self._store,
                holder_socket.holder_name,
                ttl=self._environment.lease,
                on_lease_lost=self._fence_loops,
            )
            async with (
                Zygote(holder_socket.fd) as zygote,
                heartbeat.keep_alive(),
                anyio.create_task_group() as tasks,
            ):
                self._task_group, heartbeat.on_renewed = tasks, zygote.set_deadline
                user_tasks, call_contexts = UserTasks(tasks), CallContexts(tasks)
                self._context = DriverContext(
                    store=self._store,
                    heartbeat=heartbeat,
                    agents=self._agents,
                    get_models=self._get_models,
                    zygote=zygote,
                    user_tasks=user_tasks,
                    call_contexts=call_contexts,
                    thread_limiter=anyio.CapacityLimiter(math.inf),
                    live_output=self._live_output,
                    change_notifier=self._change_notifier,
                    secret_registry=self._secret_registry,
                    on_appended=self.handle_append,
                    get_limits=self._limiter.get_lease_limits,
                    quotas=self._quotas,
                    clock=self._environment.clock,
                    random_unit=self._environment.random_unit,
                    task_group=tasks,
                )
                self._change_notifier.subscribe_all(self._handle_change)
                tasks.start_soon(self._sweep)
                tasks.start_soon(self._free_leases_of_dead)
                tasks.start_soon(self._check_asking_parents)
                clock, random_unit = self._environment.clock, self._environment.random_unit
                tasks.start_soon(
                    run_retention, self._store, self._retention, clock, random_unit
                )
                task_status.started()
                try:
                    await self._stop_requested.wait()
                    await self._shut_down()
                finally:
                    tasks.cancel_scope.cancel()
                    with anyio.CancelScope(shield=True):
                        await user_tasks.shut_down()
                        await call_contexts.shut_down()
        # Without a request to stop, the group above has ended because foreign code cancelled
        # one of its tasks. The body of `running` must not wait for a worker that is gone.
        if not self._stop_requested.is_set():
            caller_scope.cancel()

    def start_loop(self, run: RunId, state: State | None = None) -> None:
        """Start a task that drives `run`, unless it has one; `state` saves a read."""
        if not (
            self._shutting_down or run in self._active_runs or run in self._undrivable_runs
        ):
            self._active_runs.add(run)
            self._task_group.start_soon(self._drive_run, run, state)

    def _start_or_place(
        self, run: RunId, head: Head, state: State | None = None, *, own: bool = False
    ) -> None:
        """Have `run` driven: here, or where the placement decides.

        If a limit is reached, the run waits for a free place or for another process. A run
        whose lease this process still holds (`own`) is always started: it already counts for
        the limits, and no other process can take it while this one is alive.
        """
        if (
            self._shutting_down
            or run in self._active_runs
            or run in self._limiter.version_mismatches
        ):
            return
        if self._place_run is not None:
            self._place_run(run)
            return
        # `start_loop` refuses a run that cannot be driven, which every sweep finds again. It
        # must not be counted: only the end of its task frees its place.
        if run in self._undrivable_runs:
            return
        if own or self._limiter.can_start(run, head):
            self._limiter.add_run(run, head, own=own)
            self.start_loop(run, state)

    async def drive_until_released(self, run: RunId) -> None:
        """Drive `run` if possible; return when it is not driven here."""
        with self._change_notifier.subscribe(run) as wakeup:
            self.start_loop(run)
            # `_drive_run` notifies the subscribers of the run when it ends.
            while run in self._active_runs:
                await wakeup.wait()

    def find_live_state(self, run: RunId) -> State | None:
        """Return the state that the loop of `run` has in this process, if any."""
        run_loop = self._run_loops.get(run)
        return None if run_loop is None else run_loop.state

    def handle_append(self, run: RunId, state: State) -> None:
        """Handle an append of this process, before the store's own notification arrives."""
        # The store announces this append, too. The loop ignores a seq that it knows already,
        # and a run is started once. So both may come, in any order, and either is enough.
        run_loop = self._run_loops.get(run)
        if run_loop is not None:
            run_loop.journal_grew(state.seq)
        elif state.phase in DRIVABLE_PHASES and state.run_started.agent in self._agents:
            self._start_or_place(run, build_head(state), state)

    # ── driving ───────────────────────────────────────────────────────────────────────────

    async def _drive_run(self, run: RunId, state: State | None) -> None:
        set_log_context(LogContext(run=run))
        try:
            run_loop = await self._create_loop(run, state)
            if run_loop is not None:
                agent = run_loop.state.run_started.agent
                set_log_context(LogContext(run=run, agent=agent))
                await run_loop.run()
                await self._check_children(run_loop.state)
            if not self._shutting_down:
                self._recheck_run(run)
        # No further entry can repair this journal: the run is left alone for good.
        except JournalUnreadable as error:
            self._undrivable_runs[run] = BEYOND_EVERY_SEQ
            log.error("Cannot drive run %s: %s", run, error)  # noqa: TRY400 - a traceback adds nothing
        except NoRoom as refused:
            # The store counts the runs of the whole fleet in the transaction that takes the
            # lease. A place may have become free while its answer was on the way.
            if self._limiter.limit_reached(refused):
                self._sweep_early.set()
        except StoreError as error:
            self._runs_to_recheck.add(run)
            log.log(
                self._log_throttle.choose_log_level(error),
                "Cannot drive run %s for now: %s",
                run,
                error,
            )
        except Exception:
            # A bug that one run triggers must not end the other runs of this process. The run
            # is tried again when its journal grows: a person may cancel it, say.
            self._undrivable_runs[run] = (
                state.seq if (state := self.find_live_state(run)) else SEQ_ZERO
            )
            log.exception("Cannot drive run %s until its journal grows", run)
        finally:
            self._remove_loop(run)
            self._active_runs.discard(run)
            # A place has become free. Runs that were held back by the limit are found by the
            # sweep; without this they would wait for up to a second.
            if self._limiter.remove_run(run):
                self._sweep_early.set()
            # Waiters that relied on the state of this loop have to read the store now.
            self._change_notifier.notify(run)
            if self._shutting_down and not self._active_runs:
                self._all_runs_ended.set()

    def _remove_loop(self, run: RunId) -> None:
        """Remove the loop of a run; remember where the newest snapshot of the run is."""
        run_loop = self._run_loops.pop(run, None)
        if run_loop is not None:
            self._snapshot_seqs.put(run, run_loop.snapshot_seq)

    def _recheck_run(self, run: RunId) -> None:
        """Look again at a run whose loop has ended, if that may be necessary.

        It may need a loop again, or its parent has to be told that it rests.
        """
        run_loop = self._run_loops.get(run)
        # A control may have woken the run while its loop was ending. No other process looks at
        # a run that is held, so this one has to.
        if (
            run_loop is None
            or run_loop.is_behind
            or run_loop.state.phase in DRIVABLE_PHASES
            or run_loop.state.run_started.parent is not None
        ):
            self._task_group.start_soon(self._start_if_drivable, run)

    async def _create_loop(self, run: RunId, state: State | None) -> RunLoop | None:
        """Return the loop of `run`; None if it cannot be driven here now."""
        if state is None:
            state, snapshot_seq = await load_run_to_drive(self._store, run)
        else:
            snapshot_seq = self._snapshot_seqs.get(run, SEQ_ZERO)
        agent = self._agents.get(state.run_started.agent)
        if agent is None or self._limiter.has_version_mismatch(state, agent):
            return None
        if not await update_parent(self._context, state):
            return None
        # Entered before the loop runs: a control that comes now wakes this loop, and is not
        # lost between the read of the journal and the first wait.
        run_loop = self._run_loops[run] = RunLoop(
            self._context, agent, state, snapshot_seq=snapshot_seq
        )
        # A shutdown may have begun during the reads above. `_shut_down` tells only the loops
        # that exist at that moment, so a later one must not start.
        return None if self._shutting_down else run_loop

    def _handle_change(self, change: Change) -> None:
        """Handle a change that the store reports: wake its loop, or start the run."""
        if self._undrivable_runs.get(change.run, BEYOND_EVERY_SEQ) < change.seq:
            del self._undrivable_runs[change.run]
        self._limiter.journal_grew(change.run, change.seq)
        if (run_loop := self._run_loops.get(change.run)) is not None:
            run_loop.journal_grew(change.seq)
        elif self._shutting_down:
            return
        # An empty run id stands for the halts.
        elif not change.run:
            self._task_group.start_soon(self._apply_halts)
        # A run with a live lease is driven elsewhere; reading its row would be wasted. If that
        # holder dies, the sweep finds the run.
        elif not (change.held or change.run in self._active_runs):
            self._task_group.start_soon(self._start_if_drivable, change.run)

    async def _start_if_drivable(self, run: RunId, *, holder_dead: bool = False) -> None:
        """Start `run` if it is drivable and free; `holder_dead` makes its lease free."""
        if run in self._active_runs or run in self._limiter.version_mismatches:
            return  # a direct call in this process was faster than the notification
        try:
            row = await self._store.get_row(run)
        except RunNotFound:
            return
        except StoreError:
            self._runs_to_recheck.add(run)
            return
        head = row.head
        # A run that rests frees its place in the limits of the whole fleet.
        if head.phase not in DRIVABLE_PHASES and self._limiter.record_rest(head):
            self._sweep_early.set()
        if head.parent and head.phase not in DRIVABLE_PHASES:
            await self._notify_parent(run)
        # This process still holds the lease in the store, from a loop that it has dropped (a
        # store error, or a fence). It takes the next epoch; the old one is then refused.
        own = row.holder == self._heartbeat.holder_name
        free = holder_dead or own or not row.holder
        if head.phase in DRIVABLE_PHASES and free and head.agent in self._agents:
            self._start_or_place(run, head, own=own)

    async def _notify_parent(self, run: RunId) -> None:
        try:
            await update_parent(self._context, await load_run_state(self._store, run))
        except RunNotFound:
            return  # it was deleted meanwhile
        except MidrunError as error:
            self._runs_to_recheck.add(run)
            log.warning("Cannot notify the parent of run %s yet: %s", run, error)

    async def _check_children(self, state: State) -> None:
        """Close the asks of a run that its children no longer have."""
        try:
            await close_moot_asks(self._context, state)
        except MidrunError as error:
            log.warning("Cannot look at the child runs of run %s yet: %s", state.run, error)

    async def _check_children_of(self, run: RunId) -> None:
        await self._check_children(await load_run_state(self._store, run))

    async def _check_asking_parents(self) -> None:
        """Check the children of all runs that ask, at once and then every `CHILDREN_CHECK_S`.

        The worker that has to close an ask of a parent may have died before it could do that.
        """
        while True:
            query = RunQuery(attention=True, limit=SWEEP_MAX_RUNS)
            try:
                while True:
                    page = await self._store.list_runs(query)
                    for row in page.items:
                        if row.head.asks and row.head.agent in self._parent_agents:
                            await self._guard_unreadable(row.run, self._check_children_of)
                    if not page.cursor:
                        break
                    query = replace(query, cursor=page.cursor)
            except MidrunError as error:
                log.debug("Cannot look for runs whose children ask: %s", error)
            await anyio.sleep(CHILDREN_CHECK_S)

    async def _apply_halts(self) -> None:
        """Stop every run of this process that a halt covers.

        Its loop stops the calls and records the halt. The halt itself is already in force: the
        store refuses every start that it covers.
        """
        try:
            halts = await self._store.list_halts()
        except StoreError as error:
            log.warning("Cannot read the halts, which are in force all the same: %s", error)
            return
        for run, run_loop in tuple(self._run_loops.items()):
            started = run_loop.state.run_started
            for halt in halts:
                if halt.covers(run, started):
                    run_loop.halt_set(halt.scope, halt.by, halt.reason)
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
            self._limiter.begin_sweep(full=full)
            try:
                # First, because a new process has to continue the runs of one that has died.
                await self._start_unheld_runs()
                for run in await self._store.list_due(limit=SWEEP_MAX_RUNS):
                    await self._guard_unreadable(run, self._wake_run)
                await self._lift_uncovered_runs()
                # Each run once per sweep: `_start_if_drivable` adds it again if it still fails.
                for run in tuple(self._runs_to_recheck):
                    self._runs_to_recheck.discard(run)
                    await self._start_if_drivable(run)
            except MidrunError as error:
                log.log(
                    self._log_throttle.choose_log_level(error),
                    "Cannot sweep the store: %s",
                    error,
                )
            await self._sweep_early.wait(SWEEP_S)

    async def _free_leases_of_dead(self) -> None:
        """Free the leases of dead workers of this host, once per `HOLDER_CHECK_S`.

        The sweep then finds their runs. Leases of other hosts end by the clock.
        """
        while True:
            try:
                for holder_name in await self._store.list_holders():
                    if is_holder_gone(holder_name):
                        await self._store.release_leases(holder_name)
                        log.warning("Worker %s died; its leases are free", holder_name)
                        self._sweep_early.set()
            except MidrunError as error:
                log.debug("Cannot free the leases of dead workers: %s", error)
            await anyio.sleep(HOLDER_CHECK_S)

    async def _start_unheld_runs(self) -> None:
        """Start drivable runs without a live holder, as far as the limits allow.

        The oldest come first. If the list is full, one agent may have filled it; then each
        agent's runs are listed separately and started in turn, so that every agent gets its
        share.
        """
        names = list(self._agents)
        # Runs of another version of their agent stay in the list for ever. The limit grows by
        # their number, or they could crowd out the runs that this worker can drive.
        limit = SWEEP_MAX_RUNS + len(self._limiter.version_mismatches)
        lists = [await self._store.list_drivable(limit=limit, agents=names)]
        if len(lists[0]) == limit and len(names) > 1:
            lists = [
                await self._store.list_drivable(limit=limit, agents=[name]) for name in names
            ]
        # Round robin over the agents: the first run of each, then the second of each.
        for next_of_each in zip_longest(*lists):
            for run in next_of_each:
                if run is not None and not self._limiter.is_known_blocked(run):
                    await self._start_if_drivable(run, holder_dead=True)

    async def _lift_uncovered_runs(self) -> None:
        """Lift runs that are halted although no halt covers them any more.

        Two crash windows lead here: a run loop writes `RunHalted` just after the halt was
        removed, or the process that removed it died before it had lifted all runs.

        `Midrun.lift` removes the halt first, and then lifts the runs in the operator's name. A
        run is lifted here only if an earlier sweep has seen it, so that this process does not
        come in between.
        """
        query = RunQuery(phases=(Phase.HALTED,), limit=SWEEP_MAX_RUNS)
        rows = (await self._store.list_runs(query)).items
        halts = await self._store.list_halts() if rows else ()
        seen_before, self._uncovered_runs = self._uncovered_runs, set()
        for row in rows:
            if any(h.covers(row.run, row.head) for h in halts):
                continue
            if row.head.parent and await self._is_halted(row.head.parent):
                continue  # halted together with its parent, and lifted together with it
            self._uncovered_runs.add(row.run)
            if row.run in seen_before:
                await self._guard_unreadable(row.run, self._lift_run)

    async def _lift_run(self, run: RunId) -> None:
        state = await load_run_state(self._store, run)
        result = await append_input(
            self._store, state, Lift(by=WORKER_ACTOR), self._environment.clock
        )
        self.handle_append(run, result.after)

    async def _guard_unreadable(
        self, run: RunId, action: Callable[[RunId], Awaitable[None]]
    ) -> None:
        """Call `action` for one run; skip a journal that cannot be read.

        One such journal must not stop the sweep.
        """
        if run in self._undrivable_runs:
            return
        try:
            await action(run)
        except RunNotFound:
            return  # it was deleted since it was listed
        except JournalUnreadable as error:
            self._undrivable_runs[run] = BEYOND_EVERY_SEQ
            log.error("Cannot read run %s; it is skipped from now on: %s", run, error)  # noqa: TRY400 - a traceback adds nothing

    async def _is_halted(self, run: RunId) -> bool:
        try:
            return (await self._store.get_row(run)).head.phase is Phase.HALTED
        except RunNotFound:
            return False

    async def _wake_run(self, run: RunId) -> None:
        """Append the entries that are due in a run that rests."""
        if run not in self._active_runs:
            result = await append_input(
                self._store,
                await load_run_state(self._store, run),
                Wake(),
                self._environment.clock,
            )
            self.handle_append(run, result.after)

    # ── fencing and shutdown ──────────────────────────────────────────────────────────────

    def _fence_loops(self) -> None:
        """Drop every run because the lease of this process may have expired."""
        for run_loop in tuple(self._run_loops.values()):
            run_loop.fence()
        # Another worker may already act, so the calls get no grace.
        self._task_group.start_soon(self._context.zygote.kill_calls)

    async def _shut_down(self) -> None:
        """Stand down from every run.

        This is not a pause: the runs continue elsewhere.
        """
        self._shutting_down = True
        for run_loop in tuple(self._run_loops.values()):
            run_loop.stand_down("shutdown")
        if not self._active_runs:
            return
        grace = max((agent.grace for agent in self._agents.values()), default=timedelta())
        # The bound leaves time for two graces, for the end of processes that were killed after
        # them, and for the appends that give the leases back.
        with anyio.move_on_after(SHUTDOWN_MAX_S + 2 * grace.total_seconds()):
            await self._all_runs_ended.wait()


# The protocol of a scheduler that decides where runs are driven.
#
# Without one, every worker starts each drivable run that it finds, and the lease decides.


class RunPlacement(Protocol):
    """Have `worker.drive_until_released(run)` called at least once, in some process, soon.

    Calling it too often is harmless: a run is driven only by the process that has its lease.
    """

    def place(self, run: RunId) -> None:
        """Schedule a drivable run.

        The worker calls this again for as long as the run is not driven.
        """
        ...

    def running(
        self, worker: LocalWorker, store: Store, agents: Mapping[str, Agent]
    ) -> AbstractAsyncContextManager[None]:
        """Place runs, and drive those that are placed here, while the context is open."""
        ...
