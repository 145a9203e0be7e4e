"""A worker process: it takes the lease of the run and drives the shipped `Session`.

`RunLoop` stands for `driver.run_loop`. It performs the operations of the session on a store
that is slow, refuses an operation now and then, or loses its reply, and it delivers the notices
late. It decides nothing.

At each yield the process may crash, freeze or lose its lease.
"""

from collections.abc import Generator
from typing import assert_never

from midrun.core.controls import Halt
from midrun.core.driver_inputs import TakeLease
from midrun.core.entries import (
    LeaseReleased,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPaused,
    RunWaiting,
)
from midrun.core.ids import Micros
from midrun.core.retries import WORKER_DEATHS_MAX
from midrun.core.session import (
    AppendBatch,
    Appended,
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
)
from midrun.core.state import CallState, State
from midrun.core.values import (
    DRIVABLE_PHASES,
    Actor,
    CallPurpose,
    Phase,
    Spend,
    WorkKind,
)
from midrun.errors import HaltInForce, LeaseHeld, SeqConflict, StaleEpoch
from midrun.ports.store import Lease
from tests.support.simulate.checks import Violation
from tests.support.simulate.dispatcher import Dispatcher
from tests.support.simulate.environment import Environment
from tests.support.simulate.programs import add_milliseconds
from tests.support.simulate.scheduler import Condition, Process, Steps

MODEL_RESERVE = Spend(tokens=10, cost=1000)
REST_ENTRIES = (RunPaused, RunWaiting, RunCancelled, RunCompleted, LeaseReleased)
IDLE_TURNS_MAX = 30
"""More turns in a row without an effect mean that a session spins."""


