"""The run loop: drives one run under one lease, from taking the lease to giving it back.

The loop is the shell around `core.session.Session`, which decides everything: it performs the
operation of each step (read, append, wait), hands the calls that have started to the
`CallDispatcher`, and returns the result of the operation as the next event. It has no rules of
its own.

**Example: Cancel is pressed while a tool is in flight.**

1. `append_input` decides the control and appends `CancelRequested`, without a lease. From this
   entry on, `advance` starts no calls. If this loop is about to append a start, its append
   conflicts.
2. The worker calls `journal_grew`: at once if the control came through this process, else when
   the notification of the store arrives. The loop wakes up and reads the entry.
3. `list_effects` returns `AbortCall`, which needs no entry. `CallDispatcher.apply` cancels the
   scope of the call and starts its grace. The code that waits in that scope stops the tool: it
   cancels the task, or sends SIGTERM. A thread cannot be stopped.
4. The tool ends within its grace, with any outcome. Or the dispatcher abandons it after the
   grace, as *unknown*. Either way a driver input wakes the loop, which appends the outcome
   together with the start of the first undo.
5. Undos run one at a time, each journaled before it starts. When none is left, `advance`
   returns `RunCancelled`. That entry ends the lease as well, and the loop returns.
"""

from typing import Final, assert_never

import anyio

