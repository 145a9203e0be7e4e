"""Start calls, let them take effect, and journal their outcome; under one lease.

At each yield the process may crash, freeze or lose its lease. The code between two yields
stands for the code between two awaits of a real call.
"""

from typing import Final

from midrun.core.controls import Halt
from midrun.core.driver_inputs import (
    AskPerson,
    CloseCall,
    CloseUndo,
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
    LateResult,
    UndoDone,
    UndoFailed,
    UndoStarted,
)
from midrun.core.ids import CallId, Seq, make_undo_key
from midrun.core.state import Call, State
from midrun.core.transitions import Accepted
from midrun.core.values import Actor, CallPurpose, Effect, Reply, Spend
from midrun.errors import HaltInForce, KindRefused, StaleEpoch
from midrun.ports.store import Lease
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Environment, TakenEffect, WorkerDeath
from tests.support.simulate.journal import Batch
from tests.support.simulate.programs import TOOLS, add_milliseconds, make_plan_items, make_reply
from tests.support.simulate.scheduler import Process, Steps
from tests.support.simulate.world import Child

LONG_CALL_PARTS: Final = 2
MODEL_RESERVE: Final = Spend(tokens=10, cost=1000)


def reserve_model_call(_: State, __: CallPurpose) -> Spend:
    """Return the spend that every model call of a run with a cap on spend reserves."""
    return MODEL_RESERVE


Outcome = CallDone | CallFailed | CallAborted | CallUnknown


class InFlightCall:
    """A call in flight, as its process knows it; `stop_reason` is set when it must stop."""

    __slots__ = ("attempt", "call", "key", "start_state", "stop_reason")

    def __init__(self, call: Call, key: str, view: State) -> None:
        self.call = call
        self.attempt = call.attempt
        self.key = key
        self.start_state = view
        self.stop_reason = ""


