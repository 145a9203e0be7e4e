"""The calls of a worker: they take effect in the world, and return their outcomes.

This stands for `driver.dispatcher` and the code of the agent. The outcomes are the inputs of
the session. At each yield the process may crash, freeze or lose its lease. The code between two
yields stands for the code between two awaits of a real call.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from midrun.core.driver_inputs import (
    AskPerson,
    CloseCall,
    CloseCleanup,
    DriverInput,
    FailRun,
    FinishHostedAgent,
    ProposeCall,
    RecordStopVerdict,
    ReportLateResult,
    SaveProgress,
    SetPlan,
    SettleCall,
)
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    Entry,
    LateResult,
    UndoDone,
    UndoFailed,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.ids import CallId, Epoch, Seq, make_undo_key
from midrun.core.retries import MODEL_RETRY_CODE
from midrun.core.scheduler import (
    AbortCall,
    CheckCall,
    ControlChild,
    DriverEffect,
    EvaluateStopCondition,
    RunProgram,
)
from midrun.core.state import CallStage, CallState, State
from midrun.core.transitions import Accepted
from midrun.core.undo import is_child_ended
from midrun.core.values import Effect, Reply, Spend
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Environment, TakenEffect, WorkerDeath
from tests.support.simulate.programs import (
    TOOLS,
    add_milliseconds,
    make_plan_items,
    make_reply,
    propose_uses,
)
from tests.support.simulate.scheduler import Process, Steps
from tests.support.simulate.world import Child

LONG_CALL_PARTS: Final = 2
CHILD_STOP_REASONS: Final = {"pause": "paused", "cancel": "cancelled", "halt": "halted"}
NO_WAIT_REASONS: Final = {"cancelled", "shutdown"}
"""Reasons to stop a call for which a run does not wait for ever."""

Outcome = CallDone | CallFailed | CallAborted | CallUnknown


class InFlightCall:
    """A call in flight, as its process knows it; `stop_reason` is set when it must stop."""

    __slots__ = (
        "attempt",
        "call",
        "has_acted",
        "is_abandoned",
        "is_finished",
        "key",
        "start_state",
        "stop_reason",
    )

    def __init__(self, call: CallState, key: str, view: State) -> None:
        self.call = call
        self.attempt = call.attempt
        self.key = key
        self.start_state = view
        self.stop_reason = ""
        self.has_acted = False
        self.is_abandoned = False  # the journal gets an unknown outcome in its place
        self.is_finished = False


class Hook:
    """A check, a custom stop condition or a hosted agent that runs."""

    __slots__ = ("is_stopped",)

    def __init__(self) -> None:
        self.is_stopped = False


class SaveWaiter:
    """Lets a call wait until its progress is durable, or refused."""

    __slots__ = ("is_done", "is_durable")

    def __init__(self) -> None:
        self.is_done = False
        self.is_durable = False


class PendingInput(NamedTuple):
    """An input of the session that is not journaled yet, and the call that it comes from."""

    driver_input: DriverInput
    running: InFlightCall | None = None
    save_waiter: SaveWaiter | None = None


class Dispatcher:
    """Makes the calls of the run for one process under one lease."""

    def __init__(
        self,
        env: Environment,
        process: Process,
        *,
        wake: Callable[[], None],
        fence: Callable[[], None],
    ) -> None:
        self.env = env
        self.journal = env.journal
        self.process = process
        self.epoch = Epoch(0)
        self.pending_inputs: list[PendingInput] = []
        self.calls: dict[CallId, InFlightCall] = {}
        self.hooks: dict[DriverEffect, Hook] = {}
        self.is_closed = False
        self._is_leaving = False
        self._wake = wake
        self._fence = fence

    def may_act(self) -> bool:
        """Return whether a call may take effect now; checked right before it does."""
        return not (self.is_closed or self.process.lapsed)

    def is_lease_stored(self) -> bool:
        """Return whether the store has this process as the holder; checked before a start."""
        return self.journal.state.epoch == self.epoch and self.journal.state.is_leased

    # ── starts and outcomes ───────────────────────────────────────────────────────────────

    def start(self, entries: Sequence[Entry], state: State) -> None:
        """Start the calls and undos that the entries have recorded as started."""
        for entry in entries:
            if isinstance(entry, CallStarted):
                self._start_call(entry.call, state)
            elif isinstance(entry, UndoStarted):
                self.env.spawn(self._run_cleanup(entry), self.process)

    def _start_call(self, number: CallId, state: State) -> None:
        call = state.find_call(number)
        if call is None or call.stage is not CallStage.STARTED:
            raise Violation("I14", f"{number} is made, but the journal has no start of it")
        running = InFlightCall(call, self.env.make_key(number), state)
        self.calls[number] = running
        if call.call_kind == "model":
            steps = self._run_model(running)
        else:
            behaviour = TOOLS[call.use.tool].behaviour
            steps = {
                "plain": self._run_plain,
                "asks": self._run_asking,
                "long": self._run_long,
                "hangs": self._run_hanging,
                "fails": self._run_failing,
                "plans": self._run_planning,
                "child": self._run_child,
            }[behaviour](running)
        self.env.spawn(self._run_tracked(running, steps), self.process)

    def _run_tracked(self, running: InFlightCall, steps: Steps) -> Steps:
        yield None  # the start is journaled, the call has no effect yet
        env, name = self.env, running.call.use.tool or "model"
        if not self.may_act():
            self._fence()
        elif not self.is_lease_stored():
            running.is_finished = True  # the session finds in the journal that its lease ended
        elif running.stop_reason:
            self.close_call(running, CallAborted(call=running.call.id))
        elif name == env.program.killer and env.worker_kills_left:
            env.worker_deaths.append(
                WorkerDeath(call=running.call.id, seq=Seq(env.journal.state.seq))
            )
            kill_process(env, self.process)
        elif name == env.program.unsure_tool and env.unknown_outcomes_left:
            env.unknown_outcomes_left -= 1  # its outcome is lost; it has had no effect
            self.close_call(running, CallUnknown(call=running.call.id))
        else:
            yield from steps

    def close_call(self, running: InFlightCall, outcome: Outcome) -> None:
        """Hand the outcome of a call to the session."""
        self._finish(running, CloseCall(epoch=self.epoch, outcome=outcome))

    def _finish(self, running: InFlightCall, driver_input: CloseCall | AskPerson) -> None:
        running.is_finished = True
        if self.calls.get(running.call.id) is running:
            del self.calls[running.call.id]
        pending = PendingInput(driver_input, running)
        if running.is_abandoned or self.is_closed:
            self.report_late(pending)
        else:
            self._submit(pending)

    def _submit(self, pending: PendingInput) -> None:
        if not self.is_closed:
            self.pending_inputs.append(pending)
            self._wake()

    def close(self) -> None:
        """Stop all calls because the lease is over; submit nothing more."""
        self.is_closed = True
        for pending in self.pending_inputs:
            self.report_late(pending)
            if pending.save_waiter is not None:
                pending.save_waiter.is_done = True
        self.pending_inputs.clear()
        for running in self.calls.values():
            running.stop_reason = "fenced"

    def report_late(self, pending: PendingInput) -> None:
        """Record the result of a call that the journal has closed without it."""
        running, driver_input = pending.running, pending.driver_input
        outcome = driver_input.outcome if isinstance(driver_input, CloseCall) else None
        if running is None or running.call.call_kind == "model":
            return
        if isinstance(outcome, CallDone):
            self.env.spawn(self._record_late(running, outcome), self.process)

    def _record_late(self, running: InFlightCall, outcome: CallDone) -> Steps:
        """Append a late result, once the journal does not wait for the outcome any more."""
        result = LateResult(
            call=running.call.id,
            attempt=running.attempt,
            epoch=self.epoch,
            result=outcome.result,
        )
        yield lambda: not self._is_awaited(running)
        while True:
            batch = self.journal.make_batch()
            if not isinstance(batch.add(ReportLateResult(result=result)), Accepted):
                return
            if self.env.chance(0.5):
                yield None
            if self.journal.commit(batch):
                return

    def _is_awaited(self, running: InFlightCall) -> bool:
        state = self.journal.state
        call = state.find_call(running.call.id)
        is_in_flight = call is not None and call.stage is CallStage.STARTED
        return is_in_flight and state.epoch == self.epoch

    # ── effects of the session ────────────────────────────────────────────────────────────

    def apply(self, effects: Sequence[DriverEffect], state: State) -> None:
        """Stop calls, and run checks, stop conditions and hosted agents."""
        for wanted, hook in self.hooks.items():
            hook.is_stopped = wanted not in effects
        for effect in effects:
            match effect:
                case AbortCall(call=call, reason=reason) if call in self.calls:
                    self._stop_call(self.calls[call], reason)
                case ControlChild(call=call, control=control) if call in self.calls:
                    self._stop_call(self.calls[call], CHILD_STOP_REASONS[control])
                case CheckCall() | EvaluateStopCondition() if effect not in self.hooks:
                    self._start_hook(effect, state)
                # The program knows the calls that it has proposed already, and waits for them.
                case RunProgram() if not (
                    effect in self.hooks or self.pending_inputs or state.open_calls
                ):
                    self._start_hook(effect, state)
                case _:
                    continue

    def _stop_call(self, running: InFlightCall, reason: str) -> None:
        if running.stop_reason == reason:
            return
        running.stop_reason = reason
        hangs = running.call.use.tool and TOOLS[running.call.use.tool].behaviour == "hangs"
        if reason in NO_WAIT_REASONS and hangs:
            self.env.spawn(self._abandon(running), self.process)

    def _abandon(self, running: InFlightCall) -> Steps:
        """Give a call up that has not stopped after its grace; it may return later."""
        for _ in range(self.env.rng.randint(1, 6)):
            yield None
        yield lambda: running.has_acted or running.is_finished or self.is_closed
        if not (running.is_finished or running.is_abandoned or self.is_closed):
            running.is_abandoned = True
            del self.calls[running.call.id]
            outcome = CallUnknown(call=running.call.id, why="not_responding")
            self._submit(PendingInput(CloseCall(epoch=self.epoch, outcome=outcome)))

    def begin_shutdown(self) -> None:
        """Stop calls that are safe to repeat at once, and others after a while."""
        self._is_leaving = True
        for running in self.calls.values():
            if running.stop_reason not in NO_WAIT_REASONS and (
                running.call.safe_to_repeat or self.env.chance(0.5)
            ):
                self._stop_call(running, "shutdown")
        for hook in self.hooks.values():
            hook.is_stopped = True

    def _start_hook(self, effect: DriverEffect, state: State) -> None:
        hook = self.hooks[effect] = Hook()
        self.env.spawn(self._run_hook(effect, hook, state), self.process)

    def _run_hook(self, effect: DriverEffect, hook: Hook, state: State) -> Steps:
        """Run a check, a stop condition or a hosted agent; without an input if stopped."""
        env = self.env
        yield None
        if isinstance(effect, CheckCall):
            call = state.find_call(effect.call)
            is_killer = call is not None and call.use.tool == env.program.killer
            if is_killer and env.worker_kills_left and env.chance(0.3):
                kill_process(env, self.process)
                return
        inputs = self._make_hook_inputs(effect, state)
        yield None
        if self.hooks.get(effect) is hook:
            del self.hooks[effect]
        if hook.is_stopped and env.chance(0.8):
            self._wake()
            return
        for driver_input in inputs:
            self._submit(PendingInput(driver_input))

    def _make_hook_inputs(self, effect: DriverEffect, state: State) -> list[DriverInput]:
        env, epoch = self.env, self.epoch
        if env.draw_agent_failure(0.1):
            return [FailRun(epoch=epoch, error="KeyError", code="agent")]
        match effect:
            case CheckCall(call=call):
                happened = env.world.has_happened(env.make_key(call))
                found = {"found": True}
                return [SettleCall(epoch=epoch, call=call, happened=happened, result=found)]
            case EvaluateStopCondition(name=name):
                met = env.stop_verdicts_left > 0 and env.chance(0.3)
                env.stop_verdicts_left -= met
                return [RecordStopVerdict(epoch=epoch, name=name, met=met)]
            case RunProgram():
                uses = propose_uses(env.program, state)
                if not uses:
                    return [FinishHostedAgent(epoch=epoch, output="main:end")]
                return [ProposeCall(epoch=epoch, use=use) for use in uses]
            case _:
                raise AssertionError(effect)

    def take_effect(
        self, running: InFlightCall, part: str = "", *, holds: bool = False
    ) -> bool:
        """Let the call take effect in the world; the only place that does."""
        env = self.env
        running.has_acted = True
        env.taken_effects.append(
            TakenEffect(
                call=running.call.id,
                attempt=running.attempt,
                seq=Seq(self.journal.state.seq),
                args=running.call.use.args,
            )
        )
        effect = Effect.IDEMPOTENT if part else running.call.traits.effect
        return env.world.act(running.key + part, effect, holds=holds)

    # ── behaviours of calls ───────────────────────────────────────────────────────────────

    def _run_model(self, running: InFlightCall) -> Steps:
        env, call = self.env, running.call
        if env.model_failures_left and env.chance(0.3):
            env.model_failures_left -= 1
            retry = add_milliseconds(env.now, 5) if env.chance(0.5) else None
            failed = CallFailed(
                call=call.id, error="overloaded", transient=env.chance(0.6), retry_at=retry
            )
            self.close_call(running, failed)
            return
        check_for_orphaned_children(env, running.start_state, call.started_seq)
        yield None  # the stream is open
        if running.stop_reason:
            spent = Spend(tokens=4, cost=400) if env.chance(0.5) else None
            self.close_call(running, CallAborted(call=call.id, text="par", spent=spent))
            return
        reply = make_reply(env.program, running.start_state)
        if call.purpose == "condense":
            reply = Reply(text="" if env.chance(0.1) else "in short")
        tokens = env.rng.randint(4, 12)
        spent = Spend(tokens=tokens, cost=tokens * 100)
        self.close_call(running, CallDone(call=call.id, reply=reply, spent=spent))

    def _run_plain(self, running: InFlightCall) -> Steps:
        if self.env.has_start_gap:
            yield None
        done = self.take_effect(running, holds=running.call.traits.release)
        yield None  # the call took effect, its outcome is not journaled yet
        self.close_call(running, self._make_outcome(running, done=done))

    def _make_outcome(self, running: InFlightCall, *, done: bool) -> Outcome:
        if not done:
            return CallFailed(call=running.call.id, error="refused by the far end")
        if running.stop_reason and self.env.chance(0.5):
            return CallAborted(call=running.call.id)
        return CallDone(call=running.call.id, result={"ok": True})

    def _run_asking(self, running: InFlightCall) -> Steps:
        env = self.env
        if running.call.traits.release:
            self.take_effect(running, holds=True)
            yield None
        expires = add_milliseconds(env.now, 60) if env.chance(0.3) else None
        yield None
        if running.stop_reason:
            self.close_call(running, CallAborted(call=running.call.id))
            return
        ask = AskPerson(
            epoch=self.epoch, call=running.call.id, question="Which?", expires=expires
        )
        self._finish(running, ask)

    def _run_long(self, running: InFlightCall) -> Steps:
        progress = running.call.progress
        for part in range(progress if isinstance(progress, int) else 0, LONG_CALL_PARTS):
            self.take_effect(running, part=f"/{part}")
            yield None
            saved = SaveProgress(epoch=self.epoch, call=running.call.id, progress=part + 1)
            waiter = SaveWaiter()
            self._submit(PendingInput(saved, save_waiter=waiter))
            yield lambda: waiter.is_done or self.is_closed  # noqa: B023 - read before the next turn
            if not waiter.is_durable:
                return
            if running.stop_reason:
                self.close_call(running, CallAborted(call=running.call.id))
                return
            if not self.may_act():
                return
        done = self.take_effect(running)
        yield None  # all parts are saved; a stop comes too late from here on
        running.stop_reason = ""
        self.close_call(running, self._make_outcome(running, done=done))

    def _run_hanging(self, running: InFlightCall) -> Steps:
        done = self.take_effect(running)
        ignores_stop = self.env.chance(0.3)
        yield (
            lambda: (
                self.env.is_draining
                or self.is_closed
                or (bool(running.stop_reason) and not ignores_stop)
            )
        )
        outcome = self._make_outcome(running, done=done)
        if running.stop_reason and self.env.chance(0.5):
            outcome = CallUnknown(call=running.call.id, why="not_responding")
        self.close_call(running, outcome)

    def _run_failing(self, running: InFlightCall) -> Steps:
        if self.env.chance(0.5):
            yield from self._run_plain(running)
            return
        yield None
        code = MODEL_RETRY_CODE if self.env.program.asks_again else ""
        self.close_call(running, CallFailed(call=running.call.id, error="no luck", code=code))

    def _run_planning(self, running: InFlightCall) -> Steps:
        items = make_plan_items(self.journal.state.meter.steps)
        self._submit(PendingInput(SetPlan(epoch=self.epoch, items=items)))
        yield None
        yield from self._run_plain(running)

    def _run_child(self, running: InFlightCall) -> Steps:
        """Let a child run work, and wait for its outcome or its next ask."""
        child = find_or_create_child(self.env, running.call.id, running.key)
        child.answer_count = max(
            child.answer_count,
            count_decided_asks(running.start_state, running.call.id),
        )
        while child.steps_left and not child.outcome:
            yield None
            if running.stop_reason or not self.may_act():
                break
            child.steps_left -= 1
            child.effect_count += 1
        if running.stop_reason in {"cancelled", "redirected"}:
            child.outcome = child.outcome or "cancelled"
        if running.stop_reason:
            self.close_call(running, CallAborted(call=running.call.id))
        elif child.outcome == "cancelled" or child.fails:
            self.close_call(running, CallFailed(call=running.call.id, error="it has failed"))
        elif child.answer_count < child.ask_count:
            self._finish(running, AskPerson(epoch=self.epoch, call=running.call.id, child=True))
        else:
            child.outcome = "completed"
            self.close_call(running, CallDone(call=running.call.id, result="child is done"))

    # ── undo, release, check ──────────────────────────────────────────────────────────────

    def _run_cleanup(self, started: UndoStarted) -> Steps:
        env = self.env
        yield None
        if not self.may_act():
            self._fence()
            return
        if not self.is_lease_stored():
            return
        key = make_undo_key(self.journal.run, started.call, started.action)
        world, call = env.world, self.journal.state.find_call(started.call)
        assert call is not None
        if call.call_kind == "child":
            cancel = self.journal.state.cancel_request
            undo_all = cancel is not None and cancel.undo == "all"
            done = world.end_child(env.make_key(started.call), undo_all=undo_all)
        else:
            clean = world.undo if started.action == "undo" else world.release
            done = clean(env.make_key(started.call), key)
        yield None
        retry = add_milliseconds(env.now, 5) if env.chance(0.5) else None
        outcome: UndoDone | UndoFailed | UndoUnknown
        if self._is_leaving and env.chance(0.3):
            outcome = UndoUnknown(call=started.call, action=started.action)
        elif done:
            outcome = UndoDone(call=started.call, action=started.action)
        else:
            outcome = UndoFailed(
                call=started.call, action=started.action, error="no", retry_at=retry
            )
        self._submit(PendingInput(CloseCleanup(epoch=self.epoch, outcome=outcome)))


def kill_process(env: Environment, process: Process) -> None:
    """Kill the process and all its threads."""
    env.worker_kills_left -= 1
    env.scheduler.kill(process)
    env.killed_processes.append(process)


def find_or_create_child(env: Environment, call_id: CallId, key: str) -> Child:
    """Return the child of the call with this key; all attempts of a call have one child.

    A worker that was frozen may create it after its parent found no child to end. The worker
    that would drive it cancels it instead: see `child_runs.update_parent`.
    """
    rng = env.rng
    new = Child(
        asks=rng.choice((0, 0, 1, 1, 2)), left=rng.randint(0, 2), fails=rng.random() < 0.1
    )
    child = env.world.children.setdefault(key, new)
    call = env.journal.state.find_call(call_id)
    if child is new and call is not None and is_child_ended(call):
        child.outcome = "cancelled"
    return child


def count_decided_asks(state: State, call: CallId) -> int:
    """Count the asks of the child of `call` that were decided, here or on the child."""
    asks = (ask for ask in state.asks if ask.call == call)
    return sum(ask.close_reason in {"answered", "elsewhere"} for ask in asks)


def check_for_orphaned_children(env: Environment, state: State, seq: Seq) -> None:
    """Check that no child works for a call that its parent had closed at `seq`.

    A person may close one between the start of a model call and the moment when it is made.

    Raises:
        Violation: the parent starts its next step, or waits, and such a child works.
    """
    for call in state.calls:
        child = env.world.children.get(env.make_key(call.id))
        if child is None or child.outcome or child.fails or call.is_open:
            continue
        if call.closed_seq > seq:
            continue
        parked = any(call.number in frame.parked_calls for frame in state.frames)
        if not parked and call.release.attempts < state.run_started.undo_attempts:
            raise Violation("ORPHAN", f"the child of {call.id} works without its parent")
