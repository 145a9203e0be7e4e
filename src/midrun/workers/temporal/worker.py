"""Announce drivable runs to Temporal, and drive the runs that it assigns.

Every worker hears of every drivable run and announces it by starting the workflow `midrun:RUN`.
Temporal accepts one of these and refuses the rest, because the id is in use. The workflow runs
one activity on a worker of the agent's queue, and the activity drives the run through
`LocalWorker`.

The run loop belongs to the local worker and not to the activity. If Temporal loses sight of the
activity and starts it elsewhere, the first process continues as long as it has the lease, and
the second one waits for that.

The workflow holds no data of the run. Its names are stored in Temporal's history and must not
change.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import anyio
from anyio.abc import TaskGroup
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from midrun.agents.agent import Agent
from midrun.core.ids import RunId
from midrun.core.values import DRIVABLE_PHASES
from midrun.errors import MidrunError, RunNotFound
from midrun.ports.store import Store
from midrun.workers.local import LocalWorker

log: Final = logging.getLogger("midrun.workers.temporal")

DRIVE_ACTIVITY: Final = "midrun.drive"
WORKFLOW_NAME: Final = "midrun.placement"

ACTIVITY_MAX_DURATION: Final = timedelta(days=3650)
"""The longest time a run may work without a rest: Temporal requires a bound."""

RETRY_S: Final = 1.0
"""Seconds between two looks at a run that is driven elsewhere, and two connection attempts."""

REANNOUNCE_S: Final = 5.0
"""Seconds after which a run that is still not driven is announced again."""

WORKFLOW_RETRY_S: Final = 0.05
"""Seconds between two attempts to start the workflow of a run that has just rested."""

WORKFLOW_MAX_ATTEMPTS: Final = 20
"""The most such attempts: the workflow of the last drive may take a moment to end."""

RPC_TIMEOUT_S: Final = 5.0
"""The longest time for one request to Temporal."""

ANNOUNCEMENTS_MAX_CONCURRENT: Final = 16
"""The most runs that a process announces at the same time. It protects a server that is slow or
down: each run is announced again until it is driven."""


@workflow.defn(name=WORKFLOW_NAME)
class PlacementWorkflow:
    """Have a run driven by one worker, and by another if that is gone."""

    @workflow.run
    async def run(self, run: str, silence_s: float) -> None:
        """Drive `run` until it rests; `silence_s` is the heartbeat timeout of a worker."""
        await workflow.execute_activity(
            DRIVE_ACTIVITY,
            run,
            start_to_close_timeout=ACTIVITY_MAX_DURATION,
            heartbeat_timeout=timedelta(seconds=silence_s),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)
            ),
        )


class Temporal:
    """Place runs through the Temporal server at `address`, one queue for each agent.

    `silence` is how long a worker may miss its heartbeats before Temporal gives its runs to
    another. It may be longer than a lease, because the store decides which process may act.
    `runs` is the most runs of one agent that this process drives at a time.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:7233",
        *,
        namespace: str = "default",
        queue: str = "midrun",
        silence: timedelta = timedelta(seconds=10),
        runs: int = 1000,
    ) -> None:
        self.address = address
        self.namespace = namespace
        self._queue = queue
        self._silence = silence
        self._max_runs = runs
        self._announcing: set[RunId] = set()  # also those that wait for their turn
        self._announced_at: dict[RunId, float] = {}
        self._rested_at: dict[RunId, float] = {}
        self._next_prune_at = 0.0
        self._announce: Callable[[RunId], None] = _ignore_run

    def get_task_queue(self, agent: str) -> str:
        """Return the task queue for the runs of an agent."""
        return f"{self._queue}-{agent}"

    def place(self, run: RunId) -> None:
        """Have Temporal find a worker for `run`."""
        self._announce(run)

    @asynccontextmanager
    async def running(
        self, worker: LocalWorker, store: Store, agents: Mapping[str, Agent]
    ) -> AsyncIterator[None]:
        """Serve Temporal while the context is open; hand over the runs on exit."""
        work = _TemporalSession(self, worker, store)
        async with anyio.create_task_group() as tasks:
            self._announce = lambda run: self._announce_once(tasks, work, run)
            for name in agents:
                tasks.start_soon(self._serve_queue, work, name)
            # The order at the end matters. First no run is announced any more, then the
            # activities end, then the loops that serve the queues. The run loops themselves
            # are stopped later, by the local worker, with the grace of their calls.
            try:
                yield
            finally:
                self._announce = _ignore_run
                work.stopping.set()
                # The activities must end with an error that Temporal retries, before the
                # workers stop. Otherwise it would wait for their heartbeats to time out.
                with anyio.move_on_after(2 * RPC_TIMEOUT_S, shield=True):
                    await work.wait_until_idle()
                tasks.cancel_scope.cancel()

    def _announce_once(self, tasks: TaskGroup, work: "_TemporalSession", run: RunId) -> None:
        """Announce a run unless it was announced recently.

        Every change of a run leads here, in every process.
        """
        now = anyio.current_time()
        if run in self._announcing or self._is_recent(self._announced_at, run, now):
            return
        self._prune(now)
        self._announcing.add(run)
        self._announced_at[run] = now
        tasks.start_soon(work.announce_run, run)

    def end_announcement(self, run: RunId) -> None:
        """Note that the announcement of a run has succeeded or failed."""
        self._announcing.discard(run)
        # The time counts from the end: with many runs and a slow server, a run may have waited
        # for its turn for longer than the time after which it is announced again. A run that
        # has rested meanwhile is not in the dict any more.
        if run in self._announced_at:
            self._announced_at[run] = anyio.current_time()

    def _prune(self, now: float) -> None:
        """Drop old times now and then; else the dicts would grow with each run ever seen."""
        if now < self._next_prune_at:
            return
        self._next_prune_at = now + REANNOUNCE_S
        for times in (self._announced_at, self._rested_at):
            for run in [run for run in times if not self._is_recent(times, run, now)]:
                del times[run]

    @staticmethod
    def _is_recent(times: Mapping[RunId, float], run: RunId, now: float) -> bool:
        return now - times.get(run, -REANNOUNCE_S) < REANNOUNCE_S

    def record_rest(self, run: RunId) -> None:
        """Record that a run rests, so that it can be announced again."""
        now = anyio.current_time()
        self._prune(now)
        self._rested_at[run] = now
        self.forget_announcement(run)

    def has_just_rested(self, run: RunId) -> bool:
        """Tell whether a run was driven here until a moment ago."""
        return self._is_recent(self._rested_at, run, anyio.current_time())

    def forget_announcement(self, run: RunId) -> None:
        """Forget that a run was announced: the next sweep announces it again."""
        self._announced_at.pop(run, None)

    async def _serve_queue(self, work: "_TemporalSession", agent: str) -> None:
        """Take runs of one agent from its queue; reconnect when needed."""
        while not work.stopping.is_set():
            try:
                worker = Worker(
                    await work.get_client(),
                    task_queue=self.get_task_queue(agent),
                    workflows=[PlacementWorkflow],
                    activities=[work.drive_run],
                    # The workflow has no code that could be nondeterministic.
                    workflow_runner=UnsandboxedWorkflowRunner(),
                    max_concurrent_activities=self._max_runs,
                    graceful_shutdown_timeout=timedelta(seconds=RPC_TIMEOUT_S),
                )
                async with worker:
                    await work.stopping.wait()
            except (RPCError, RuntimeError) as error:
                log.warning("Cannot reach Temporal at %s: %s", self.address, error)
                with anyio.move_on_after(RETRY_S):
                    await work.stopping.wait()

    def get_silence_s(self) -> float:
        """Return the longest silence of a worker, in seconds."""
        return self._silence.total_seconds()