class RunLoop:
    """Drives the run under one lease, from taking the lease to giving it back."""

    def __init__(self, env: Environment, process: Process, state: State) -> None:
        self.env = env
        self.journal = env.journal
        self.process = process
        self.session = Session(
            state, TakeLease(holder=process.name), self._reserve, self._may_start
        )
        self.dispatcher = Dispatcher(env, process, wake=self.wake, fence=self.fence)
        self.lease: Lease | None = None
        self.wake_at: Micros | None = None  # when the wait of the loop ends
        self.is_over = False
        self._has_news = False
        self._announced_seq = state.seq
        self._announced_halt_changes = 0
        self._gate_opens_at: Micros | None = None
        self._idle_turns = 0

    # ── notices ───────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """End the wait of the loop."""
        self._has_news = True

    def fence(self) -> None:
        """Stop at once, because the lease may be lost."""
        self.session.take_notice(LeaseLost())
        self.dispatcher.close()
        self.wake()

    def stand_down(self) -> None:
        """Give the run back soon."""
        self.session.take_notice(StandDownRequested(reason="shutdown"))
        self.wake()

    def _deliver_notices(self) -> Steps:
        """Tell the session about new entries, halts and the end of its lease; often late."""
        while not self.is_over:
            yield self._has_notice
            if self.process.lapsed:
                self.fence()
                return
            if self._announced_seq < self.journal.state.seq:
                self._announced_seq = self.journal.state.seq
                if self.session.take_notice(JournalGrew(seq=self._announced_seq)):
                    self.wake()
            if self._announced_halt_changes != self.journal.halt_changes:
                self._announced_halt_changes = self.journal.halt_changes
                if scopes := self.journal.halt_scopes:
                    self.session.take_notice(HaltSet(halt=_make_halt(scopes[0])))
                    self.wake()

    def _has_notice(self) -> bool:
        return (
            self.is_over
            or self.process.lapsed
            or self._announced_seq < self.journal.state.seq
            or self._announced_halt_changes != self.journal.halt_changes
        )

    # ── the loop ──────────────────────────────────────────────────────────────────────────

    def steps(self) -> Steps:
        """Drive the run until there is nothing left to drive."""
        self.env.spawn(self._deliver_notices(), self.process)
        result: Result | None = self._collect_inputs()
        while result is not None:
            step = self.session.receive(result, self.env.now)
            self.journal.check_session_state(self.session.state)
            self._check_rest(step)
            self._start_and_stop_calls(step)
            match step.operation:
                case ReadJournal():
                    result = yield from self._read(step.operation)
                case AppendBatch():
                    result = yield from self._append(step.operation)
                case Proceed():
                    result = self._collect_inputs()
                case WaitForStore():
                    yield None
                    result = self._collect_inputs()
                case WaitForNews(until=until):
                    yield from self._wait(until)
                    result = self._collect_inputs()
                case Finish():
                    result = None
                case _:
                    assert_never(step.operation)
        self.is_over = True
        self.dispatcher.close()

    def _check_rest(self, step: Step) -> None:
        """Check that the session has not brought the run to rest while a hook runs."""
        rests = [e for e in step.appended if isinstance(e, REST_ENTRIES)]
        if rests and self.dispatcher.hooks and not self.dispatcher.is_closed:
            raise Violation("HOOKS", f"{rests[0]}, but {[*self.dispatcher.hooks]} run")

    def check_idle(self) -> None:
        """Check that a session with nothing to do has seen all entries and halts."""
        if self.process.dead or self.process.frozen or self.process.lapsed or self.is_over:
            return
        state, newest = self.session.state, self.journal.state
        if state.seq != newest.seq:
            raise Violation("L5", f"the session waits at {state.seq}, {newest.seq} is the end")
        halts = self.journal.halt_scopes
        if halts and newest.is_leased and newest.phase is not Phase.HALTED:
            raise Violation("I12", f"the run is {newest.phase} under the halt {halts[0]}")

    def _collect_inputs(self) -> Ready:
        self._gate_opens_at = None
        return Ready(
            inputs=tuple([one.driver_input for one in self.dispatcher.pending_inputs]),
            unjournaled_work=bool(self.dispatcher.hooks),
        )

    def _start_and_stop_calls(self, step: Step) -> None:
        dispatcher = self.dispatcher
        if step.is_leaving:
            dispatcher.begin_shutdown()
        dispatcher.start(step.appended, self.session.state)
        settled = dispatcher.pending_inputs[: step.recorded_count]
        del dispatcher.pending_inputs[: step.recorded_count]
        for position, pending in enumerate(settled):
            is_late = position in step.late
            if pending.save_waiter is not None:
                pending.save_waiter.is_durable = not is_late
                pending.save_waiter.is_done = True
            if is_late:
                self.journal.late_count += 1
                dispatcher.report_late(pending)
        if isinstance(step.operation, WaitForNews | Finish):
            dispatcher.apply(step.effects, self.session.state)

    def _wait(self, until: Micros | None) -> Steps:
        if self.env.chance(self.env.setup.snapshot_share):
            self.journal.save_snapshot(self.session.state)
        seq = self.session.state.seq
        times = [time for time in (until, self._gate_opens_at) if time is not None]
        self.wake_at = min(times, default=None)
        yield self._is_wait_over
        if self._has_news or self.session.state.seq > seq:
            self._idle_turns = 0
        self._idle_turns += 1
        if self._idle_turns > IDLE_TURNS_MAX:
            raise Violation("L5", f"the session spins at {seq}: it waits until {self.wake_at}")
        self._has_news = False
        self.wake_at = None

    def _is_wait_over(self) -> bool:
        return self._has_news or (self.wake_at is not None and self.env.now >= self.wake_at)

    def _may_start(self, call: CallState | None, work_kind: WorkKind) -> bool:
        """Hold back a suspect call for a while, as if another run held the gate."""
        if work_kind != "call" or call is None or call.worker_deaths < WORKER_DEATHS_MAX - 1:
            return True
        if self.env.chance(0.7):
            return True
        self._gate_opens_at = add_milliseconds(self.env.now, 5)
        return False

    def _reserve(self, _: State, __: CallPurpose) -> Spend | RunFailed:
        if self.env.draw_agent_failure(0.05):
            return RunFailed(error="KeyError", code="model_error")
        return MODEL_RESERVE

    # ── the store ─────────────────────────────────────────────────────────────────────────

    def _fails(self) -> bool:
        return not self.env.is_draining and self.env.chance(self.env.setup.store_failure_share)

    def _read(
        self, operation: ReadJournal
    ) -> Generator[Condition, None, JournalRead | ReadFailed]:
        yield from self.env.wait_for_network()
        if self._fails():
            return ReadFailed()
        records = self.journal.read_records(after=operation.after)
        # The journal may grow, and a notice may come before the reply.
        yield from self.env.wait_for_network()
        return JournalRead(records=records)

    def _append(
        self, operation: AppendBatch
    ) -> Generator[Condition, None, Appended | NotAppended | None]:
        """Append the batch; return None if another worker has the lease."""
        yield from self.env.wait_for_network()
        failure = ""
        if self._fails():
            failure = self.env.rng.choice(("unavailable", "no reply", "lost", "delayed"))
        if failure == "unavailable":
            return NotAppended(reason="unavailable")
        if failure == "delayed":
            self.env.spawn(self._commit_later(operation, self.lease), self.env.network)
        if failure in {"lost", "delayed"}:
            return NotAppended(reason="unknown")
        result = self._commit(operation, self.lease)
        if failure == "no reply":
            return NotAppended(reason="unknown")
        if isinstance(result, Lease):
            self.lease = result
            self.dispatcher.epoch = result.epoch
            result = Appended(at=self.journal.state.at, epoch=result.epoch)
        yield from self.env.wait_for_network()
        return result

    def _commit(
        self, operation: AppendBatch, held: Lease | None
    ) -> Appended | NotAppended | Lease | None:
        """Append the batch, or take the lease; return None if another worker has the lease."""
        batch, journal = operation.batch, self.journal
        lease = held if operation.lease == "held" else None
        try:
            if operation.lease == "take":
                return journal.take_lease(batch, self.process.name)
            if not journal.commit(batch, lease, at=batch.now):
                return NotAppended(reason="conflict")
        except SeqConflict:
            return NotAppended(reason="conflict")
        except HaltInForce as halt:
            return NotAppended(reason="halted", halt=_make_halt(halt.scope))
        except LeaseHeld:
            return NotAppended(reason="leased")
        except StaleEpoch:
            return None
        return Appended(at=journal.state.at, epoch=lease.epoch if lease else None)

    def _commit_later(self, operation: AppendBatch, lease: Lease | None) -> Steps:
        """Append a batch whose connection is broken: the store has the request already."""
        for _ in range(self.env.rng.randint(1, 6)):
            yield None
        self._commit(operation, lease)


