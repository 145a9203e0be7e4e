"""Announce drivable runs to Temporal, and drive the runs that it assigns.

Every worker hears of every drivable run and announces it by starting the workflow `midrun:RUN`.
Temporal accepts one of these and refuses the rest, because the id is in use. The workflow runs
one activity on a worker of the agent's queue, and the activity drives the run through
`LocalWorker`.

The drive belongs to the local worker and not to the activity. If Temporal loses sight of the
activity and starts it elsewhere, the first process goes on as long as it has the lease, and the
second one waits for that.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import anyio
from anyio.abc import TaskGroup
from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from midrun.agents.agent import Agent
from midrun.core.ids import RunId
from midrun.core.values import DRIVABLE
from midrun.errors import MidrunError, RunNotFound
from midrun.ports.store import Store
from midrun.workers.local import Local
from midrun.workers.temporal.workflow import DRIVE, NAME, Placement

log: Final = logging.getLogger("midrun.workers.temporal")

RETRY_S: Final = 1.0
"""Seconds between two looks at a run that is driven elsewhere, and two connection attempts."""

AGAIN_S: Final = 5.0
"""Seconds after which a run that is still not driven is announced again."""

TRY_S: Final = 0.05
"""Seconds between two attempts to start the workflow of a run that has just rested."""

TRIES: Final = 20
"""The most such attempts: the workflow of the last drive may take a moment to end."""

RPC_S: Final = 5.0
"""The longest time for one request to Temporal."""


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
        self._runs = runs
        self._told: dict[RunId, float] = {}
        self._rested: dict[RunId, float] = {}
        self._announce: Callable[[RunId], None] = _ignored

    def queue_of(self, agent: str) -> str:
        """Return the task queue for the runs of an agent."""
        return f"{self._queue}-{agent}"

    def place(self, run: RunId) -> None:
        """Have Temporal find a worker for `run`."""
        self._announce(run)

    @asynccontextmanager
    async def running(
        self, local: Local, store: Store, agents: Mapping[str, Agent]
    ) -> AsyncIterator[None]:
        """Serve Temporal while the context is open; hand over the runs on exit."""
        work = _Work(self, local, store)
        async with anyio.create_task_group() as tasks:
            self._announce = lambda run: self._once(tasks, work, run)
            for name in agents:
                tasks.start_soon(self._serve, work, name)
            try:
                yield
            finally:
                self._announce = _ignored
                work.leaving.set()
                # The activities must end with an error that Temporal retries, before the
                # workers stop. Otherwise it would wait for their heartbeats to time out.
                with anyio.move_on_after(2 * RPC_S, shield=True):
                    await work.over()
                tasks.cancel_scope.cancel()

    def _once(self, tasks: TaskGroup, work: "_Work", run: RunId) -> None:
        """Announce a run unless it was announced recently.

        Every change of a run leads here, in every process.
        """
        now = anyio.current_time()
        if now - self._told.get(run, -AGAIN_S) < AGAIN_S:
            return
        self._told = _recent(self._told, now) | {run: now}
        tasks.start_soon(work.announce, run)

    def rested(self, run: RunId) -> None:
        """Record that a run rests, so that it can be announced again."""
        now = anyio.current_time()
        self._rested = _recent(self._rested, now) | {run: now}
        self.forget(run)

    def just_rested(self, run: RunId) -> bool:
        """Tell whether a run was driven here until a moment ago."""
        return anyio.current_time() - self._rested.get(run, -AGAIN_S) < AGAIN_S

    def forget(self, run: RunId) -> None:
        """Forget that a run was announced: the next sweep announces it again."""
        self._told.pop(run, None)

    async def _serve(self, work: "_Work", agent: str) -> None:
        """Take runs of one agent from its queue; reconnect when needed."""
        while not work.leaving.is_set():
            try:
                worker = Worker(
                    await work.client(),
                    task_queue=self.queue_of(agent),
                    workflows=[Placement],
                    activities=[work.drive],
                    # The workflow has no code that could be nondeterministic.
                    workflow_runner=UnsandboxedWorkflowRunner(),
                    max_concurrent_activities=self._runs,
                    graceful_shutdown_timeout=timedelta(seconds=RPC_S),
                )
                async with worker:
                    await work.leaving.wait()
            except (RPCError, RuntimeError) as error:
                log.warning("Cannot reach Temporal at %s: %s", self.address, error)
                with anyio.move_on_after(RETRY_S):
                    await work.leaving.wait()

    def silence_s(self) -> float:
        """Return the longest silence of a worker, in seconds."""
        return self._silence.total_seconds()


class _Work:
    """The work of one process for Temporal while `Temporal.running` is open."""

    def __init__(self, temporal: Temporal, local: Local, store: Store) -> None:
        self.leaving = anyio.Event()
        self._temporal = temporal
        self._local = local
        self._store = store
        self._client: Client | None = None
        self._driving = 0
        self._idle = anyio.Event()

    async def client(self) -> Client:
        """Return the client; connect at the first call."""
        if self._client is None:
            temporal = self._temporal
            self._client = await Client.connect(temporal.address, namespace=temporal.namespace)
        return self._client

    async def over(self) -> None:
        """Wait until no activity runs in this process."""
        if self._driving:
            await self._idle.wait()

    async def announce(self, run: RunId) -> None:
        """Start the workflow of `run`; after a failure the next sweep tries again."""
        try:
            agent = (await self._store.row(run)).head.agent
            # "Already started" usually means that another worker was faster. But if the run
            # rested here a moment ago, it may be the workflow of that drive, which is about to
            # end and will not drive the run again. Then the start is repeated until it
            # succeeds.
            for _ in range(TRIES):
                if await self._placed(run, agent) or not self._temporal.just_rested(run):
                    return
                await anyio.sleep(TRY_S)
        except (RPCError, RuntimeError, MidrunError) as error:
            log.warning("Cannot place run %s yet: %s", run, error)
        else:
            self._temporal.forget(run)

    async def _placed(self, run: RunId, agent: str) -> bool:
        """Start the workflow; return False if one of this run is open already."""
        client = await self.client()
        try:
            await client.start_workflow(
                NAME,
                args=[run, self._temporal.silence_s()],
                id=f"midrun:{run}",
                task_queue=self._temporal.queue_of(agent),
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                rpc_timeout=timedelta(seconds=RPC_S),
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    @activity.defn(name=DRIVE)
    async def drive(self, name: str) -> None:
        """Drive a run until it rests, or until this process shuts down.

        Missed heartbeats do not stop it: the process with the lease goes on, and Temporal's
        next attempt waits for that.
        """
        if not self._driving:
            self._idle = anyio.Event()
        self._driving += 1
        try:
            # The first of the two conditions that becomes true ends the activity and its
            # heartbeats. The drive itself is the local worker's and is not cancelled here.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._beat)
                tasks.start_soon(_until, self.leaving.wait, tasks)
                tasks.start_soon(_until, lambda: self._rested(RunId(name)), tasks)
        finally:
            self._driving -= 1
            if not self._driving:
                self._idle.set()
        if self.leaving.is_set():
            # An error, so that Temporal retries the activity on another worker.
            delay = timedelta(seconds=RETRY_S)
            raise ApplicationError("the worker is shutting down", next_retry_delay=delay)
        self._temporal.rested(RunId(name))

    async def _beat(self) -> None:
        while True:
            activity.heartbeat()
            await anyio.sleep(self._temporal.silence_s() / 4)

    async def _rested(self, run: RunId) -> None:
        """Drive `run` whenever no other process does, until it is not drivable any more."""
        while True:
            await self._local.driven(run)
            try:
                row = await self._store.row(run)
            except RunNotFound:
                return
            except MidrunError as error:
                log.warning("Cannot read run %s: %s", run, error)
            else:
                if row.head.phase not in DRIVABLE:
                    return
            await anyio.sleep(RETRY_S)


async def _until(over: Callable[[], Awaitable[object]], tasks: TaskGroup) -> None:
    await over()
    tasks.cancel_scope.cancel()


def _recent(times: Mapping[RunId, float], now: float) -> dict[RunId, float]:
    return {run: at for run, at in times.items() if now - at < AGAIN_S}


def _ignored(_: RunId) -> None:
    return None
