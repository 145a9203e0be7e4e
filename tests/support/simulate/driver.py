"""The driver: take the lease, read, plan, carry out orders; drop everything when fenced.

It decides nothing. Each order becomes evidence that is decided on a state it has read; when
the journal has moved on meanwhile, it reads again.
"""

from midrun.core.controls import Halt
from midrun.core.driver_inputs import (
    CrossBoundary,
    DriverInput,
    FailRun,
    FinishHostedAgent,
    ProposeCall,
    RecordStopVerdict,
    SettlePhase,
    StandDown,
    StartUndo,
    Wake,
)
from midrun.core.effects import (
    AbortCall,
    Advance,
    CallModel,
    CallTool,
    CheckCall,
    ControlChild,
    DriverEffect,
    EvaluateStopCondition,
    Park,
    Release,
    RunHost,
    Settle,
    Undo,
    WakeAt,
)
from midrun.core.ids import Micros
from midrun.core.scheduler import plan_effects
from midrun.core.state import State
from midrun.core.transitions import Accepted
from midrun.core.values import DRIVABLE_PHASES, Actor, Phase
from tests.support.simulate.dispatcher import Door, checked
from tests.support.simulate.environment import Scene
from tests.support.simulate.programs import proposals
from tests.support.simulate.scheduler import Process, Steps