class Worker:
    """A process that drives the run whenever its lease is free."""

    def __init__(self, env: Environment, process: Process) -> None:
        self.env = env
        self.journal = env.journal
        self.process = process
        self.is_shutting_down = False
        self.loop: RunLoop | None = None

    @property
    def wake_at(self) -> Micros | None:
        """The time for which the process waits."""
        return None if self.loop is None or self.process.dead else self.loop.wake_at

    def shut_down(self) -> None:
        """Give the run back, and take no lease any more."""
        self.is_shutting_down = True
        if self.loop is not None:
            self.loop.stand_down()

    def steps(self) -> Steps:
        """Take the lease whenever it is free, and drive the run."""
        while True:
            yield self._can_take_lease
            if self.is_shutting_down:
                self.journal.expire_lease(self.process.name)  # it may still hold a lease
                return
            if self.env.chance(self.env.setup.snapshot_share):
                self.journal.check_recovery()
            state = self.journal.state
            self.process.lapsed = False
            self.journal.record_heartbeat(self.process.name)
            self.loop = RunLoop(self.env, self.process, state)
            if self.env.chance(0.3):
                yield None  # the state is outdated when the lease is taken
            yield from self.loop.steps()
            self.loop = None

    def _can_take_lease(self) -> bool:
        if self.is_shutting_down:
            return True
        # A process may take again the lease that it has dropped.
        own = self.journal.holder == self.process.name
        return self.journal.state.phase in DRIVABLE_PHASES and (
            own or self.journal.is_drivable()
        )


def _make_halt(scope: str) -> Halt:
    return Halt(by=Actor(name="olga", role="operator"), scope=scope)
