"""The parts of a worker that a run loop or a dispatcher needs, without the worker itself.

A store whose appends a test can precede or fail, a driver context with clocks that it moves, a
dispatcher for calls that have just started, and tools and models that misbehave.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace as replace_fields
from datetime import timedelta
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from midrun import Agent, Tool, tool
from midrun.core.controls import Control
from midrun.core.driver_inputs import CloseCall, CloseCleanup, DriverInput, TakeLease
from midrun.core.entries import Entry, LeaseTaken, RunStarted, UndoStarted
from midrun.core.evolve import evolve, fold
from midrun.core.ids import SEQ_ZERO, CallId, Epoch, Micros, RunId, Seq
from midrun.core.run_head import Head, build_head
from midrun.core.scheduler import AbortCall, AbortReason, CheckCall
from midrun.core.session import Batch
from midrun.core.state import State
from midrun.core.values import RequestedCall as RequestedUse
from midrun.core.values import Spend
from midrun.driver.call_contexts import CallContexts
from midrun.driver.context import DriverContext
from midrun.driver.dispatcher import CallDispatcher
from midrun.driver.heartbeat import LeaseHeartbeat
from midrun.driver.journal_writer import append_input, load_run_state
from midrun.driver.live import LiveOutput
from midrun.driver.notifications import ChangeNotifier, Wakeup
from midrun.driver.redaction import SecretRegistry
from midrun.driver.run_loop import RunLoop
from midrun.driver.subprocess.zygote_client import Zygote
from midrun.driver.user_code import UserTasks
from midrun.errors import ModelFailed
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Model, Piece, Prompt
from midrun.ports.store import AppendResult, Lease, RunQuery
from midrun.runs.verification import verify_run
from midrun.stores.memory import MemoryStore
from midrun.testing.scenario import RUN, Scenario, given
from midrun.testing.store_suite.fixtures import ManualClock
from midrun.workers.quotas import QuotaLimiter, parse_quota_rules

PATIENCE_S: Final = 60.0
"""Seconds after which a fact that a test waits for counts as one that never comes true."""

HOLDER: Final = "worker_1"
OTHER_HOLDER: Final = "worker_2"
LONG_GRACE: Final = timedelta(hours=1)
"""A grace that no test lives to see the end of."""

SHORT_GRACE: Final = timedelta(milliseconds=1)
"""A grace that is over at once."""

CALL: Final = CallId("c2")
"""The first tool call of a run; `c1` is the model call that asked for it."""

Action = Callable[[], Awaitable[object]]
E = TypeVar("E", bound=Entry)


class InterceptedStore(MemoryStore):
    """A store in memory that runs an action of the test before or after an append.

    An action that raises stands for a store that fails: *before* the append nothing is
    applied, *after* it only the reply is lost. Each action runs once.
    """

    def __init__(self, clock: Callable[[], Micros]) -> None:
        super().__init__(clock=clock)
        self._before: list[tuple[type[Entry], Action]] = []
        self._after: list[tuple[type[Entry], Action]] = []

    def before(self, kind: type[Entry], action: Action) -> None:
        """Run `action` before the next append that has an entry of this kind."""
        self._before.append((kind, action))

    def after(self, kind: type[Entry], action: Action) -> None:
        """Run `action` after the next append that has an entry of this kind."""
        self._after.append((kind, action))

    def hold(self, kind: type[Entry]) -> tuple[anyio.Event, anyio.Event]:
        """Hold the next append that has an entry of this kind; return *reached*, *allowed*."""
        reached, allowed = anyio.Event(), anyio.Event()

        async def wait() -> None:
            reached.set()
            await allowed.wait()

        self.before(kind, wait)
        return reached, allowed

    async def append(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq | None,
        lease: Lease | None,
        head: Head | None,
        starts: bool = False,
        at: Micros | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        await _run_first(self._before, entries)
        result = await super().append(
            run,
            entries,
            after=after,
            lease=lease,
            head=head,
            starts=starts,
            at=at,
            files=files,
        )
        await _run_first(self._after, entries)
        return result

    async def take_lease(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq,
        holder: str,
        head: Head,
        limits: Mapping[str, int] | None = None,
        at: Micros | None = None,
    ) -> tuple[Lease, AppendResult]:
        await _run_first(self._before, entries)
        result = await super().take_lease(
            run, entries, after=after, holder=holder, head=head, limits=limits, at=at
        )
        await _run_first(self._after, entries)
        return result


async def _run_first(
    actions: list[tuple[type[Entry], Action]], entries: Sequence[Entry]
) -> None:
    for number, (kind, action) in enumerate(actions):
        if any(isinstance(entry, kind) for entry in entries):
            del actions[number]
            await action()
            return


class DriverParts:
    """A driver context with a store in memory, a clock and a heartbeat that tests move.

    `boot_s` is the clock of the heartbeat. `lapses` counts how often the leases were reported
    as lost.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self.clock = ManualClock()
        self.boot_s = 1000.0
        self.lapses = 0
        self.limits: dict[str, int] = {}
        self.store = InterceptedStore(self.clock)
        self.heartbeat = LeaseHeartbeat(
            self.store,
            HOLDER,
            ttl=timedelta(hours=1),
            clock=lambda: self.boot_s,
            on_lease_lost=self._count_lapse,
        )
        self.live_output = LiveOutput()
        self.user_tasks = UserTasks(tasks)
        self.tasks = tasks
        self.context = DriverContext(
            store=self.store,
            heartbeat=self.heartbeat,
            agents={},
            get_models=_get_models,
            zygote=Zygote(),
            user_tasks=self.user_tasks,
            call_contexts=CallContexts(tasks),
            thread_limiter=anyio.CapacityLimiter(math.inf),
            live_output=self.live_output,
            change_notifier=ChangeNotifier(self.store),
            secret_registry=SecretRegistry(True, b"key"),  # noqa: FBT003 - the public argument
            on_appended=lambda _run, _state: None,
            get_limits=lambda _: self.limits,
            clock=self.clock,
            random_unit=lambda: 0.0,
            task_group=tasks,
        )

    def set_quotas(self, *words: str) -> None:
        """Bound the runs of loops that are created from now on."""
        limiter = QuotaLimiter(self.store, parse_quota_rules(words), self.clock)
        self.context = replace_fields(self.context, quotas=limiter)

    def _count_lapse(self) -> None:
        self.lapses += 1

    async def create_loop(
        self, agent: Agent, run: RunId = RUN, *, snapshot_seq: Seq = SEQ_ZERO
    ) -> RunLoop:
        """Create a run of `agent`, and return its run loop; it is not started."""
        started = RunStarted(
            agent=agent.name, task="go", agent_fingerprint=agent.fingerprint, stop=agent.stop
        )
        state = evolve(State(run=run), started, self.clock())
        await self.store.create(run, [started], head=build_head(state))
        state = await load_run_state(self.store, run)
        return RunLoop(self.context, agent, state, snapshot_seq=snapshot_seq)

    async def start_loop(self, agent: Agent) -> tuple[RunLoop, anyio.Event]:
        """Create a run, and start its run loop; the event is set when the loop returns."""
        loop, returned = await self.create_loop(agent), anyio.Event()

        async def run() -> None:
            await loop.run()
            returned.set()

        self.tasks.start_soon(run)
        return loop, returned

    async def store_journal(self, scenario: Scenario) -> None:
        """Store the journal of a scenario: created, taken by this worker, and continued."""
        states = [fold(RUN, scenario.records[:end]) for end in (1, 2, len(scenario.records))]
        first, taken, *rest = scenario.entries
        created, leased, last = (build_head(state) for state in states)
        await self.store.create(RUN, [first], head=created)
        lease, _ = await self.store.take_lease(
            RUN, [taken], after=Seq(1), holder=HOLDER, head=leased
        )
        await self.store.append(RUN, rest, after=Seq(2), lease=lease, head=last)

    async def send(self, control: Control, loop: RunLoop | None = None) -> None:
        """Append a control without a lease, and tell `loop` if it is given."""
        state = await load_run_state(self.store, RUN)
        result = await append_input(self.store, state, control, self.clock)
        assert result.entries, f"{control}: {result.verdict}"
        if loop is not None:
            loop.journal_grew(result.after.seq)

    async def take_lease_elsewhere(self, run: RunId = RUN) -> None:
        """Let another worker take the run, as if the heartbeats of this one had stopped."""
        await self.store.release_leases(HOLDER)
        await self.store.record_heartbeat(OTHER_HOLDER, ttl=LONG_GRACE)
        batch = Batch(await load_run_state(self.store, run), self.clock())
        batch.add(TakeLease(holder=OTHER_HOLDER))
        await self.store.take_lease(
            run,
            batch.entries,
            after=batch.base.seq,
            holder=OTHER_HOLDER,
            head=build_head(batch.state),
        )

    async def move_clock(self, seconds: float) -> None:
        """Move the clock; async, so that it can be an action of the store."""
        await checkpoint()
        self.clock.move(seconds)

    async def read_entries(self) -> list[Entry]:
        """Return the journal of the run."""
        return [record.entry for record in await self.store.read(RUN)]

    async def read_kinds(self) -> list[str]:
        """Return the names of the entries of the run."""
        return [type(entry).__name__ for entry in await self.read_entries()]

    async def find_entries(self, kind: type[E]) -> list[E]:
        """Return the entries of one kind."""
        return [entry for entry in await self.read_entries() if isinstance(entry, kind)]

    async def wait_for_entry(self, kind: type[E], count: int = 1) -> E:
        """Wait until the journal has `count` entries of this kind, and return the last."""
        while len(found := await self.find_entries(kind)) < count:
            await checkpoint()
        return found[count - 1]