class _TemporalSession:
    """The work of one process for Temporal while `Temporal.running` is open."""

    def __init__(self, temporal: Temporal, worker: LocalWorker, store: Store) -> None:
        self.stopping = anyio.Event()
        self._temporal = temporal
        self._worker = worker
        self._store = store
        self._client: Client | None = None
        self._announcements = anyio.CapacityLimiter(ANNOUNCEMENTS_MAX_CONCURRENT)
        self._next_warning_at = 0.0
        self._active_drives = 0
        self._idle = anyio.Event()

    async def get_client(self) -> Client:
        """Return the client; connect at the first call."""
        if self._client is None:
            temporal = self._temporal
            self._client = await Client.connect(temporal.address, namespace=temporal.namespace)
        return self._client

    async def wait_until_idle(self) -> None:
        """Wait until no activity runs in this process."""
        if self._active_drives:
            await self._idle.wait()

    async def announce_run(self, run: RunId) -> None:
        """Start the workflow of `run`; after a failure a later sweep tries again."""
        try:
            async with self._announcements:
                await self._start_or_repeat(run)
        except (RPCError, RuntimeError, MidrunError) as error:
            log.log(self._choose_level(), "Cannot place run %s yet: %s", run, error)
        finally:
            self._temporal.end_announcement(run)

    def _choose_level(self) -> int:
        """Return DEBUG for a failure soon after a warning: every queued run has the same."""
        now = anyio.current_time()
        if now < self._next_warning_at:
            return logging.DEBUG
        self._next_warning_at = now + REANNOUNCE_S
        return logging.WARNING

    async def _start_or_repeat(self, run: RunId) -> None:
        agent = (await self._store.get_row(run)).head.agent
        # "Already started" usually means that another worker was faster. But if the run rested
        # here a moment ago, it may be the workflow of that time, which is about to end and
        # will not drive the run again. Then the start is repeated until it succeeds.
        for _ in range(WORKFLOW_MAX_ATTEMPTS):
            if await self._start_workflow(run, agent) or not self._temporal.has_just_rested(
                run
            ):
                return
            await anyio.sleep(WORKFLOW_RETRY_S)
        self._temporal.forget_announcement(run)

    async def _start_workflow(self, run: RunId, agent: str) -> bool:
        """Start the workflow; return False if one of this run is open already."""
        client = await self.get_client()
        try:
            await client.start_workflow(
                WORKFLOW_NAME,
                args=[run, self._temporal.get_silence_s()],
                id=f"midrun:{run}",
                task_queue=self._temporal.get_task_queue(agent),
                # One open workflow for each run: a second start fails. A closed one does not
                # count, because a run is placed again after each rest.
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                rpc_timeout=timedelta(seconds=RPC_TIMEOUT_S),
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    @activity.defn(name=DRIVE_ACTIVITY)
    async def drive_run(self, run_id: str) -> None:
        """Drive a run until it rests, or until this process shuts down.

        Missed heartbeats do not stop it: the process with the lease continues, and Temporal's
        next attempt waits for that.
        """
        if not self._active_drives:
            self._idle = anyio.Event()
        self._active_drives += 1
        try:
            # The first of the two conditions that becomes true ends the activity and its
            # heartbeats. The run loop is the local worker's and is not cancelled here.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_heartbeats)
                tasks.start_soon(_cancel_after, self.stopping.wait, tasks)
                tasks.start_soon(
                    _cancel_after, lambda: self._drive_until_rest(RunId(run_id)), tasks
                )
        finally:
            self._active_drives -= 1
            if not self._active_drives:
                self._idle.set()
        if self.stopping.is_set():
            # An error, so that Temporal retries the activity on another worker.
            delay = timedelta(seconds=RETRY_S)
            raise ApplicationError("the worker is shutting down", next_retry_delay=delay)
        self._temporal.record_rest(RunId(run_id))

    async def _send_heartbeats(self) -> None:
        while True:
            activity.heartbeat()
            await anyio.sleep(self._temporal.get_silence_s() / 4)

    async def _drive_until_rest(self, run: RunId) -> None:
        """Drive `run` whenever no other process does, until it is not drivable any more."""
        while True:
            # It returns at once if another process has the lease. That process may be the one
            # that Temporal believes to be dead, so this attempt waits and looks again.
            await self._worker.drive_until_released(run)
            try:
                row = await self._store.get_row(run)
            except RunNotFound:
                return
            except MidrunError as error:
                log.warning("Cannot read run %s: %s", run, error)
            else:
                if row.head.phase not in DRIVABLE_PHASES:
                    return
            await anyio.sleep(RETRY_S)


async def _cancel_after(wait: Callable[[], Awaitable[object]], tasks: TaskGroup) -> None:
    await wait()
    tasks.cancel_scope.cancel()


def _ignore_run(_: RunId) -> None:
    return None
