"""One schedule from beginning to end: cast, chaos, a good operator, and the checks."""

from typing import Final

from midrun.core.entries import ResidueAccepted
from midrun.core.ids import Micros
from midrun.core.state import State
from midrun.core.values import DRIVABLE_PHASES, Phase
from tests.support.simulate.checks import Violation
from tests.support.simulate.checks.audit import audit, audit_so_far
from tests.support.simulate.clients import Person, is_over, open_asks, reader
from tests.support.simulate.dispatcher import left_behind
from tests.support.simulate.driver import Driver
from tests.support.simulate.environment import TICK, Scene
from tests.support.simulate.faults import Faults, lifter, waker
from tests.support.simulate.scheduler import Process
from tests.support.simulate.setup import Strategy

STEPS_MAX: Final = 700
DRAIN_MAX: Final = 1500
ROUNDS_MAX: Final = 60


class Universe:
    """A schedule that can be run."""

    def __init__(self, seed: int, strategy: Strategy) -> None:
        self.scene = Scene(seed, strategy)
        self.faults = Faults(self.scene, self._start_driver)
        self.operator = Person(self.scene, "otto", Process("otto", "person"))
        self.retries = self.scene.rng.randint(0, 2)  # of the undo of what could not be undone
        self._cast()

    def _cast(self) -> None:
        scene, setup = self.scene, self.scene.setup
        for _ in range(setup.drivers):
            self._start_driver()
        for number, ops in enumerate(setup.people):
            process = Process(f"p{number}", "person")
            scene.spawn(Person(scene, f"p{number}", process).steps(ops), process)
        system = Process("system", "system")
        scene.spawn(waker(scene), system)
        scene.spawn(lifter(scene), system)
        if scene.poison:
            scene.spawn(self.faults.miss(), system)
        if scene.chance(0.3):
            scene.spawn(reader(scene), system)
        chaos = Process("chaos", "fault")
        for kind, count in (
            (self.faults.crash, setup.crashes),
            (self.faults.freeze, setup.freezes),
            (self.faults.lapse, setup.lapses),
            (self.faults.jump, setup.jumps),
            (self.faults.stand_down, setup.stand_downs),
            (self.faults.grab, setup.grabs),
        ):
            for _ in range(count):
                scene.spawn(kind(), chaos)

    def _start_driver(self) -> None:
        process = Process(f"w{len(self.faults.drivers) + 1}", "driver")
        driver = Driver(self.scene, process)
        self.faults.drivers.append(driver)
        self.scene.spawn(driver.steps(), process)

    def run(self) -> None:
        """Play the schedule, then let a good operator bring the run to its end.

        Raises:
            Violation: something happened that must not.
        """
        scene, scheduler = self.scene, self.scene.scheduler
        while scheduler.count < STEPS_MAX:
            enabled = scheduler.enabled()
            if not enabled:
                if not self._leap():
                    break
                continue
            scene.now = Micros(scene.now + TICK)
            scheduler.step(scheduler.pick(enabled))
        try:
            self._drain()
        except Violation:
            audit_so_far(scene)  # what broke first says more than where it led
            raise
        audit(scene)

    def _leap(self) -> bool:
        """Let time pass until something is due; False if nothing ever is."""
        scene = self.scene
        times = [scene.desk.wake_at] if scene.desk.state.phase is not Phase.HALTED else []
        times += [driver.timer for driver in self.faults.drivers if not driver.process.dead]
        ahead = [time for time in times if time is not None and time > scene.now]
        if not ahead:
            return False
        scene.now = Micros(min(ahead))
        return True

    # ── the end ───────────────────────────────────────────────────────────────────────────

    def _drain(self) -> None:
        """No more faults, no more people but one who wants the run to end well."""
        scene, scheduler = self.scene, self.scene.scheduler
        scene.draining = True
        for thread in scheduler.threads:
            thread.process.frozen = False
        scheduler.threads = [
            t for t in scheduler.threads if t.process.kind not in {"fault", "person"}
        ]
        for driver in self.faults.drivers:
            driver.leaving = driver.leaving and not driver.process.dead
            if driver.process.dead:
                scene.desk.lapse(driver.process.name)
        if not any(self._works(driver) for driver in self.faults.drivers):
            self._start_driver()
        self._settle()

    def _settle(self) -> None:
        """Let everybody act in turn until the run is over; help it where it stands still."""
        scene, scheduler = self.scene, self.scene.scheduler
        steps = rounds = 0
        while steps < DRAIN_MAX and rounds < ROUNDS_MAX:
            steps += 1
            if enabled := scheduler.enabled():
                for thread in enabled:
                    scene.now = Micros(scene.now + TICK)
                    if thread in scheduler.threads and scheduler.is_ready(thread):
                        scheduler.step(thread)
            elif not self._leap():
                if is_over(scene.desk.state) and not self._tries_again():
                    return
                rounds += 1
                self._help(scene.desk.state)
        raise Violation("L1", f"does not settle: {scene.desk.state.phase}")

    @staticmethod
    def _works(driver: Driver) -> bool:
        return not (driver.process.dead or driver.leaving)

    def _tries_again(self) -> bool:
        """Tell whether the operator minds what could not be undone."""
        state, accepted = self.scene.desk.state, self.scene.desk.tally[ResidueAccepted]
        if not state.residue or accepted or not self.retries:
            return False
        self.retries -= 1
        return True

    def _help(self, state: State) -> None:
        """Do what a good operator does about a run that stands still."""
        before = state.seq
        match state.phase:
            case Phase.HALTED:
                self._does("lift")
            case Phase.PAUSED | Phase.FAILED if state.operator_name:
                self.operator.name = state.operator_name
                self._does("hand_back")
            case Phase.PAUSED | Phase.FAILED if state.pause and state.pause.cap_name:
                self._does("resume_caps")
            case Phase.PAUSED | Phase.FAILED:
                self._does("resume")
            case Phase.WAITING:
                left_behind(self.scene, state)
                kinds = [ask.ask_kind for ask in open_asks(state)]
                kind = kinds[0] if kinds else "question"
                on_child = kind == "child" and self.scene.chance(0.5)
                answer = "answer_on_child" if on_child else "answer"
                self._does("approve" if kind == "approval" else answer)
            case Phase.CANCELLED | Phase.COMPLETED:
                again = state.phase is Phase.CANCELLED and self.scene.chance(0.7)
                self._does("retry_undo" if again else "accept_residue")
            case phase if phase in DRIVABLE_PHASES:
                raise Violation("L1", f"stuck in {phase}: nobody has anything to do")
            case phase:
                raise Violation("L1", f"stuck in {phase}")
        if self.scene.desk.state.seq == before:
            last = self.scene.told[-1] if self.scene.told else None
            raise Violation("L1", f"stuck in {state.phase}: the operator was told {last}")

    def _does(self, op: str) -> None:
        for _ in self.operator.does(op):
            continue