class Dispatcher:
    """Makes the calls of the run for one process under one lease."""

    def __init__(self, env: Environment, process: Process, lease: Lease) -> None:
        self.env = env
        self.journal = env.journal
        self.process = process
        self.lease = lease
        self.calls: dict[CallId, InFlightCall] = {}
        self.running_checks: set[CallId] = set()
        self.is_dropped = False

    # ── lease and commit ──────────────────────────────────────────────────────────────────

    def may_act(self) -> bool:
        """Return whether a call may take effect now; checked right before it does."""
        return self.has_lease()

    def has_lease(self) -> bool:
        """Return whether the lease is still in force."""
        state = self.journal.state
        current = state.is_leased and state.epoch == self.lease.epoch
        return current and not (self.is_dropped or self.process.lapsed)

    def drop(self) -> None:
        """Give up the lease: the calls in flight may not act any more."""
        self.is_dropped = True

    def commit(self, batch: Batch) -> bool:
        """Append the batch and start its calls; False: read and decide again."""
        if not batch.entries:
            return False
        try:
            if not self.journal.commit(batch, self.lease):
                return False
        except StaleEpoch:
            self.drop()
            return False
        except HaltInForce as halt:
            self.record_halt(halt.scope, halt.by)
            return False
        except KindRefused as error:
            raise Violation("KIND", str(error)) from error
        if self.env.chance(self.env.setup.lost_append_share):
            self.drop()  # the reply of the append was lost: the process starts again
            return False
        self.start_calls(batch)
        return True

    def record_halt(self, scope: str, by: str) -> None:
        """Journal that a halt covers the run."""
        batch = self.journal.make_batch()
        batch.add(Halt(by=Actor(name=by, role="operator"), scope=scope))
        if batch.entries:
            self.commit(batch)

    def start_calls(self, batch: Batch) -> None:
        """Start the calls and undos that the batch journaled as started."""
        for entry in batch.entries:
            if isinstance(entry, CallStarted):
                self._start_call(entry.call, batch.state)
            elif isinstance(entry, UndoStarted):
                self.env.spawn(self._run_cleanup(entry), self.process)

    def _start_call(self, number: CallId, state: State) -> None:
        call = state.find_call(number)
        assert call is not None
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
        unknown_steps = self.close_call(running, CallUnknown(call=number))
        steps = run_or_kill_process(self.env, self.process, running, steps, unknown_steps)
        self.env.spawn(self._run_tracked(running, steps), self.process)

    def _run_tracked(self, running: InFlightCall, steps: Steps) -> Steps:
        yield None  # the start is journaled, the call has no effect yet
        if not self.may_act():
            return
        if running.stop_reason:
            yield from self.close_call(running, CallAborted(call=running.call.id))
        else:
            yield from steps
        if self.calls.get(running.call.id) is running:
            del self.calls[running.call.id]

    # ── starts and outcomes ───────────────────────────────────────────────────────────────

    def close_call(self, running: InFlightCall, outcome: Outcome) -> Steps:
        """Journal the outcome, possibly with the next start; if fenced, as a late result."""
        driver_input = CloseCall(epoch=self.lease.epoch, outcome=outcome)
        env = self.env
        if (
            self.has_lease()
            and env.chance(env.setup.batch_share)
            and self._close_and_start_next(driver_input)
        ):
            return
        if not self._append_outcome(
            driver_input, None if env.chance(0.7) else running.start_state
        ):
            yield from self._report_late(running, outcome)

    def _append_outcome(
        self, driver_input: CloseCall | CloseUndo | SaveProgress, state: State | None
    ) -> bool:
        """Append an outcome that stays true after other appends; False if fenced."""
        batch = self.journal.make_batch(state)
        if self.is_dropped or not isinstance(
            self.journal.add_driver_input(batch, driver_input), Accepted
        ):
            return False
        try:
            self.journal.commit_anywhere(batch, self.lease)
        except StaleEpoch:
            self.drop()
            return False
        return True

    def _close_and_start_next(self, driver_input: CloseCall) -> bool:
        """Append the outcome of one call and the start of the next in one batch."""
        batch = self.journal.make_batch()
        if not isinstance(self.journal.add_driver_input(batch, driver_input), Accepted):
            return False
        ends = len(batch.entries)
        for _ in range(4):
            if not batch.advance(reserve_model_call):
                break
        return len(batch.entries) > ends and self.commit(batch)

    def _report_late(self, running: InFlightCall, outcome: Outcome) -> Steps:
        """Report the result of a fenced process: the only entry that it may append."""
        self.drop()
        if not isinstance(outcome, CallDone) or running.call.call_kind == "model":
            return
        if self.env.chance(0.5):
            yield None
        result = LateResult(
            call=running.call.id,
            attempt=running.attempt,
            epoch=self.lease.epoch,
            result=outcome.result,
        )
        batch = self.journal.make_batch()
        if isinstance(batch.add(ReportLateResult(result=result)), Accepted):
            self.journal.commit(batch)

    def take_effect(
        self, running: InFlightCall, part: str = "", *, holds: bool = False
    ) -> bool:
        """Let the call take effect in the world; the only place that does."""
        env = self.env
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
            yield from self.close_call(running, failed)
            return
        check_for_orphaned_children(env, running.start_state)
        yield None  # the stream is open
        if running.stop_reason:
            spent = Spend(tokens=4, cost=400) if env.chance(0.5) else None
            yield from self.close_call(
                running, CallAborted(call=call.id, text="par", spent=spent)
            )
            return
        reply = make_reply(env.program, running.start_state)
        if call.purpose == "condense":
            reply = Reply(text="" if env.chance(0.1) else "in short")
        tokens = env.rng.randint(4, 12)
        spent = Spend(tokens=tokens, cost=tokens * 100)
        yield from self.close_call(running, CallDone(call=call.id, reply=reply, spent=spent))

    def _run_plain(self, running: InFlightCall) -> Steps:
        if self.env.has_start_gap:
            yield None
        done = self.take_effect(running, holds=running.call.traits.release)
        yield None  # the call took effect, its outcome is not journaled yet
        yield from self.close_call(running, self._make_outcome(running, done=done))

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
        driver_input = AskPerson(
            epoch=self.lease.epoch,
            call=running.call.id,
            question="Which?",
            expires=expires,
        )
        while self.has_lease() and not running.stop_reason:
            batch = self.journal.make_batch()
            if not isinstance(self.journal.add_driver_input(batch, driver_input), Accepted):
                break
            yield None
            if self.commit(batch):
                return
        yield from self.close_call(running, CallAborted(call=running.call.id))

    def _run_long(self, running: InFlightCall) -> Steps:
        progress = running.call.progress
        for part in range(progress if isinstance(progress, int) else 0, LONG_CALL_PARTS):
            self.take_effect(running, part=f"/{part}")
            yield None
            saved = SaveProgress(
                epoch=self.lease.epoch, call=running.call.id, progress=part + 1
            )
            if not self._append_outcome(saved, None):
                return
            yield None
            if running.stop_reason:
                yield from self.close_call(running, CallAborted(call=running.call.id))
                return
            if not self.has_lease():
                return
        done = self.take_effect(running)
        yield None  # all parts are saved; a stop comes too late from here on
        running.stop_reason = ""
        yield from self.close_call(running, self._make_outcome(running, done=done))

    def _run_hanging(self, running: InFlightCall) -> Steps:
        done = self.take_effect(running)
        ignores_stop = self.env.chance(0.3)
        yield (
            lambda: (
                self.env.is_draining
                or not self.has_lease()
                or (bool(running.stop_reason) and not ignores_stop)
            )
        )
        outcome = self._make_outcome(running, done=done)
        if running.stop_reason and self.env.chance(0.5):
            outcome = CallUnknown(call=running.call.id, why="not_responding")
        yield from self.close_call(running, outcome)

    def _run_failing(self, running: InFlightCall) -> Steps:
        if self.env.chance(0.5):
            yield from self._run_plain(running)
            return
        yield None
        yield from self.close_call(running, CallFailed(call=running.call.id, error="no luck"))

    def _run_planning(self, running: InFlightCall) -> Steps:
        batch = self.journal.make_batch()
        items = make_plan_items(self.journal.state.meter.steps)
        self.journal.add_driver_input(batch, SetPlan(epoch=self.lease.epoch, items=items))
        self.commit(batch)
        yield None
        yield from self._run_plain(running)

    def _run_child(self, running: InFlightCall) -> Steps:
        """Let a child run work, and wait for its outcome or its next ask."""
        child = find_or_create_child(self.env, running.key)
        child.answer_count = max(
            child.answer_count,
            count_decided_asks(running.start_state, running.call.id),
        )
        while child.steps_left and not child.outcome:
            yield None
            if running.stop_reason or not self.has_lease():
                break
            child.steps_left -= 1
            child.effect_count += 1
        if running.stop_reason in {"cancelled", "redirected"}:
            child.outcome = child.outcome or "cancelled"
        if running.stop_reason:
            yield from self.close_call(running, CallAborted(call=running.call.id))
        elif child.outcome == "cancelled" or child.fails:
            yield from self.close_call(
                running, CallFailed(call=running.call.id, error="it has failed")
            )
        elif child.answer_count < child.ask_count:
            driver_input = AskPerson(epoch=self.lease.epoch, call=running.call.id, child=True)
            batch = self.journal.make_batch()
            self.journal.add_driver_input(batch, driver_input)
            if not self.commit(batch) and self.has_lease():
                yield from self.close_call(running, CallAborted(call=running.call.id))
        else:
            child.outcome = "completed"
            yield from self.close_call(
                running, CallDone(call=running.call.id, result="child is done")
            )

    # ── undo, release, check ──────────────────────────────────────────────────────────────

    def _run_cleanup(self, started: UndoStarted) -> Steps:
        env = self.env
        yield None
        if not self.may_act():
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
        outcome = (
            UndoDone(call=started.call, action=started.action)
            if done
            else UndoFailed(
                call=started.call, action=started.action, error="no", retry_at=retry
            )
        )
        self._append_outcome(CloseUndo(epoch=self.lease.epoch, outcome=outcome), None)

    def run_check(self, call: CallId) -> Steps:
        """Run the check of an unknown call, and settle it."""
        yield None
        happened = self.env.world.has_happened(self.env.make_key(call))
        yield None
        self.running_checks.discard(call)
        batch = self.journal.make_batch()
        driver_input = SettleCall(
            epoch=self.lease.epoch, call=call, happened=happened, result={"found": True}
        )
        if self.has_lease() and isinstance(
            self.journal.add_driver_input(batch, driver_input), Accepted
        ):
            self.commit(batch)