class Driver:
    """One process's loop over one run."""

    def __init__(self, scene: Scene, process: Process) -> None:
        self.scene = scene
        self.desk = scene.desk
        self.process = process
        self.leaving = False
        self.timer: Micros | None = None  # when it wants to be looked at again

    def steps(self) -> Steps:
        """Take the run whenever it can be had, and drive it."""
        while True:
            self.timer = None
            yield self._claimable
            if self.leaving:
                self.desk.lapse(self.process.name)  # it lets go of whatever it may still hold
                return
            if scopes := self.desk.latches:
                self._hold(scopes[0])
                continue
            if self.scene.chance(self.scene.setup.snapshots):
                self.desk.recover()
            self.process.lapsed = False
            lease = self.desk.take(self.process.name)
            if lease is not None:
                yield from self._drive(Door(self.scene, self.process, lease))

    def _claimable(self) -> bool:
        if self.leaving:
            return True
        own = self.desk.holder == self.process.name  # left over from an epoch it has dropped
        return self.desk.state.phase in DRIVABLE_PHASES and (own or self.desk.drivable())

    def _hold(self, scope: str) -> None:
        """Halt a run that nobody drives, now that it is touched."""
        batch = self.desk.batch()
        batch.add(Halt(by=Actor(name="olga", role="operator"), scope=scope))
        self.desk.commit(batch)

    def _drive(self, door: Door) -> Steps:
        while True:
            yield None
            state = self.desk.state
            if not door.holds():
                door.drop()
                return
            if self.scene.chance(self.scene.setup.snapshots):
                self.desk.snapshot()
            heard = self.scene.chance(0.6)  # word of a latch may come late
            if heard and state.phase is not Phase.HALTED and (scopes := self.desk.latches):
                door.meet(scopes[0], "olga")
                continue
            busy = state.in_flight or state.cleanup_in_flight
            if self.leaving and (not busy or self.scene.chance(0.5)):
                self._bring(door, state, StandDown(epoch=door.lease.epoch, why="shutdown"))
                if not busy:
                    continue
            orders = plan_effects(state)
            self._pass_on(door, orders)
            self.timer = self._timer(orders)
            acting = [o for o in orders if self._is_acting(door, o)]
            if acting:
                if self._breaks(door, state):
                    continue
                yield None  # prompts are built, hosts run: the world may change meanwhile
                self._carry_out(door, acting, state)
                continue
            seq, phase, leaving = state.seq, state.phase, self.leaving
            yield (
                lambda: (
                    self.desk.state.seq > seq  # noqa: B023 - read before the next turn of the loop
                    or not door.holds()
                    or self.leaving is not leaving  # noqa: B023 - as above
                    or (self.timer is not None and self.scene.now >= self.timer)
                    or (bool(self.desk.latches) and phase is not Phase.HALTED)  # noqa: B023 - as above
                )
            )

    def _breaks(self, door: Door, state: State) -> bool:
        """Let the agent's own code raise, now and then; tell whether it did."""
        scene = self.scene
        if not scene.agent_failures or state.in_flight or not scene.chance(0.1):
            return False
        scene.agent_failures -= 1
        self._bring(
            door, state, FailRun(epoch=door.lease.epoch, error="KeyError", code="agent")
        )
        return True

    def _pass_on(self, door: Door, orders: tuple[DriverEffect, ...]) -> None:
        """Tell calls in flight to stop: nothing is journaled until they have."""
        for order in orders:
            match order:
                case AbortCall(call=call, reason=because) if call in door.tasks:
                    door.tasks[call].stop = because
                case ControlChild(call=call, control=control) if call in door.tasks:
                    door.tasks[call].stop = "cancelled" if control == "cancel" else control
                case _:
                    continue

    def _timer(self, orders: tuple[DriverEffect, ...]) -> Micros | None:
        times = [o.at for o in orders if isinstance(o, WakeAt)]
        times += [
            o.not_before
            for o in orders
            if isinstance(o, CallModel | Undo | Release) and o.not_before and not self.leaving
        ]
        return min(times, default=None)

    def _is_acting(self, door: Door, order: DriverEffect) -> bool:
        if self.leaving and not isinstance(order, WakeAt):
            return False
        match order:
            case AbortCall() | ControlChild():
                return False
            case WakeAt(at=at):
                return at <= self.scene.now
            case (
                CallModel(not_before=after) | Undo(not_before=after) | Release(not_before=after)
            ):
                return after is None or after <= self.scene.now
            case CheckCall(call=call):
                return call not in door.checking
            case _:
                return True

    def _carry_out(self, door: Door, orders: list[DriverEffect], state: State) -> None:
        """Carry out the first order, and the starts beside it."""
        epoch = door.lease.epoch
        match orders[0]:
            case Advance():
                self._bring(door, state, CrossBoundary(epoch=epoch))
            case CallModel() | CallTool():
                starts = [o for o in orders if isinstance(o, CallModel | CallTool)]
                self._start(door, starts, state)
            case CheckCall(call=call):
                door.checking.add(call)
                made = state.find_call(call)
                tool = made.use.tool if made else ""
                steps = checked(self.scene, self.process, tool, door.check(call))
                self.scene.spawn(steps, self.process)
            case EvaluateStopCondition(name=name):
                met = self.scene.verdicts_left > 0 and self.scene.chance(0.3)
                self.scene.verdicts_left -= met
                self._bring(door, state, RecordStopVerdict(epoch=epoch, name=name, met=met))
            case Undo(call=call, action=action) | Release(call=call, action=action):
                self._bring(door, state, StartUndo(epoch=epoch, call=call, action=action))
            case RunHost():
                self._host(door, state)
            case Settle():
                self._bring(door, state, SettlePhase(epoch=epoch))
            case Park():
                self._bring(door, state, StandDown(epoch=epoch, why="halted"))
            case WakeAt():
                self._wake()
            case _:
                raise AssertionError(orders[0])

    def _view(self, state: State) -> State:
        """Decide on what was read a moment ago, or on what the journal says now."""
        return state if self.scene.chance(0.5) else self.desk.state

    def _bring(self, door: Door, state: State, given: DriverInput) -> None:
        batch = self.desk.batch(self._view(state))
        if isinstance(self.desk.bring(batch, given), Accepted):
            door.commit(batch)

    def _start(self, door: Door, orders: list[CallModel | CallTool], state: State) -> None:
        batch = self.desk.batch(self._view(state))
        for order in orders:
            before = batch.state.phase
            verdict = door.start(batch, order, state.seq)
            if not isinstance(verdict, Accepted) or batch.state.phase is not before:
                break
            if not self.scene.chance(self.scene.setup.batches):
                break
        door.commit(batch)

    def _host(self, door: Door, state: State) -> None:
        """Let the hosted agent make one move: propose calls, or return."""
        batch = self.desk.batch(self._view(state))
        uses = proposals(self.scene.program, state)
        for use in uses:
            self.desk.bring(batch, ProposeCall(epoch=door.lease.epoch, use=use))
        if not uses:
            self.desk.bring(batch, FinishHostedAgent(epoch=door.lease.epoch, output="main:end"))
        door.commit(batch)

    def _wake(self) -> None:
        batch = self.desk.batch()
        batch.add(Wake())
        if batch.entries:
            self.desk.commit(batch)