def _get_models(agent: Agent) -> tuple[Model, ...]:
    assert not isinstance(agent.model, str)
    return (agent.model,)


class DispatcherTest:
    """A dispatcher, and a journal in which calls of its agent have just started."""

    def __init__(self, parts: DriverParts, agent: Agent) -> None:
        self.agent = agent
        self.wakeup = Wakeup()
        self.dispatcher = CallDispatcher(parts.context, agent, RUN, self.wakeup)
        self.dispatcher.epoch = Epoch(1)
        started = RunStarted(agent=agent.name, task="go", by="ann", stop=agent.stop)
        self.scenario: Scenario = given(started, LeaseTaken(epoch=Epoch(1), holder=HOLDER))

    def start_model(self) -> None:
        """Start the first model call."""
        self.scenario = self.scenario.starts("c1")
        self.dispatcher.start(self.scenario.entries[-1:], self.scenario.state)

    def start_tools(self, *uses: Use) -> None:
        """Let the model ask for these calls, and start them."""
        wanted = [RequestedUse(tool=use.tool, args=use.args) for use in uses]
        replied = self.scenario.replies(*(self.agent.complete_use(use) for use in wanted))
        self.scenario = replied.starts(*(f"c{number + 2}" for number in range(len(uses))))
        self.dispatcher.start(self.scenario.entries[-len(uses) :], self.scenario.state)

    def start_undo(self) -> None:
        """Start the undo of the first tool call."""
        self.dispatcher.start([UndoStarted(call=CALL)], self.scenario.state)

    def check(self) -> None:
        """Ask for the check of the first tool call, as every iteration of a run loop does."""
        self.dispatcher.apply([CheckCall(call=CALL)], self.scenario.state)

    def abort(self, reason: AbortReason) -> None:
        """Ask for the abort of the first tool call, as every iteration of a run loop does."""
        self.dispatcher.apply([AbortCall(call=CALL, reason=reason)], self.scenario.state)

    def list_inputs(self) -> list[DriverInput]:
        """Return the inputs that wait for the run loop."""
        return [pending.driver_input for pending in self.dispatcher.pending_inputs]

    async def wait_for_inputs(self, count: int = 1) -> list[DriverInput]:
        """Wait for `count` inputs, and return them all."""
        await wait_until(lambda: len(self.dispatcher.pending_inputs) >= count)
        return self.list_inputs()

    async def wait_for_outcome(self) -> Entry:
        """Wait for the end of the first call that ends, and return its outcome."""
        (ended,) = await self.wait_for_inputs()
        assert isinstance(ended, CloseCall | CloseCleanup)
        return ended.outcome


