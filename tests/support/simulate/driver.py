"""The driver loop of one process: take the lease, read, append what follows, run effects.

It decides nothing. If the journal has grown meanwhile, the loop reads again; if it is fenced,
it drops all.
"""

from midrun.core.controls import Halt
from midrun.core.driver_inputs import (
    DriverInput,
    FailRun,
    FinishHostedAgent,
    ProposeCall,
    RecordStopVerdict,
    StandDown,
    Wake,
)
from midrun.core.effects import (
    AbortCall,
    CheckCall,
    ControlChild,
    DriverEffect,
    EvaluateStopCondition,
    RunHost,
)
from midrun.core.ids import Micros
from midrun.core.scheduler import find_retry_time, find_wake_time, list_effects
from midrun.core.state import State
from midrun.core.transitions import Accepted
from midrun.core.values import DRIVABLE_PHASES, Actor, Phase
from tests.support.simulate.dispatcher import (
    Dispatcher,
    check_or_kill_process,
    reserve_model_call,
)
from tests.support.simulate.environment import Environment
from tests.support.simulate.programs import propose_uses
from tests.support.simulate.scheduler import Process, Steps

CHILD_STOP_REASONS = {"pause": "paused", "cancel": "cancelled", "halt": "halted"}


class Driver:
    """The driver loop of one process."""

    def __init__(self, env: Environment, process: Process) -> None:
        self.env = env
        self.journal = env.journal
        self.process = process
        self.is_shutting_down = False
        self.wake_at: Micros | None = None  # when the loop must run again

    def steps(self) -> Steps:
        """Take the lease whenever it is free, and drive the run."""
        while True:
            self.wake_at = None
            yield self._can_take_lease
            if self.is_shutting_down:
                self.journal.expire_lease(self.process.name)  # it may still hold a lease
                return
            if scopes := self.journal.halt_scopes:
                self._halt_undriven_run(scopes[0])
                continue
            if self.env.chance(self.env.setup.snapshot_share):
                self.journal.check_recovery()
            self.process.lapsed = False
            lease = self.journal.take_lease(self.process.name)
            if lease is not None:
                yield from self._drive(Dispatcher(self.env, self.process, lease))

    def _can_take_lease(self) -> bool:
        if self.is_shutting_down:
            return True
        # A process may take again the lease that it has dropped.
        own = self.journal.holder == self.process.name
        return self.journal.state.phase in DRIVABLE_PHASES and (
            own or self.journal.is_drivable()
        )

    def _halt_undriven_run(self, scope: str) -> None:
        """Journal the halt of a run that has no driver."""
        batch = self.journal.make_batch()
        batch.add(Halt(by=Actor(name="olga", role="operator"), scope=scope))
        self.journal.commit(batch)

    def _drive(self, dispatcher: Dispatcher) -> Steps:
        while True:
            yield None
            state = self.journal.state
            if not dispatcher.has_lease():
                dispatcher.drop()
                return
            if self.env.chance(self.env.setup.snapshot_share):
                self.journal.save_snapshot()
            notified = self.env.chance(0.6)  # the notice of a halt may come late
            if (
                notified
                and state.phase is not Phase.HALTED
                and (scopes := self.journal.halt_scopes)
            ):
                dispatcher.record_halt(scopes[0], "olga")
                continue
            if self.is_shutting_down and self._stand_down(dispatcher, state):
                continue
            effects = list_effects(state)
            self._stop_calls(dispatcher, effects)
            if self._wake_run(state):
                continue
            due_effects = [e for e in effects if self._is_due(dispatcher, e)]
            follows = not self.is_shutting_down and self.journal.has_next_entries(
                state, reserve_model_call
            )
            if follows or due_effects:
                if self._fails_run(dispatcher, state):
                    continue
                yield None  # a real driver awaits here, and the journal may grow
                if follows:
                    self._advance(dispatcher, state)
                else:
                    self._perform(dispatcher, due_effects[0], state)
                continue
            seq, phase, was_shutting_down = state.seq, state.phase, self.is_shutting_down
            yield (
                lambda: (
                    self.journal.state.seq > seq  # noqa: B023 - read before the next turn of the loop
                    or not dispatcher.has_lease()
                    or self.is_shutting_down is not was_shutting_down  # noqa: B023 - as above
                    or (self.wake_at is not None and self.env.now >= self.wake_at)
                    or (bool(self.journal.halt_scopes) and phase is not Phase.HALTED)  # noqa: B023 - as above
                )
            )

    def _stand_down(self, dispatcher: Dispatcher, state: State) -> bool:
        """Return the lease if nothing is in flight; sometimes try it in any case."""
        busy = bool(state.in_flight or state.cleanup_in_flight)
        if not busy or self.env.chance(0.5):
            self._append_input(
                dispatcher, state, StandDown(epoch=dispatcher.lease.epoch, why="shutdown")
            )
        return not busy

    def _fails_run(self, dispatcher: Dispatcher, state: State) -> bool:
        """Let the agent's own code raise with a small chance; return whether it did."""
        env = self.env
        if not env.agent_failures_left or state.in_flight or not env.chance(0.1):
            return False
        env.agent_failures_left -= 1
        self._append_input(
            dispatcher,
            state,
            FailRun(epoch=dispatcher.lease.epoch, error="KeyError", code="agent"),
        )
        return True

    def _stop_calls(self, dispatcher: Dispatcher, effects: tuple[DriverEffect, ...]) -> None:
        """Ask calls in flight to stop; nothing is journaled before they have."""
        for effect in effects:
            match effect:
                case AbortCall(call=call, reason=reason) if call in dispatcher.calls:
                    dispatcher.calls[call].stop_reason = reason
                case ControlChild(call=call, control=control) if call in dispatcher.calls:
                    dispatcher.calls[call].stop_reason = CHILD_STOP_REASONS[control]
                case _:
                    continue

    def _find_wake_at(self, state: State) -> Micros | None:
        is_timed = state.phase in (Phase.RUNNING, Phase.PAUSING)
        times = [find_wake_time(state)] if is_timed else []
        if not self.is_shutting_down:
            times.append(find_retry_time(state, self.env.now))
        return min((time for time in times if time is not None), default=None)

    def _is_due(self, dispatcher: Dispatcher, effect: DriverEffect) -> bool:
        if self.is_shutting_down or isinstance(effect, AbortCall | ControlChild):
            return False
        return not isinstance(effect, CheckCall) or (
            effect.call not in dispatcher.running_checks
        )

    def _advance(self, dispatcher: Dispatcher, state: State) -> None:
        """Append the entries that follow, in one batch or in several."""
        batch = self.journal.make_batch(self._choose_state(state))
        while batch.advance(reserve_model_call):
            if not self.env.chance(self.env.setup.batch_share):
                break
        dispatcher.commit(batch)

    def _perform(self, dispatcher: Dispatcher, effect: DriverEffect, state: State) -> None:
        epoch = dispatcher.lease.epoch
        match effect:
            case CheckCall(call=call):
                dispatcher.running_checks.add(call)
                made = state.find_call(call)
                tool = made.use.tool if made else ""
                steps = check_or_kill_process(
                    self.env, self.process, tool, dispatcher.run_check(call)
                )
                self.env.spawn(steps, self.process)
            case EvaluateStopCondition(name=name):
                met = self.env.stop_verdicts_left > 0 and self.env.chance(0.3)
                self.env.stop_verdicts_left -= met
                self._append_input(
                    dispatcher, state, RecordStopVerdict(epoch=epoch, name=name, met=met)
                )
            case RunHost():
                self._run_hosted_agent(dispatcher, state)
            case AbortCall() | ControlChild():
                raise AssertionError(effect)

    def _choose_state(self, state: State) -> State:
        """Return the state that was read, or the current one, at random."""
        return state if self.env.chance(0.5) else self.journal.state

    def _append_input(
        self, dispatcher: Dispatcher, state: State, driver_input: DriverInput
    ) -> None:
        batch = self.journal.make_batch(self._choose_state(state))
        if isinstance(self.journal.add_driver_input(batch, driver_input), Accepted):
            dispatcher.commit(batch)

    def _run_hosted_agent(self, dispatcher: Dispatcher, state: State) -> None:
        """Let the hosted agent propose its next calls, or finish."""
        if state.open_calls:
            return  # the program waits for its calls
        batch = self.journal.make_batch(self._choose_state(state))
        uses = propose_uses(self.env.program, state)
        for use in uses:
            self.journal.add_driver_input(
                batch, ProposeCall(epoch=dispatcher.lease.epoch, use=use)
            )
        if not uses:
            self.journal.add_driver_input(
                batch, FinishHostedAgent(epoch=dispatcher.lease.epoch, output="main:end")
            )
        dispatcher.commit(batch)

    def _wake_run(self, state: State) -> bool:
        """Set the time of the next timer; append the entries of those that are due.

        False if there are none.
        """
        self.wake_at = self._find_wake_at(state)
        if self.wake_at is None or self.wake_at > self.env.now:
            return False
        batch = self.journal.make_batch()
        batch.add(Wake())
        return bool(batch.entries) and self.journal.commit(batch)
