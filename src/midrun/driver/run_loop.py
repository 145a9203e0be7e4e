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
3. `list_effects` returns `AbortCall`, which needs no entry. `CallDispatcher.apply` aborts the
   call and starts its grace. An async tool is cancelled, a process gets SIGTERM. A thread
   cannot be stopped.
4. The tool ends within its grace, with any outcome. Or the dispatcher abandons it after the
   grace, as *unknown*. Either way a driver input wakes the loop, which appends the outcome
   together with the start of the first undo.
5. Undos run one at a time, each journaled before it starts. When none is left, `advance`
   returns `RunCancelled`. That entry ends the lease as well, and the loop returns.

**If the worker is killed in the middle**, the journal keeps all that it had appended, and the
run stays *cancelling*. Another worker takes the lease when it has expired, or sooner if the
death is proved. `LeaseTaken` and `CallUnknown` for the tool (`UndoUnknown` for an undo) are one
append. An unknown call of a cancelled run is undone like one that was done, unless its undo is
declared unsafe for that (`undo_unknown=False`): then it is residue. An unknown undo is repeated
with its key. So the cancel continues at step 5, and ends with the same entry. If the kill comes
before step 1 is stored, there is no cancel: the sender has no receipt, and can send the control
again with the same request id.

**A pause** takes steps 1 to 3. It aborts a tool only with `now=True`, or if the tool has saved
its progress. It waits for the end of other tools, and of those that do not stop. Then
`RunPaused` is appended together with the last outcome.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final, assert_never

import anyio

from midrun.agents.agent import Agent
from midrun.codec.snapshot import find_next_snapshot_seq
from midrun.core.controls import Halt
from midrun.core.driver_inputs import TakeLease
from midrun.core.entries import RunFailed
from midrun.core.ids import SEQ_ZERO, Micros, Seq
from midrun.core.run_head import build_head
from midrun.core.scheduler import DriverEffect
from midrun.core.session import (
    AppendBatch,
    Appended,
    Batch,
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
    starts_model_call,
)
from midrun.core.state import CallState, State
from midrun.core.values import NO_SPEND, Actor, CallPurpose, Spend, WorkKind
from midrun.driver.context import DriverContext, Quotas
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

_GET_INPUT: Final = attrgetter("driver_input")

STORE_RETRY_S: Final = 0.25
"""Seconds between two attempts to use a store that cannot read or write at present."""


