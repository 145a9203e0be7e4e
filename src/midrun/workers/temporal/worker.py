"""The engine: announces runs that can be driven to Temporal, and drives what it is given."""

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
"""Between two looks at a run that somebody else drives, and two attempts to reach Temporal."""

AGAIN_S: Final = 5.0
"""A run that is still not driven so long after it was announced is announced again."""

TRY_S: Final = 0.05
TRIES: Final = 20
"""How often, and how many times, a place is asked for anew where the last is about to end."""

RPC_S: Final = 5.0


class Temporal:
    """Places runs by the Temporal server at `address`, each agent's on a queue of its own.

    `silence` is how long a worker may be silent before Temporal gives its runs to another. It
    may be longer than a lease: who may act is decided by the store. `runs` is how many runs of
    one agent this process drives at a time.
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
        """Return the task queue on which the runs of an agent are placed."""
        return f"{self._queue}-{agent}"

    def place(self, run: RunId) -> None:
        """Hear that `run` can be driven, and have Temporal find a place for it."""
        self._announce(run)

    @asynccontextmanager
    async def running(
        self, local: Local, store: Store, agents: Mapping[str, Agent]
    ) -> AsyncIterator[None]:
        """Work for Temporal while the context is open; leaving, others are given the runs."""
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
                with anyio.move_on_after(2 * RPC_S, shield=True):
                    await work.over()
                tasks.cancel_scope.cancel()

    def _once(self, tasks: TaskGroup, work: "_Work", run: RunId) -> None:
        """Announce a run, unless that was done just now: everybody here hears of everything."""
        now = anyio.current_time()
        if now - self._told.get(run, -AGAIN_S) < AGAIN_S:
            return
        self._told = _recent(self._told, now) | {run: now}
        tasks.start_soon(work.announce, run)

    def rested(self, run: RunId) -> None:
        """Hear that a run that was driven here rests: the next time is another announcement."""
        now = anyio.current_time()
        self._rested = _recent(self._rested, now) | {run: now}
        self.forget(run)

    def just_rested(self, run: RunId) -> bool:
        """Tell whether a run was driven here until just now."""
        return anyio.current_time() - self._rested.get(run, -AGAIN_S) < AGAIN_S

    def forget(self, run: RunId) -> None:
        """Forget that a run was announced: the next look does so again."""
        self._told.pop(run, None)

    async def _serve(self, work: "_Work", agent: str) -> None:
        """Take runs of one agent from its queue, whatever becomes of the server meanwhile."""
        while not work.leaving.is_set():
            try:
                worker = Worker(
                    await work.client(),
                    task_queue=self.queue_of(agent),
                    workflows=[Placement],
                    activities=[work.drive],
                    workflow_runner=UnsandboxedWorkflowRunner(),  # it has nothing to guard
                    max_concurrent_activities=self._runs,
                    graceful_shutdown_timeout=timedelta(seconds=RPC_S),
                )
                async with worker:
                    await work.leaving.wait()
            except (RPCError, RuntimeError) as error:
                log.warning("Temporal at %s cannot be reached: %s", self.address, error)
                with anyio.move_on_after(RETRY_S):
                    await work.leaving.wait()

    def silence_s(self) -> float:
        """Return how long a worker may be silent, in seconds."""
        return self._silence.total_seconds()


class _Work:
    """What one process does for Temporal while it is open."""

    def __init__(self, temporal: Temporal, local: Local, store: Store) -> None:
        self.leaving = anyio.Event()
        self._temporal = temporal
        self._local = local
        self._store = store
        self._client: Client | None = None
        self._driving = 0
        self._idle = anyio.Event()

    async def client(self) -> Client:
        """Return the connection, made when it is first needed."""
        if self._client is None:
            at = self._temporal
            self._client = await Client.connect(at.address, namespace=at.namespace)
        return self._client

    async def over(self) -> None:
        """Wait until nothing is driven for Temporal any more."""
        if self._driving:
            await self._idle.wait()

    async def announce(self, run: RunId) -> None:
        """Have `run` placed. If that fails now, the next look at the store tries it again."""
        try:
            agent = (await self._store.row(run)).head.agent
            for _ in range(TRIES):
                if await self._placed(run, agent) or not self._temporal.just_rested(run):
                    return
                await anyio.sleep(TRY_S)  # the workflow of its last time is about to end
        except (RPCError, RuntimeError, MidrunError) as error:
            log.warning("run %s waits for its place: %s", run, error)
        else:
            self._temporal.forget(run)

    async def _placed(self, run: RunId, agent: str) -> bool:
        """Ask for a place; False: there is a workflow of this run already."""
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
        """Drive a run until it rests, or until this process is left.

        Losing Temporal's heartbeat does not stop it: whoever has the lease goes on, and the
        next attempt waits for that.
        """
        if not self._driving:
            self._idle = anyio.Event()
        self._driving += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._beat)
                tasks.start_soon(_until, self.leaving.wait, tasks)
                tasks.start_soon(_until, lambda: self._rested(RunId(name)), tasks)
        finally:
            self._driving -= 1
            if not self._driving:
                self._idle.set()
        if self.leaving.is_set():
            soon = timedelta(seconds=RETRY_S)
            raise ApplicationError("the worker stands down", next_retry_delay=soon)
        self._temporal.rested(RunId(name))

    async def _beat(self) -> None:
        while True:
            activity.heartbeat()
            await anyio.sleep(self._temporal.silence_s() / 4)

    async def _rested(self, run: RunId) -> None:
        """Drive `run` whenever nobody else does, until it cannot be driven any more."""
        while True:
            await self._local.driven(run)
            try:
                row = await self._store.row(run)
            except RunNotFound:
                return
            except MidrunError as error:
                log.warning("run %s cannot be looked at: %s", run, error)
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
