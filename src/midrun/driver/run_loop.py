"""The run loop: drives one run under one lease, from taking the lease to giving it back.

Each iteration (`RunLoop._run_once`) does the same five things:

1. **Read.** If the journal has grown, fold the new entries into `state`.
2. **Decide.** Build one `Batch` on top of `state`. First come the driver inputs of calls that
   have ended (`CallDispatcher.pending_inputs`), which `core.decide` decides. Then comes
   everything that follows from the journal alone (`core.scheduler.advance`): step boundaries,
   starts of calls, the end of the run. The loop has no rules of its own.
3. **Append.** Write the batch with one compare-and-append. The end of one call and the start of
   the next are one commit. If another writer appended first, nothing of the batch was applied:
   the loop reads on and decides again on the new state.
4. **Act.** Only now do the calls start that the batch recorded as started, and calls in flight
   are aborted if the state requires it.
5. **Wait** for the `Wakeup`: the journal grew, a call ended, a halt was set, a timer is due.

Two invariants follow. No call starts that the journal does not have as started. And no control
is overlooked: a control that was appended before the start of a call makes the append of that
start conflict.

**Example: Cancel is pressed while a tool is in flight.**

1. `append_input` decides the control and appends `CancelRequested`, without a lease. From this
   entry on, `advance` starts no calls. If this loop is about to append a start, its append
   conflicts.
2. The worker calls `journal_grew`: at once if the control came through this process, else when
   the notification of the store arrives. The loop wakes up and reads the entry.
3. `list_effects` returns `AbortCall`, which needs no entry. `CallDispatcher.apply` cancels the
   scope of the call and starts its grace. The code that waits in that scope stops the tool: it
   cancels the task, or sends SIGTERM. A thread cannot be stopped.
4. The tool ends within its grace, as *done* or *aborted*. Or the dispatcher abandons it after
   the grace, as *unknown*. Either way a driver input wakes the loop, which appends the outcome
   together with the start of the first undo.
5. Undos run one at a time, each journaled before it starts. When none is left, `advance`
   returns `RunCancelled`. That entry ends the lease as well, and the loop returns.
"""

from typing import Final

import anyio

from midrun.agents.agent import Agent
from midrun.codec.snapshot import is_snapshot_due
from midrun.core import controls as c
from midrun.core.driver_inputs import (
    AskPerson,
    CloseCall,
    DriverInput,
    StandDown,
    TakeLease,
    Wake,
)
from midrun.core.entries import CallAborted, RunFailed
from midrun.core.evolve import apply_entries, fold
from midrun.core.ids import SEQ_ZERO, CallId, Micros, Seq
from midrun.core.run_head import build_head
from midrun.core.scheduler import find_retry_time, find_wake_time, list_effects
from midrun.core.state import State
from midrun.core.transitions import Accepted, Refused
from midrun.core.values import Actor, CallPurpose, OperationKind, Phase, Spend
from midrun.driver.context import DriverContext
from midrun.driver.dispatcher import CallDispatcher
from midrun.driver.journal_writer import (
    Batch,
    append_input,
    refresh_state,
    save_snapshot_if_due,
)
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
    StoreError,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.store import AppendResult, Lease

STORE_RETRY_S: Final = 0.25
"""Seconds between two attempts to use a store that cannot read or write at present."""

TEMPORARY_STORE_ERRORS: Final = (StoreBusy, StoreFull, StoreUnreachable)