class RunLoop:
    """Drives one run until it rests, ends, or another worker holds its lease.

    `snapshot_seq` is the seq of the snapshot that `state` was loaded from, if it is known.
    """

    def __init__(
        self,
        context: DriverContext,
        agent: Agent,
        state: State,
        *,
        snapshot_seq: Seq = SEQ_ZERO,
    ) -> None:
        self._context = context
        self._agent = agent
        self._run_id = state.run
        self._wakeup = Wakeup()  # set for each piece of news; a wait resets it
        self._dispatcher = CallDispatcher(context, agent, state.run, self._wakeup)
        self._suspects = SuspectCalls(context.suspect_gate, state.run, self._wakeup)
        take_lease = TakeLease(
            holder=context.heartbeat.holder_name, agent_fingerprint=agent.fingerprint
        )
        may_start = (
            self._suspects.may_start if agent.program is None else self._may_start_in_program
        )
        self._session = Session(state, take_lease, self._compute_reserve, may_start)
        self._lease: Lease | None = None
        self._turn_began = context.clock()
        self._had_unjournaled_work = False  # when the turn began
        self._last_append: AppendResult | None = None
        self.snapshot_seq = snapshot_seq  # the seq of the newest snapshot ...
        self._next_snapshot_seq = find_next_snapshot_seq(snapshot_seq)  # ... and of the next

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
        if self._session.take_notice(JournalGrew(seq=seq)):
            self._wakeup.set()

    def halt_set(self, scope: str, by: str, reason: str = "") -> None:
        """Note that an operator's halt covers the run; the next append records it."""
        self._session.take_notice(HaltSet(halt=_make_halt(scope, by, reason)))
        self._wakeup.set()

    def stand_down(self, reason: str) -> None:
        """Give the run back soon, so that another worker can continue it."""
        self._session.take_notice(StandDownRequested(reason=reason))
        self._wakeup.set()

    def fence(self) -> None:
        """Stop at once because the lease may be lost; begin no other append under it."""
        # First the session, then the calls: an end that one of them submits while it is stopped
        # must not be appended under the old lease.
        self._session.take_notice(LeaseLost())
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
            result: Result = self._collect_inputs()
            while True:
                step = self._session.receive(result, self._turn_began)
                operation = step.operation
                # Nearly all steps are an append, and then a wait for news. They are done here
                # and not in `_perform`: a task that wakes up resumes each coroutine that
                # awaits, and that would be one more.
                if isinstance(operation, AppendBatch) and not step.is_leaving:
                    result = await self._append(operation)
                    continue
                self._start_and_stop_calls(step)
                if isinstance(operation, WaitForNews):
                    seq = self._session.state.seq
                    if seq >= self._next_snapshot_seq:
                        await self._save_snapshot()
                    await self._wakeup.wait(
                        self._suspects.wait_s
                        if operation.until is None
                        else self._compute_wait_s(operation.until)
                    )
                    result = self._collect_inputs()
                elif isinstance(operation, Finish):
                    return
                else:
                    result = await self._perform(operation)
        except StaleEpoch:
            return  # another worker has taken the lease, and drives the run
        finally:
            # In the usual case nothing is in flight here. After an error, calls may be: they
            # must not outlive the loop that journals their outcomes.
            self._dispatcher.close()
            self._suspects.release_gate()
            self._context.drop_files(self._run_id)
            self._context.heartbeat.lease_released()

    async def _perform(
        self, operation: ReadJournal | AppendBatch | Proceed | WaitForStore
    ) -> Result:
        """Perform `operation` and return its result."""
        match operation:
            case AppendBatch():
                return await self._append(operation)
            case ReadJournal(after=after):
                return await self._read(after)
            case Proceed():
                return self._collect_inputs()
            case WaitForStore():
                # No call starts meanwhile, and inputs are kept until they can be written. If
                # the store stays away for as long as a lease, the heartbeat fences this loop.
                await anyio.sleep(STORE_RETRY_S)
                return self._collect_inputs()
            case _:
                assert_never(operation)

    def _compute_wait_s(self, until: Micros) -> float:
        """Return the seconds until a timer or a retry, or until the suspect gate is free."""
        until_s, gate_s = (until - self._context.clock()) / 1e6, self._suspects.wait_s
        return until_s if gate_s is None else min(gate_s, until_s)

    def _collect_inputs(self) -> Ready:
        """Begin a turn: return the inputs that have come."""
        self._turn_began = self._context.clock()
        # Inputs stay in `pending_inputs` until they are recorded or late. More may arrive
        # meanwhile; a turn of the session handles exactly those that it was given.
        self._suspects.wait_s = None
        self._had_unjournaled_work = self._dispatcher.has_unjournaled_work
        pending = self._dispatcher.pending_inputs
        return Ready(
            inputs=tuple(map(_GET_INPUT, pending)), unjournaled_work=self._had_unjournaled_work
        )

    def _start_and_stop_calls(self, step: Step) -> None:
        """Start and stop the calls that `step` names, and drop the inputs that it recorded."""
        state = self._session.state
        if step.has_changed:
            # The store's announcement of our own append may have come before `state` was set:
            # waiters that looked at this loop's state then saw the old phase.
            self._context.change_notifier.notify(self._run_id)
        if step.is_leaving:
            self._dispatcher.begin_shutdown()
        # If `fence` was called during the append, the dispatcher is closed and makes none of
        # these calls; the next lease closes them as unknown.
        if step.appended:
            self._dispatcher.start(step.appended, state)
        if step.recorded_count:
            self._dispatcher.remove_inputs(step.recorded_count, step.late)
        if isinstance(step.operation, WaitForNews | Finish):
            # Hooks are started only below, so none has begun since the inputs were collected.
            if self._had_unjournaled_work:
                self._dispatcher.stop_unwanted_work(
                    step.effects, state, is_leaving=step.is_leaving
                )
            effects: Sequence[DriverEffect] = step.effects
            if effects or self._suspects.has_acquired:
                effects = self._suspects.drop_waiting_checks(effects, state)
            if effects or self._dispatcher.has_sent_control:
                self._dispatcher.apply(effects, state)
            if self._agent.program is not None:
                self._dispatcher.update_program(step.effects, state)

    def _may_start_in_program(self, call: CallState | None, work_kind: WorkKind) -> bool:
        """Tell whether a call of a hosted program may start: the program must wait for it."""
        if work_kind == "call" and not self._dispatcher.may_start(call):
            return False
        return self._suspects.may_start(call, work_kind)

    def _compute_reserve(self, state: State, purpose: CallPurpose) -> Spend | RunFailed:
        """Return the spend to reserve for a model call of a run with a cap on spend."""
        if self._agent.program is not None:
            return NO_SPEND  # the program calls its models itself: there is no estimate
        try:
            # An agent that is gone is noticed when its call is made.
            agent = self._agent.family.get(state.speaker_name, self._agent)
            prompt = build_prompt(agent, state, condense=purpose == "condense")
            # Each attempt may take another model: reserve enough for the most expensive one.
            estimates = [m.reserve(prompt) for m in self._context.get_models(agent)]
            return Spend(
                tokens=max(each.tokens for each in estimates),
                cost=max(each.cost for each in estimates),
            )
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
        batch = operation.batch
        # Calls that this batch starts compare this moment with the time at which they are
        # really made. If the event loop was blocked in between, they ask the store whether the
        # lease is still there (`CallDispatcher._is_lease_stored`). The heartbeat's clock also
        # counts while the machine sleeps.
        self._dispatcher.append_began = self._context.heartbeat.clock()
        quotas = self._context.quotas
        if quotas is not None and starts_model_call(batch.entries):
            refused = await self._compare_with_quotas(quotas, batch)
            if refused is not None:
                return refused
        try:
            if operation.lease == "take":
                appended = await self._take_lease(batch)
            else:
                appended = await self._context.store.append(
                    self._run_id,
                    batch.entries,
                    after=batch.base.seq,
                    lease=self._lease if operation.lease == "held" else None,
                    head=build_head(batch.state),
                    at=batch.now,
                    files=self._dispatcher.collect_files(),
                )
        except SeqConflict:
            return NotAppended(reason="conflict")
        except HaltInForce as halt:
            halted = _make_halt(halt.scope, halt.by, halt.reason)
            return NotAppended(reason="halted", halt=halted)
        # These two errors promise that nothing was written. `StoreUnreachable` promises
        # nothing: the commit may have happened, and only its answer is lost.
        except (StoreBusy, StoreFull):
            return NotAppended(reason="unavailable")
        except StoreUnreachable:
            return NotAppended(reason="unknown")
        except LeaseHeld:
            return NotAppended(reason="leased")
        if quotas is not None:
            quotas.add_spend(batch.base, batch.state)
        self._last_append = appended
        lease = None if operation.lease == "none" else self._lease
        return Appended(at=appended.at, epoch=lease.epoch if lease else None)

    async def _compare_with_quotas(self, quotas: Quotas, batch: Batch) -> NotAppended | None:
        """Compare the spend with the quotas; return the reason not to append `batch`."""
        try:
            quota = await quotas.find_used_spend(batch.base, batch.state)
        except (StoreBusy, StoreFull, StoreUnreachable):
            return NotAppended(reason="unavailable")
        if quota:
            return NotAppended(reason="quota", quota=quota)
        # `fence` may have been called meanwhile. Then nothing may be appended under the lease
        # any more: the session ends in its next turn.
        return NotAppended(reason="conflict") if self._session.is_lease_lost else None

    async def _take_lease(self, batch: Batch) -> AppendResult:
        # The store assigns the epoch of a new lease.
        # The limits are checked in the transaction that takes the lease: two workers that see
        # the last free place at the same time cannot both get it.
        self._lease, appended = await self._context.store.take_lease(
            self._run_id,
            batch.entries,
            after=batch.base.seq,
            holder=self._context.heartbeat.holder_name,
            head=build_head(batch.state),
            limits=self._context.get_limits(batch.base),
            at=batch.now,
        )
        self._dispatcher.epoch = self._lease.epoch
        return appended

    async def _save_snapshot(self) -> None:
        appended = self._last_append
        if appended is not None:
            self.snapshot_seq = await save_snapshot_if_due(
                self._context.store, self.state, appended, last_snapshot_seq=self.snapshot_seq
            )
            self._next_snapshot_seq = find_next_snapshot_seq(self.snapshot_seq)


def _make_halt(scope: str, by: str, reason: str) -> Halt:
    return Halt(by=Actor(name=by, role="operator"), scope=scope, reason=reason)
