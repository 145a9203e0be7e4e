"""Faults: processes crash and freeze, leases lapse, clocks jump, shutdowns come."""

from collections.abc import Callable

from midrun.core.controls import Lift
from midrun.core.driver_inputs import Wake
from midrun.core.entries import (
    AskAnswered,
    CallUnknown,
    CancelRequested,
    RunHalted,
    RunWaiting,
    UndoStarted,
)
from midrun.core.state import State
from midrun.core.transitions import Accepted
from midrun.core.values import Actor, Phase
from tests.support.simulate.checks import Violation
from tests.support.simulate.driver import Driver
from tests.support.simulate.environment import Scene
from tests.support.simulate.scheduler import Steps

HOUR = 3_600_000_000
WAKING = (
    CancelRequested,
    CancelRequested,
    CallUnknown,
    AskAnswered,
    RunHalted,
    RunWaiting,
    UndoStarted,
)
"""What may have happened when a frozen process wakes up."""
JUMPS = (HOUR, 24 * HOUR, -HOUR, 100_000, 30_000)


class Faults:
    """What goes wrong, each at its moment."""

    def __init__(self, scene: Scene, restart: Callable[[], None]) -> None:
        self.scene = scene
        self.desk = scene.desk
        self.drivers: list[Driver] = []
        self.restart = restart

    def _victim(self) -> Driver | None:
        """Return a driver's process that is alive; most often the one that has the run."""
        alive = [d for d in self.drivers if not (d.process.dead or d.process.frozen)]
        if not alive:
            return None
        if self.scene.chance(0.7):
            holder = self.desk.holder
            return next((d for d in alive if d.process.name == holder), alive[0])
        return self.scene.rng.choice(alive)

    def crash(self) -> Steps:
        """Kill a process; its lease lapses some time later, and a new one starts."""
        yield from self.scene.placed("fault")
        driver = self._victim()
        if driver is None:
            return
        self.scene.struck |= {(one, "crash") for one in under_way(self.desk.state)}
        self.scene.scheduler.end(driver.process)
        self.restart()
        yield from self._pause()
        self.desk.lapse(driver.process.name)

    def miss(self) -> Steps:
        """Miss the processes that a call has ended: their leases lapse, and others start."""
        while True:
            yield lambda: bool(self.scene.fallen)
            process = self.scene.fallen.pop(0)
            self.restart()
            yield from self._pause()
            self.desk.lapse(process.name)

    def freeze(self) -> Steps:
        """Stop a process for so long that its lease lapses; it wakes up knowing nothing."""
        yield from self.scene.placed("fault")
        driver = self._victim()
        if driver is None:
            return
        process = driver.process
        self.scene.struck |= {(one, "zombie") for one in under_way(self.desk.state)}
        process.frozen = True
        process.lapsed = True
        self.restart()
        yield from self._pause()
        self.desk.lapse(process.name)
        way = self.scene.rng.random()
        if way < 0.2:
            yield self.scene.from_seq(self.desk.state.seq + self.scene.rng.randint(1, 8))
        elif way < 0.75:
            kind = self.scene.rng.choice(WAKING)
            yield lambda: self.desk.tally[kind] > 0
        else:
            yield from self._pause()
        process.frozen = False

    def lapse(self) -> Steps:
        """Let the store hear nothing of a live process for too long."""
        yield from self.scene.placed("fault")
        if (driver := self._victim()) is not None:
            driver.process.lapsed = True
            self.desk.lapse(driver.process.name)

    def jump(self) -> Steps:
        """Set the clock forward or back."""
        yield from self.scene.placed("fault")
        self.scene.now += self.scene.rng.choice(JUMPS)  # type: ignore[assignment]  # a time

    def stand_down(self) -> Steps:
        """Shut a process down in an orderly way."""
        yield from self.scene.placed("fault")
        if (driver := self._victim()) is not None:
            driver.leaving = True
            self.restart()

    def grab(self) -> Steps:
        """Try to take the run from a process that is alive, as a second wake-up would."""
        yield from self.scene.placed("fault")
        holder = self.desk.holder
        if holder and self.desk.alive(holder) and self.desk.take("grabber") is not None:
            raise Violation("I6", f"the lease was taken from {holder}, who is alive")

    def _pause(self) -> Steps:
        for _ in range(self.scene.rng.randint(0, 10)):
            yield None


def under_way(state: State) -> set[str]:
    """Return what a fault that comes now would hit, of all that an agent has on its mind."""
    flying = [state.calls[n - 1] for n in state.in_flight]
    asks = [state.asks[n - 1] for n in state.open_asks]
    found = {
        "frame": bool(state.frames),
        "child": any(call.call_kind == "child" for call in flying),
        "child asks": any(ask.ask_kind == "child" for ask in asks),
        "queued approval": any(not ask.blocking for ask in asks),
        "take-over": bool(state.operator_name),
        "condensing": any(call.purpose == "condense" for call in flying),
        "side question waits": any(p.kind == "message" for p in state.pending),
    }
    return {name for name, on in found.items() if on}


def waker(scene: Scene) -> Steps:
    """Wake the run when its time has come, as a store's index says."""
    while True:
        yield (
            lambda: (
                scene.desk.wake_at is not None
                and scene.desk.wake_at <= scene.now
                and scene.desk.state.phase is not Phase.HALTED
            )
        )
        batch = scene.desk.batch()
        if not isinstance(batch.add(Wake()), Accepted):
            raise Violation("L5", f"woken at {scene.now} for nothing, again and again")
        scene.desk.commit(batch)


def lifter(scene: Scene) -> Steps:
    """Lift a run that is halted although no latch covers it any more."""
    while True:
        yield lambda: scene.desk.state.phase is Phase.HALTED and not scene.desk.latches
        batch = scene.desk.batch()
        batch.add(Lift(by=Actor(name="system:latch", role="system")))
        scene.desk.commit(batch)