Dispatch = Callable[[Agent], DispatcherTest]
"""Makes a dispatcher for an agent."""


def make_agent(*tools: Tool, grace: timedelta = LONG_GRACE) -> Agent:
    """Return an agent whose model does not matter."""
    return Agent("actor", model=ScriptedModel(["Done."]), tools=tools, grace=grace)


class UnstoppableTool:
    """A tool that ignores its abort until the test opens its gate."""

    def __init__(self, *, timeout: timedelta | None = None, read_only: bool = False) -> None:
        self.called, self.gate = anyio.Event(), anyio.Event()
        self.tool = tool(self._run, name="unstoppable", timeout=timeout, read_only=read_only)

    async def _run(self) -> str:
        """Wait for the gate behind a shield."""
        with anyio.CancelScope(shield=True):
            self.called.set()
            await self.gate.wait()
        return "done after all"


class ModelWithFaults(ScriptedModel):
    """A model whose first call fails, or whose estimate of a call raises."""

    def __init__(self, *turns: str, fails: bool = False, reserve_raises: bool = False) -> None:
        super().__init__(turns)
        self._fails = fails
        self._reserve_raises = reserve_raises

    def stream(
        self, prompt: Prompt
    ) -> AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]:
        if self._fails:
            self._fails = False
            raise ModelFailed("scripted", "overloaded", "busy", transient=True)
        return super().stream(prompt)

    def reserve(self, prompt: Prompt) -> Spend:
        if self._reserve_raises:
            raise ValueError("no estimate")
        return super().reserve(prompt)


@asynccontextmanager
async def open_driver_parts() -> AsyncIterator[DriverParts]:
    """Open the parts of a worker; afterwards stop all calls and verify the journals."""
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            parts = DriverParts(tasks)
            try:
                yield parts
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await parts.user_tasks.shut_down()
        for row in (await parts.store.list_runs(RunQuery(limit=10))).items:
            verdict = await verify_run(parts.store, row.run)
            assert verdict, str(verdict)


async def wait_until(fact: Callable[[], bool]) -> None:
    """Wait for a fact in this process that no event announces."""
    while not fact():
        await checkpoint()


async def let_others_run(turns: int = 50) -> None:
    """Give all other tasks many turns, before a test asserts that something did not happen."""
    for _ in range(turns):
        await checkpoint()


def raise_error(error: Exception) -> Action:
    """Return an action that raises `error`."""

    async def fail() -> None:
        await checkpoint()
        raise error

    return fail
