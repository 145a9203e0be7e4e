"""Faults: crashes, frozen processes, expired leases, clock jumps and shutdowns."""

from collections.abc import Callable
from contextlib import suppress

from midrun.core.controls import Lift
from midrun.core.driver_inputs import TakeLease, Wake
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
from midrun.errors import LeaseHeld
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Environment
from tests.support.simulate.scheduler import Steps
from tests.support.simulate.worker import Worker

HOUR_MICROS = 3_600_000_000
UNFREEZE_ENTRIES = (
    CancelRequested,
    CancelRequested,
    CallUnknown,
    AskAnswered,
    RunHalted,
    RunWaiting,
    UndoStarted,
)
"""A frozen process may wake up after one of these entries."""
CLOCK_JUMPS_MICROS = (HOUR_MICROS, 24 * HOUR_MICROS, -HOUR_MICROS, 100_000, 30_000)


class Faults:
    """The faults of a schedule, each as a thread that waits for its moment."""

    def __init__(self, env: Environment, start_driver: Callable[[], None]) -> None:
        self.env = env
        self.journal = env.journal
        self.drivers: list[Worker] = []
        self.start_driver = start_driver

    def _pick_driver(self) -> Worker | None:
        """Return a driver whose process is alive; mostly the one that holds the lease."""
        alive = [d for d in self.drivers if not (d.process.dead or d.process.frozen)]
        if not alive:
            return None
        if self.env.chance(0.7):
            holder = self.journal.holder
            return next((d for d in alive if d.process.name == holder), alive[0])
        return self.env.rng.choice(alive)

    def crash(self) -> Steps:
        """Kill a process and start another; the lease of the first expires later."""
        yield from self.env.wait_for_moment("fault")
        driver = self._pick_driver()
        if driver is None:
            return
        self.env.interrupted_activities |= {
            (activity, "crash") for activity in list_activities(self.journal.state)
        }
        self.env.scheduler.kill(driver.process)
        self.start_driver()
        yield from self._wait_some_steps()
        self.journal.expire_lease(driver.process.name)

    def replace_killed_processes(self) -> Steps:
        """Replace the processes that a call has killed, and let their leases expire."""
        while True:
            yield lambda: bool(self.env.killed_processes)
            process = self.env.killed_processes.pop(0)
            self.start_driver()
            yield from self._wait_some_steps()
            self.journal.expire_lease(process.name)

    def freeze(self) -> Steps:
        """Freeze a process until its lease has expired; it does not notice the pause."""
        yield from self.env.wait_for_moment("fault")
        driver = self._pick_driver()
        if driver is None:
            return
        process = driver.process
        self.env.interrupted_activities |= {
            (activity, "zombie") for activity in list_activities(self.journal.state)
        }
        process.frozen = True
        process.lapsed = True
        self.start_driver()
        yield from self._wait_some_steps()
        self.journal.expire_lease(process.name)
        way = self.env.rng.random()
        if way < 0.2:
            yield self.env.make_seq_condition(
                self.journal.state.seq + self.env.rng.randint(1, 8)
            )
        elif way < 0.75:
            kind = self.env.rng.choice(UNFREEZE_ENTRIES)
            yield lambda: self.journal.entry_counts[kind] > 0
        else:
            yield from self._wait_some_steps()
        process.frozen = False

    def expire_lease(self) -> Steps:
        """Let the lease of a live process expire."""
        yield from self.env.wait_for_moment("fault")
        if (driver := self._pick_driver()) is not None:
            driver.process.lapsed = True
            self.journal.expire_lease(driver.process.name)

    def jump_clock(self) -> Steps:
        """Set the clock forward or back."""
        yield from self.env.wait_for_moment("fault")
        self.env.now += self.env.rng.choice(CLOCK_JUMPS_MICROS)  # type: ignore[assignment]  # a time

    def shut_down(self) -> Steps:
        """Shut a process down gracefully, and start another."""
        yield from self.env.wait_for_moment("fault")
        if (driver := self._pick_driver()) is not None:
            driver.shut_down()
            self.start_driver()

    def grab_lease(self) -> Steps:
        """Try to take the lease of a process that is alive; the store must refuse."""
        yield from self.env.wait_for_moment("fault")
        holder = self.journal.holder
        batch = self.journal.make_batch()
        if not (holder and self.journal.is_alive(holder)):
            return
        if isinstance(batch.add(TakeLease(holder="grabber")), Accepted):
            with suppress(LeaseHeld):
                self.journal.take_lease(batch, "grabber")
                raise Violation("I6", f"the lease was taken from {holder}, which is alive")

    def _wait_some_steps(self) -> Steps:
        for _ in range(self.env.rng.randint(0, 10)):
            yield None


def list_activities(state: State) -> set[str]:
    """Return the activities that a fault would interrupt now."""
    flying = [state.calls[n - 1] for n in state.in_flight]
    asks = [state.asks[n - 1] for n in state.open_asks]
    found = {
        "frame": bool(state.frames),
        "child": any(call.call_kind == "child" for call in flying),
        "child asks": any(ask.ask_kind == "child" for ask in asks),
        "queued approval": any(not ask.blocking for ask in asks),
        "take-over": bool(state.taken_over_by),
        "condensing": any(call.purpose == "condense" for call in flying),
        "side question waits": any(p.kind == "message" for p in state.pending),
    }
    return {name for name, on in found.items() if on}


def wake_due_run(env: Environment) -> Steps:
    """Wake the run when the `wake_at` of its head is due."""
    while True:
        yield (
            lambda: (
                env.journal.wake_at is not None
                and env.journal.wake_at <= env.now
                and env.journal.state.phase is not Phase.HALTED
            )
        )
        batch = env.journal.make_batch()
        if not isinstance(batch.add(Wake()), Accepted):
            raise Violation("L5", f"the wake-up at {env.now} was not accepted and would repeat")
        env.journal.commit(batch)


def lift_uncovered_run(env: Environment) -> Steps:
    """Lift a run that is halted although no halt covers it any more."""
    while True:
        yield lambda: env.journal.state.phase is Phase.HALTED and not env.journal.halt_scopes
        batch = env.journal.make_batch()
        batch.add(Lift(by=Actor(name="system:latch", role="system")))
        env.journal.commit(batch)
