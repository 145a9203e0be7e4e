"""Suspect calls: run calls that may crash the process one at a time.

When a worker process dies, every call that it had in flight is charged with one death, although
only one of them caused the crash. After three deaths the run of the call fails (`retries`).
Without more care, one call that crashes its process would fail all runs that happened to be
driven beside it.

A call with one death less than that is a *suspect*. A process makes suspects one at a time, and
so it does with their checks: a further crash is then charged to one suspect only, the right
one. The others get past their trial and are made as usual. A suspect that has not crashed the
process after `SUSPECT_TRIAL_S` seconds does not hold up the next one, which starts beside it.

`SuspectCallGate` is shared by all runs of the process: the run that holds it may make a suspect
call. `SuspectCalls` is one run's view of the gate.
"""

from collections.abc import Sequence
from typing import Final

import anyio

from midrun.core.ids import RunId
from midrun.core.retries import WORKER_DEATHS_MAX
from midrun.core.scheduler import CheckCall, DriverEffect
from midrun.core.state import CallState, State
from midrun.core.values import WorkKind
from midrun.driver.notifications import Wakeup

SUSPECT_TRIAL_S: Final = 15.0
"""Seconds after which a running suspect does not hold the others up any more."""


def is_suspect(call: CallState | None) -> bool:
    """Tell whether one more death of a worker would fail the run of `call`."""
    return call is not None and call.worker_deaths == WORKER_DEATHS_MAX - 1


class SuspectCallGate:
    """Admits one run of this process at a time to make suspect calls."""

    def __init__(self) -> None:
        self._holding_run: RunId | None = None  # the run that holds the gate
        self._trial_ends_at = 0.0  # when its trial is over
        self._waiters: dict[Wakeup, None] = {}  # an ordered set

    def try_acquire(self, run: RunId, wakeup: Wakeup) -> float:
        """Acquire the gate for `run`; return 0.0 if it has it, else the seconds to wait.

        `wakeup` is set when the gate is released before that. All waiters are woken, in the
        order in which they came, and ask again; the first to do so gets the gate.
        """
        now = anyio.current_time()
        # A run whose trial is over loses the gate without notice; its call runs on.
        if self._holding_run is None or self._trial_ends_at <= now:
            self._holding_run, self._trial_ends_at = run, now + SUSPECT_TRIAL_S
        if self._holding_run == run:
            return 0.0
        self._waiters[wakeup] = None
        return self._trial_ends_at - now

    def release(self, run: RunId) -> None:
        """Release the gate if `run` holds it, and wake all waiters."""
        if self._holding_run == run:
            self._holding_run = None
            waiters, self._waiters = self._waiters, {}
            for wakeup in waiters:
                wakeup.set()


class SuspectCalls:
    """The suspect calls of one run that are due and wait for the gate.

    In each turn the run loop resets `wait_s`, `advance` asks `may_start` for every call
    that is due, and `drop_waiting_checks` filters the effects that are left. `wait_s` is the
    time until the gate can be tried again; None if nothing waits for it. `has_acquired` says
    that the gate was acquired and not released. It may be lost: see `try_acquire`.
    """

    def __init__(self, gate: SuspectCallGate, run: RunId, wakeup: Wakeup) -> None:
        self.wait_s: float | None = None
        self._gate = gate
        self._run = run
        self._wakeup = wakeup
        self.has_acquired = False

    def may_start(self, call: CallState | None, work_kind: WorkKind) -> bool:
        """Tell whether a call may start; a suspect acquires the gate, or has to wait."""
        # Undos and releases have a limit of their own (`undo_attempts`): each attempt is
        # journaled before it is made, so a cleanup that crashes its worker is given up after a
        # few.
        if call is None or work_kind != "call":
            return True
        if not call.worker_deaths or not is_suspect(call):
            return True
        wait_s = self._gate.try_acquire(self._run, self._wakeup)
        if not wait_s:
            self.has_acquired = True
            return True
        self.wait_s = wait_s
        return False

    def drop_waiting_checks(
        self, effects: Sequence[DriverEffect], state: State
    ) -> Sequence[DriverEffect]:
        """Return `effects` without the checks that must wait; release the gate if unused."""
        checks = (effect for effect in effects if isinstance(effect, CheckCall))
        held_back = [
            check for check in checks if not self.may_start(state.find_call(check.call), "call")
        ]
        left = [effect for effect in effects if effect not in held_back]
        # Keep the gate while a suspect, or the check of one, is running. It may also have been
        # acquired in this turn for a call that was not started after all.
        running = [state.calls[n - 1] for n in state.in_flight]
        running += [
            call
            for effect in left
            if isinstance(effect, CheckCall) and (call := state.find_call(effect.call))
        ]
        if not any(is_suspect(call) for call in running):
            self.release_gate()
        return left

    def release_gate(self) -> None:
        """Release the gate if this run holds it."""
        self.has_acquired = False
        self._gate.release(self._run)
