"""Run one schedule: its threads and faults, an operator who ends the run, and the checks."""

from typing import Final
from unittest.mock import patch

from midrun.core import session
from midrun.core.entries import ResidueAccepted
from midrun.core.ids import Micros
from midrun.core.state import State
from midrun.core.values import DRIVABLE_PHASES, Phase
from tests.support.simulate.checks import Violation
from tests.support.simulate.checks.audit import audit, audit_running
from tests.support.simulate.clients import Client, follow_feed, is_ended, list_open_asks
from tests.support.simulate.dispatcher import check_for_orphaned_children
from tests.support.simulate.environment import TICK_MICROS, Environment
from tests.support.simulate.faults import Faults, lift_uncovered_run, wake_due_run
from tests.support.simulate.journal import CheckedBatch
from tests.support.simulate.scheduler import Process
from tests.support.simulate.setup import Strategy
from tests.support.simulate.worker import Worker

STEPS_MAX: Final = 700
DRAIN_STEPS_MAX: Final = 1500
OPERATOR_ACTIONS_MAX: Final = 60


class Simulation:
    """One schedule of a seed."""

    def __init__(self, seed: int, strategy: Strategy) -> None:
        self.env = Environment(seed, strategy)
        self.faults = Faults(self.env, self._start_driver)
        self.operator = Client(self.env, "otto", Process("otto", "client"))
        self.undo_retries_left = self.env.rng.randint(0, 2)
        self._spawn_threads()

    def _spawn_threads(self) -> None:
        env, setup = self.env, self.env.setup
        for _ in range(setup.drivers):
            self._start_driver()
        for number, ops in enumerate(setup.client_sequences):
            process = Process(f"p{number}", "client")
            env.spawn(Client(env, f"p{number}", process).steps(ops), process)
        system = Process("system", "system")
        env.spawn(wake_due_run(env), system)
        env.spawn(lift_uncovered_run(env), system)
        if env.worker_kills_left:
            env.spawn(self.faults.replace_killed_processes(), system)
        if env.chance(0.3):
            env.spawn(follow_feed(env), system)
        fault_process = Process("faults", "fault")
        for kind, count in (
            (self.faults.crash, setup.crashes),
            (self.faults.freeze, setup.freezes),
            (self.faults.expire_lease, setup.lease_lapses),
            (self.faults.jump_clock, setup.clock_jumps),
            (self.faults.shut_down, setup.shutdowns),
            (self.faults.grab_lease, setup.lease_grabs),
        ):
            for _ in range(count):
                env.spawn(kind(), fault_process)

    def _start_driver(self) -> None:
        process = Process(f"w{len(self.faults.drivers) + 1}", "driver")
        driver = Worker(self.env, process)
        self.faults.drivers.append(driver)
        self.env.spawn(driver.steps(), process)

    def run(self) -> None:
        """Run the schedule, let an operator bring the run to its end, and check everything.

        Raises:
            Violation: a rule is broken.
        """
        with patch.object(session, "Batch", CheckedBatch):
            self._run_threads()
            self._run_drain()
        audit(self.env)

    def _run_threads(self) -> None:
        env, scheduler = self.env, self.env.scheduler
        while scheduler.step_count < STEPS_MAX:
            enabled = scheduler.list_enabled()
            if not enabled:
                if not self._advance_clock():
                    break
                continue
            env.now = Micros(env.now + TICK_MICROS)
            scheduler.step(scheduler.pick(enabled))

    def _advance_clock(self) -> bool:
        """Set the clock to the next timer; False if there is none."""
        env = self.env
        for driver in self.faults.drivers:
            if driver.loop is not None:
                driver.loop.check_idle()
        times = [env.journal.wake_at] if env.journal.state.phase is not Phase.HALTED else []
        times += [driver.wake_at for driver in self.faults.drivers]
        ahead = [time for time in times if time is not None and time > env.now]
        if not ahead:
            return False
        env.now = Micros(min(ahead))
        return True

    # ── the end of the run ────────────────────────────────────────────────────────────────

    def _run_drain(self) -> None:
        try:
            self._drain()
        except Violation:
            audit_running(self.env)  # an earlier violation explains more
            raise

    def _drain(self) -> None:
        """Stop faults and clients; only drivers and one operator continue."""
        env, scheduler = self.env, self.env.scheduler
        env.is_draining = True
        for thread in scheduler.threads:
            thread.process.frozen = False
        scheduler.threads = [
            t for t in scheduler.threads if t.process.kind not in {"fault", "client"}
        ]
        for driver in self.faults.drivers:
            if driver.process.dead:
                env.journal.expire_lease(driver.process.name)
        if not any(self._is_available(driver) for driver in self.faults.drivers):
            self._start_driver()
        self._run_to_end()

    def _run_to_end(self) -> None:
        """Run all threads in turn until the run has ended; let the operator unblock it."""
        env, scheduler = self.env, self.env.scheduler
        steps = operator_actions = 0
        while steps < DRAIN_STEPS_MAX and operator_actions < OPERATOR_ACTIONS_MAX:
            steps += 1
            if enabled := scheduler.list_enabled():
                for thread in enabled:
                    env.now = Micros(env.now + TICK_MICROS)
                    if thread in scheduler.threads and scheduler.is_ready(thread):
                        scheduler.step(thread)
            elif not self._advance_clock():
                if is_ended(env.journal.state) and not self._wants_undo_retry():
                    return
                operator_actions += 1
                self._unblock(env.journal.state)
        raise Violation("L1", f"the run does not end: {env.journal.state.phase}")

    @staticmethod
    def _is_available(driver: Worker) -> bool:
        return not (driver.process.dead or driver.is_shutting_down)

    def _wants_undo_retry(self) -> bool:
        """Return whether the operator retries a failed undo."""
        state, accepted = self.env.journal.state, self.env.journal.entry_counts[ResidueAccepted]
        if not state.residue or accepted or not self.undo_retries_left:
            return False
        self.undo_retries_left -= 1
        return True

    def _unblock(self, state: State) -> None:
        """Send the control that continues a run without progress."""
        before = state.seq
        match state.phase:
            case Phase.HALTED:
                self._operate("lift")
            case Phase.PAUSED | Phase.FAILED if state.taken_over_by:
                self.operator.name = state.taken_over_by
                self._operate("hand_back")
            case Phase.PAUSED | Phase.FAILED if state.pause and state.pause.cap_name:
                self._operate("resume_caps")
            case Phase.PAUSED | Phase.FAILED:
                self._operate("resume")
            case Phase.WAITING:
                check_for_orphaned_children(self.env, state, state.seq)
                kinds = [ask.ask_kind for ask in list_open_asks(state)]
                kind = kinds[0] if kinds else "question"
                on_child = kind == "child" and self.env.chance(0.5)
                answer = "answer_on_child" if on_child else "answer"
                self._operate("approve" if kind == "approval" else answer)
            case Phase.CANCELLED | Phase.COMPLETED:
                again = state.phase is Phase.CANCELLED and self.env.chance(0.7)
                self._operate("retry_undo" if again else "accept_residue")
            case phase if phase in DRIVABLE_PHASES:
                raise Violation("L1", f"stuck in {phase}: no thread can continue")
            case phase:
                raise Violation("L1", f"stuck in {phase}")
        if self.env.journal.state.seq == before:
            last = self.env.replies[-1] if self.env.replies else None
            raise Violation("L1", f"stuck in {state.phase}: the operator got {last}")

    def _operate(self, op: str) -> None:
        for _ in self.operator.perform(op):
            continue