from midrun.agents.agent import Agent
from midrun.codec.snapshot import is_snapshot_due
from midrun.core.controls import Halt
from midrun.core.driver_inputs import TakeLease
from midrun.core.entries import RunFailed
from midrun.core.ids import SEQ_ZERO, CallId, Seq
from midrun.core.run_head import build_head
from midrun.core.session import (
    AppendBatch,
    Appended,
    Finish,
    HaltSet,
    JournalGrew,
    JournalRead,
    LeaseLost,
    NotAppended,
    Proceed,
    ReadFailed,
    ReadJournal,
    Ready,
    Result,
    Session,
    StandDownRequested,
    Step,
    WaitForNews,
    WaitForStore,
)
from midrun.core.state import State
from midrun.core.values import NO_SPEND, Actor, CallPurpose, OperationKind, Spend
from midrun.driver.context import DriverContext
from midrun.driver.dispatcher import CallDispatcher
from midrun.driver.journal_writer import save_snapshot_if_due
from midrun.driver.model_calls import build_prompt
from midrun.driver.notifications import Wakeup
from midrun.driver.suspect_calls import SuspectCalls
from midrun.driver.user_code import format_exception, must_reraise
from midrun.errors import (
    HaltInForce,
    LeaseHeld,
    SeqConflict,
    StaleEpoch,
    StoreBusy,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.store import AppendResult, Lease

STORE_RETRY_S: Final = 0.25
"""Seconds between two attempts to use a store that cannot read or write at present."""


class RunLoop:
    """Drives one run until it rests, ends, or another worker holds its lease."""

    def __init__(self, context: DriverContext, agent: Agent, state: State) -> None:
        self._context = context
        self._agent = agent
        self._run_id = state.run
        self._wakeup = Wakeup()
        self._dispatcher = CallDispatcher(context, agent, state.run, self._wakeup)
        self._suspects = SuspectCalls(context.suspect_gate, state.run, self._wakeup)
        take_lease = TakeLease(
            holder=context.heartbeat.holder_name, agent_fingerprint=agent.fingerprint
        )
        self._session = Session(state, take_lease, self._compute_reserve, self._may_start)
        self._lease: Lease | None = None
        self._last_append: AppendResult | None = None
        self._snapshot_seq = SEQ_ZERO  # the seq of the newest snapshot

    @property
    def state(self) -> State:
        """The fold of the journal, as far as this loop has read it."""
        return self._session.state

    @property
    def is_behind(self) -> bool:
        """Whether the journal is known to have entries that were not read yet."""
        return self._session.is_behind

    # ── notifications from the worker; none of these methods waits ────────────────────────

    def journal_grew(self, seq: Seq) -> None:
        """Note that the journal has grown to `seq`, and wake the loop."""
        if self._session.notice(JournalGrew(seq=seq)):
            self._wakeup.set()

    def halt_set(self, scope: str, by: str, reason: str = "") -> None:
        """Note that an operator's halt covers the run; the next append records it."""
        self._session.notice(HaltSet(halt=_make_halt(scope, by, reason)))
        self._wakeup.set()

    def stand_down(self, reason: str) -> None:
        """Give the run back soon, so that another worker can continue it."""
        self._session.notice(StandDownRequested(reason=reason))
        self._wakeup.set()

    def fence(self) -> None:
        """Stop at once because the lease may be lost; begin no other append under it."""
        self._session.notice(LeaseLost())
        self._dispatcher.close()
        self._wakeup.set()

    # ── the loop ──────────────────────────────────────────────────────────────────────────

    async def run(self) -> None:
        """Take the lease if it is free, and drive until there is nothing left to drive.

        Raises:
            NoRoom: a concurrency limit is reached; the run stays queued.
        """
        # Send a heartbeat first: without a fresh one, other workers may take the new lease at
        # once. And count the lease before it is taken, so that the heartbeat thread keeps it
        # alive from its first moment on.
        await self._context.heartbeat.ensure_fresh()
        self._context.heartbeat.lease_taken()
        try:
            result: Result | None = self._collect_inputs()
            while result is not None:
                result = await self._take_step(result)
        except StaleEpoch:
            return  # another worker has taken the lease; the run is its business now
        finally:
            # In the usual case nothing is in flight here. After an error, calls may be: they
            # must not outlive the loop that journals their outcomes.
            self._dispatcher.close()
            self._suspects.release_gate()
            self._context.heartbeat.lease_released()

    async def _take_step(self, result: Result) -> Result | None:
        """Do the step that follows `result`; return the result of its operation, or None."""
        step = self._session.receive(result, self._context.clock())
        self._start_work(step)
        match step.operation:
            case ReadJournal(after=after):
                return await self._read(after)
            case AppendBatch():
                return await self._append(step.operation)
            case Proceed():
                return self._collect_inputs()
            case WaitForStore():
                # No call starts meanwhile, and inputs are kept until they can be written. If
                # the store stays away for as long as a lease, the heartbeat fences this loop.
                await anyio.sleep(STORE_RETRY_S)
                return self._collect_inputs()
            case WaitForNews(until=until):
                await self._save_snapshot()
                await self._wait(until)
                return self._collect_inputs()
            case Finish():
                return None
            case _:
                assert_never(step.operation)

    def _collect_inputs(self) -> Ready:
        # Inputs stay in `pending_inputs` until they are settled. More may arrive meanwhile; a
        # turn of the session handles exactly those that it was given.
        self._suspects.reset()
        pending = self._dispatcher.pending_inputs
        return Ready(
            inputs=tuple([one.driver_input for one in pending]),
            hooks_running=self._dispatcher.has_hooks_running,
        )

    def _start_work(self, step: Step) -> None:
        """Do everything in `step` that needs no waiting."""
        if step.has_changed:
            # The store's announcement of our own append may have come before `state` was set:
            # waiters that looked at this loop's state then saw the old phase.
            self._context.change_notifier.notify(self._run_id)
        if step.stops_calls:
            self._dispatcher.begin_shutdown()
        # If `fence` was called during the append, the dispatcher is closed and makes none of
        # these calls; the next lease closes them as unknown.
        if step.appended:
            self._dispatcher.start(step.appended, self.state)
        self._dispatcher.settle_inputs(step.settled_count, step.late)
        if isinstance(step.operation, WaitForNews | Finish):
            self._dispatcher.stop_unwanted_hooks(
                step.effects, self.state, is_leaving=step.stops_calls
            )
            effects = self._suspects.runnable(step.effects, self.state)
            self._dispatcher.apply(effects, self.state)
            self._dispatcher.update_program(effects, self.state)

    async def _wait(self, until: int | None) -> None:
        """Wait for news, or until a time: of a timer, of a retry, or of the suspect gate."""
        waits = [] if until is None else [(until - self._context.clock()) / 1e6]
        waits += [] if self._suspects.wait_s is None else [self._suspects.wait_s]
        await self._wakeup.wait(min(waits, default=None))

    def _may_start(self, state: State, call: CallId, operation: OperationKind) -> bool:
        if operation != "call":
            return True
        return self._dispatcher.may_start(state, call) and not self._suspects.must_wait(
            state, call
        )

    def _compute_reserve(self, state: State, purpose: CallPurpose) -> Spend | RunFailed:
        """Return the spend to reserve for a model call of a run with a cap on spend."""
        if self._agent.program is not None:
            return NO_SPEND  # the program calls its models itself: there is no estimate
        try:
            prompt = build_prompt(self._agent, state, condense=purpose == "condense")
            return self._context.get_model(self._agent).reserve(prompt)
        except BaseException as error:
            # `Model.reserve` is user code: its error fails this run, and no other.
            if must_reraise(error):
                raise
            return RunFailed(error=format_exception(error), code="model_error")

    # ── the store ─────────────────────────────────────────────────────────────────────────

    async def _read(self, after: Seq) -> JournalRead | ReadFailed:
        try:
            return JournalRead(
                records=await self._context.store.read(self._run_id, after=after)
            )
        except (StoreBusy, StoreFull, StoreUnreachable):
            return ReadFailed()

    async def _append(self, operation: AppendBatch) -> Appended | NotAppended:
        """Append the batch of `operation`.

        Raises:
            StaleEpoch: another worker has taken the lease.
            NoRoom: a concurrency limit is reached.
        """
        try:
            appended = await self._commit(operation)
        except SeqConflict:
            return NotAppended(reason="conflict")
        except HaltInForce as halt:
            halted = _make_halt(halt.scope, halt.by, halt.reason)
            return NotAppended(reason="halted", halt=halted)
        except (StoreBusy, StoreFull):
            return NotAppended(reason="unavailable")
        except StoreUnreachable:
            return NotAppended(reason="unknown")
        except LeaseHeld:
            return NotAppended(reason="leased")
        self._last_append = appended
        lease = None if operation.lease == "none" else self._lease
        return Appended(at=appended.at, epoch=lease.epoch if lease else None)

    async def _commit(self, operation: AppendBatch) -> AppendResult:
        batch, store, head = (
            operation.batch,
            self._context.store,
            build_head(operation.batch.state),
        )
        after = batch.base.seq
        if operation.lease != "take":
            lease = self._lease if operation.lease == "held" else None
            return await store.append(
                self._run_id, batch.entries, after=after, lease=lease, head=head, at=batch.now
            )
        # The store assigns the epoch of a new lease.
        self._lease, appended = await store.take_lease(
            self._run_id,
            batch.entries,
            after=after,
            holder=self._context.heartbeat.holder_name,
            head=head,
            limits=self._context.get_limits(batch.base),
        )
        self._dispatcher.epoch = self._lease.epoch
        return appended

    async def _save_snapshot(self) -> None:
        """Save a snapshot if the journal has grown enough since the last one."""
        appended = self._last_append
        if appended is not None and is_snapshot_due(
            seq=self.state.seq, snapshot=self._snapshot_seq
        ):
            self._snapshot_seq = await save_snapshot_if_due(
                self._context.store, self.state, appended, last_snapshot_seq=self._snapshot_seq
            )


def _make_halt(scope: str, by: str, reason: str) -> Halt:
    return Halt(by=Actor(name=by, role="operator"), scope=scope, reason=reason)