def run_or_kill_process(
    env: Environment,
    process: Process,
    running: InFlightCall,
    steps: Steps,
    unknown_steps: Steps,
) -> Steps:
    """Make a call; if the program says so, kill its process or lose its outcome instead.

    In both cases the call has had no effect. `unknown_steps` journal an unknown outcome.
    """
    name = running.call.use.tool or "model"
    if name == env.program.killer and env.worker_kills_left:
        env.worker_deaths.append(
            WorkerDeath(call=running.call.id, seq=Seq(env.journal.state.seq))
        )
        kill_process(env, process)
    elif name == env.program.unsure_tool and env.unknown_outcomes_left:
        env.unknown_outcomes_left -= 1
        yield from unknown_steps
    else:
        yield from steps


def check_or_kill_process(env: Environment, process: Process, tool: str, steps: Steps) -> Steps:
    """Run a check; the check of a killer tool may kill the process, too."""
    yield None
    if tool == env.program.killer and env.worker_kills_left and env.chance(0.3):
        kill_process(env, process)
        return
    yield from steps


def kill_process(env: Environment, process: Process) -> None:
    """Kill the process and all its threads."""
    env.worker_kills_left -= 1
    env.scheduler.kill(process)
    env.killed_processes.append(process)


def find_or_create_child(env: Environment, key: str) -> Child:
    """Return the child of the call with this key; all attempts of a call have one child."""
    rng = env.rng
    new = Child(
        asks=rng.choice((0, 0, 1, 1, 2)), left=rng.randint(0, 2), fails=rng.random() < 0.1
    )
    return env.world.children.setdefault(key, new)


def count_decided_asks(state: State, call: CallId) -> int:
    """Count the asks of the child of `call` that were decided, here or on the child."""
    asks = (ask for ask in state.asks if ask.call == call)
    return sum(ask.close_reason in {"answered", "elsewhere"} for ask in asks)


def check_for_orphaned_children(env: Environment, state: State) -> None:
    """Check that no child works for a call that its parent has closed.

    Raises:
        Violation: the parent starts its next step, or waits, and such a child works.
    """
    for call in state.calls:
        child = env.world.children.get(env.make_key(call.id))
        if child is None or child.outcome or child.fails or call.is_open:
            continue
        parked = any(call.number in frame.parked_calls for frame in state.frames)
        if not parked and call.release.attempts < state.run_started.undo_attempts:
            raise Violation("ORPHAN", f"the child of {call.id} works without its parent")