class RunLoop:
    """Drives one run until it rests, ends, or another worker holds its lease.

    `state` is the fold of the journal, as far as this loop has read it.
    """

    def __init__(self, context: DriverContext, agent: Agent, state: State) -> None:
        self.state = state
        self._context = context
        self._agent = agent
        self._wakeup = Wakeup()
        self._dispatcher = CallDispatcher(context, agent, state.run, self._wakeup)
        self._lease: Lease | None = None
        self._known_seq = state.seq  # the highest seq known to exist, read or not
        self._pending_halt: c.Halt | None = None  # a halt that is not in the journal yet
        self._snapshot_seq = SEQ_ZERO  # the seq of the newest snapshot
        self._wake_at: Micros | None = None  # when the next timer of the run is due
        self._suspects = SuspectCalls(context.suspect_gate, state.run, self._wakeup)
        self._stand_down_reason = (
            ""  # why the worker gives the run back; empty while it drives on
        )
        self._is_fenced = False

    @property
    def is_behind(self) -> bool:
        """Whether the journal is known to have entries that were not read yet."""
        return self._known_seq > self.state.seq

    # ── notifications from the worker; none of these methods waits ────────────────────────

    def journal_grew(self, seq: Seq) -> None:
        """Note that the journal has grown to `seq`, and wake the loop."""
        if seq > self._known_seq:
            self._known_seq = seq
            self._wakeup.set()

    def halt_set(self, scope: str, by: str, reason: str = "") -> None:
        """Note that an operator's halt covers the run; the next batch records it."""
        operator = Actor(name=by, role="operator")
        self._pending_halt = c.Halt(by=operator, scope=scope, reason=reason)
        self._wakeup.set()

    def stand_down(self, reason: str) -> None:
        """Give the run back soon, so that another worker can continue it."""
        self._stand_down_reason = reason
        self._wakeup.set()

    def fence(self) -> None:
        """Stop at once because the lease may be lost; begin no other append under it."""
        self._is_fenced = True
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
            while self._lease is None:
                if not await self._take_lease():
                    return
            while self._holds_lease():
                await self._run_once()
        except StaleEpoch:
            return  # another worker has taken the lease; the run is its business now
        finally:
            # In the usual case nothing is in flight here. After an error, calls may be: they
            # must not outlive the loop that journals their outcomes.
            self._dispatcher.close()
            self._suspects.release_gate()
            self._context.heartbeat.lease_released()

    def _holds_lease(self) -> bool:
        # The lease ends with an entry: when the run rests, or another worker takes it. So the
        # journal, as far as it was read, says whether this loop still holds it.
        state, lease = self.state, self._lease
        is_own_lease = lease is not None and state.is_leased and state.epoch == lease.epoch
        return is_own_lease and not self._is_fenced

    async def _take_lease(self) -> bool:
        """Append the lease and the first starts in one commit; False if it is not free.

        True with `_lease` still None means: try again. Another writer was first, or the store
        could not write.
        """
        await self._read_journal()
        batch = self._new_batch()
        take_lease = TakeLease(
            holder=self._context.heartbeat.holder_name,
            agent_fingerprint=self._agent.fingerprint,
        )
        if not isinstance(batch.add(take_lease), Accepted):
            return False
        # The calls that can start at once are in the same append, which saves one commit.
        self._derive_entries(batch)
        try:
            return await self._append(batch) or self._lease is None
        except LeaseHeld:
            return False

    async def _run_once(self) -> None:
        """Read, decide, append, act, and wait: one iteration, as the module describes it."""
        try:
            if self._wake_at is not None and self._wake_at <= self._context.clock():
                await self._append_due_timers()
            await self._read_journal()
        except TEMPORARY_STORE_ERRORS:
            # Calls in flight go on meanwhile, and none starts. If the store stays away for as
            # long as a lease, the heartbeat fences this loop.
            await anyio.sleep(STORE_RETRY_S)
            return
        # The entries just read may have ended the lease: the run came to rest, or another
        # worker took it.
        if not self._holds_lease():
            return
        batch = self._new_batch()
        # Inputs stay in `pending_inputs` until they are journaled. More may arrive during the
        # append; this iteration handles exactly those that it has seen here.
        inputs = tuple(self._dispatcher.pending_inputs)
        # `decide` refuses an input whose call the journal has closed by now. It may still tell
        # something about an effect, so it is reported as late below, and only after the append:
        # until then the decision rests on a state that may be outdated.
        late = [
            pending for pending in inputs if not self._add_input(batch, pending.driver_input)
        ]
        halt = self._add_halt(batch)
        self._suspects.reset()
        if self._stand_down_reason:
            self._add_stand_down(batch)
        else:
            self._derive_entries(batch)
        # After a failed append nothing below may happen: no call starts, no input is
        # removed. The next iteration reads on and decides everything again.
        if batch.entries and not await self._append(batch):
            return
        del self._dispatcher.pending_inputs[: len(inputs)]
        # A tool waits in `call.save` until its progress is durable, or refused.
        for pending in inputs:
            if pending.save_waiter is not None:
                pending.save_waiter.is_durable = pending not in late
                pending.save_waiter.done.set()
        for pending in late:
            self._dispatcher.report_late(pending)
        # Keep a halt that was set during the append: this batch does not have it.
        self._pending_halt = self._pending_halt if self._pending_halt is not halt else None
        # `_append` has started the calls of this batch. The effects that need no entry come
        # last: aborts, controls for child runs, checks, custom stop conditions.
        effects = list_effects(self.state)
        self._dispatcher.apply(self._suspects.runnable(effects, self.state), self.state)
        if self._holds_lease():
            await self._wakeup.wait(self._compute_wait_s())

    def _add_halt(self, batch: Batch) -> c.Halt | None:
        """Add the halt that covers the run to `batch`, and return it; None if there is none."""
        if self._pending_halt is not None:
            batch.add(self._pending_halt)
        return self._pending_halt

    async def _append_due_timers(self) -> None:
        """Append the entries of all timers that are due, without the lease.

        `Wake` is an input of the clock, not of the lease's holder. It expires asks, delivers
        scheduled messages, ends a pause with a time limit, and applies the time cap.
        """
        result = await append_input(
            self._context.store, self.state, Wake(), self._context.clock
        )
        self._wake_at = None
        self.state = result.after
        self._context.change_notifier.notify(self.state.run)

    def _add_input(self, batch: Batch, driver_input: DriverInput) -> bool:
        """Add an input to `batch`; False if its call was closed without it."""
        if not isinstance(batch.add(driver_input), Refused):
            return True
        if isinstance(driver_input, AskPerson):
            # The call asked a question and is over, but the run takes no questions any more:
            # it is being cancelled, say. The journal still has the call in flight and waits
            # for its end.
            stopped = CallAborted(call=driver_input.call)
            batch.add(CloseCall(epoch=driver_input.epoch, outcome=stopped))
        return False

    def _new_batch(self) -> Batch:
        return Batch(self.state, self._context.clock())

    async def _read_journal(self) -> None:
        if not self.is_behind:
            return
        # A failed append leaves `_known_seq` at a seq that does not exist. Lower it before the
        # read: then a notification that comes during the read raises it again. If it were
        # lowered afterwards, the entry of that notification would be overlooked.
        known_before, self._known_seq = self._known_seq, self.state.seq
        try:
            self.state = await refresh_state(self._context.store, self.state)
        except StoreError:
            self._known_seq = Seq(max(self._known_seq, known_before))
            raise
        self._known_seq = Seq(max(self._known_seq, self.state.seq))
        self._context.change_notifier.notify(self.state.run)

    def _derive_entries(self, batch: Batch) -> None:
        """Add all entries that follow from the state alone, as `scheduler.advance` has them."""

        def may_start(call: CallId, operation: OperationKind) -> bool:
            return operation != "call" or not self._suspects.must_wait(batch.state, call)

        batch.advance(self._compute_reserve, may_start)

    def _compute_reserve(self, state: State, purpose: CallPurpose) -> Spend | RunFailed:
        """Return the spend to reserve for a model call of a run with a cap on spend."""
        try:
            prompt = build_prompt(self._agent, state, condense=purpose == "condense")
            return self._context.get_model(self._agent).reserve(prompt)
        except BaseException as error:
            # `Model.reserve` is user code: its error fails this run, and no other.
            if must_reraise(error):
                raise
            return RunFailed(error=format_exception(error), code="model_error")

    def _add_stand_down(self, batch: Batch) -> None:
        """Stop the calls in flight; add the end of the lease once there are none.

        Every iteration tries again: `decide` refuses `StandDown` while a call is in flight.
        """
        self._dispatcher.begin_shutdown()
        batch.add(StandDown(epoch=batch.state.epoch, why=self._stand_down_reason))

    def _compute_wait_s(self) -> float | None:
        """Return the seconds until the loop must act without a wakeup; None if never."""
        now = self._context.clock()
        is_timed = self.state.phase in (Phase.RUNNING, Phase.PAUSING)
        self._wake_at = find_wake_time(self.state) if is_timed else None
        # Retry times in the past are left out: such a call waits for something else, perhaps
        # for the gate of the suspect calls. They would make the wait zero and the loop spin.
        retry_at = None if self._stand_down_reason else find_retry_time(self.state, now)
        waits = [(time - now) / 1e6 for time in (self._wake_at, retry_at) if time is not None]
        waits += [] if self._suspects.wait_s is None else [self._suspects.wait_s]
        return min(waits, default=None)

    # ── appending ─────────────────────────────────────────────────────────────────────────

    async def _append(self, batch: Batch) -> bool:
        """Append `batch` and start its calls; False: read on and decide again."""
        # The store announces every append, ours too, and the announcement may overtake the
        # reply. Raise `_known_seq` first, so that it does not wake the loop for nothing. If the
        # append fails, `_known_seq` is ahead of `state`, and the next iteration reads on.
        self._known_seq = Seq(max(self._known_seq, batch.state.seq))
        try:
            appended = await self._commit(batch)
        except SeqConflict:
            return False
        except HaltInForce as halt:
            await self._record_halt(halt)
            return False
        except TEMPORARY_STORE_ERRORS as problem:
            # No call starts meanwhile, and inputs are kept until they can be written. Of an
            # unreachable store it is unknown whether it has applied the append.
            await anyio.sleep(STORE_RETRY_S)
            return isinstance(problem, StoreUnreachable) and await self._was_appended(batch)
        # The store stamps the entries. Usually it takes our time; with another one, apply the
        # entries again at that time, so that the state is the one every reader computes.
        same_time = appended.at == max(batch.now, batch.base.at)
        self.state = (
            batch.state if same_time else apply_entries(batch.base, batch.entries, appended.at)
        )
        if self.state.phase is not batch.base.phase:
            # The store's announcement may have come before `state` was set here: waiters that
            # looked at this loop's state then saw the old phase.
            self._context.change_notifier.notify(self.state.run)
        # If `fence` was called during the append, the dispatcher is closed and makes none of
        # these calls; the next lease closes them as unknown.
        self._dispatcher.start(batch.entries, self.state)
        if is_snapshot_due(seq=self.state.seq, snapshot=self._snapshot_seq):
            self._snapshot_seq = await save_snapshot_if_due(
                self._context.store, self.state, appended, last_snapshot_seq=self._snapshot_seq
            )
        return True

    async def _was_appended(self, batch: Batch) -> bool:
        """Tell whether a batch was appended although the store's reply was lost.

        If so, continue as `_append` does. Without this check the journal would have calls as
        started that no dispatcher makes, and the run would wait for them for ever.
        """
        if self._lease is None:
            return False  # the epoch of the lease is unknown: take the lease again
        try:
            records = await self._context.store.read(self.state.run, after=batch.base.seq)
        except StoreError:
            return False
        # Other writers may have appended after the batch, but not in between: it is one append.
        ours = records[: len(batch.entries)]
        if [record.entry for record in ours] != batch.entries:
            return False
        self.state = fold(self.state.run, ours, batch.base)
        self._context.change_notifier.notify(self.state.run)
        self._dispatcher.start(batch.entries, self.state)
        return True

    async def _commit(self, batch: Batch) -> AppendResult:
        store, run, head = self._context.store, self.state.run, build_head(batch.state)
        after = batch.base.seq
        if self._lease is not None:
            return await store.append(
                run, batch.entries, after=after, lease=self._lease, head=head, at=batch.now
            )
        # The first append takes the lease: the store assigns the epoch.
        self._lease, appended = await store.take_lease(
            run,
            batch.entries,
            after=after,
            holder=self._context.heartbeat.holder_name,
            head=head,
            limits=self._context.get_limits(batch.base),
        )
        self._dispatcher.epoch = self._lease.epoch
        return appended

    async def _record_halt(self, halt: HaltInForce) -> None:
        """Note a halt that the store reported; without a lease, record it at once.

        With a lease the next iteration records it. Without one there is no next iteration: the
        run is halted in the phase where it rests.
        """
        self.halt_set(halt.scope, halt.by, halt.reason)
        if self._lease is not None or self._pending_halt is None:
            return
        batch = self._new_batch()
        batch.add(self._pending_halt)
        if not batch.entries:
            return
        try:
            await self._context.store.append(
                self.state.run,
                batch.entries,
                after=batch.base.seq,
                lease=None,
                head=build_head(batch.state),
            )
        except SeqConflict as conflict:
            self._known_seq = Seq(max(self._known_seq, conflict.head))
        else:
            self._known_seq = Seq(batch.state.seq)
