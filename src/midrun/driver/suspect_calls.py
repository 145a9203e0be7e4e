"""Alone: calls on their last try are made one at a time in a process, to see which one kills.

When a process ends, everything that it had in flight has lost a driver, whichever call it was.
Before a run rests for that, its call is made, or its check asked, with no other such call at
the same time: then only the one that kills has lost one more, and the others are past it.
"""

from collections.abc import Sequence
from typing import Final

import anyio

from midrun.core.effects import CheckCall, Order
from midrun.core.ids import CallId, RunId
from midrun.core.retries import DEATHS
from midrun.core.state import Call, State
from midrun.driver.notifications import Bell

TRIAL_S: Final = 15.0
"""What has not ended its process by then, others need not wait for any longer.

Everybody in line waits so long for each one before them, at most.
"""


def on_its_last_try(call: Call | None) -> bool:
    """Tell whether the run rests if the process ends while `call` is under way."""
    return call is not None and call.deaths == DEATHS - 1


class Alone:
    """Whose turn it is in this process to make a call that has lost drivers before."""

    def __init__(self) -> None:
        self._run: RunId | None = None
        self._until = 0.0
        self._waiting: dict[Bell, None] = {}  # in the order in which they came

    def wait_s(self, run: RunId, bell: Bell) -> float:
        """Return for how long `run` has to wait for its turn: 0 if it has it now.

        Its bell is rung when the turn is free before that.
        """
        now = anyio.current_time()
        if self._run is None or self._until <= now:
            self._run, self._until = run, now + TRIAL_S
        if self._run == run:
            return 0.0
        self._waiting[bell] = None
        return self._until - now

    def over(self, run: RunId) -> None:
        """End the turn of `run`, if it has it: whoever waits asks again."""
        if self._run == run:
            self._run = None
            waiting, self._waiting = self._waiting, {}
            for bell in waiting:
                bell.ring()


class Place:
    """One run's place in that line: which of its calls are due, and have to wait."""

    def __init__(self, alone: Alone, run: RunId, bell: Bell) -> None:
        self.wait_s: float | None = None  # None: for nobody
        self._alone = alone
        self._run = run
        self._bell = bell
        self._due: set[CallId] = set()

    def look_anew(self) -> None:
        """Forget what had to wait when it was last asked."""
        self.wait_s = None
        self._due.clear()

    def must_wait(self, state: State, call: CallId) -> bool:
        """Tell whether a call that is due has to wait for its turn, or have the turn."""
        if not on_its_last_try(state.call(call)):
            return False
        wait_s = self._alone.wait_s(self._run, self._bell)
        if not wait_s:
            return False
        self.wait_s = wait_s
        self._due.add(call)
        return True

    def waits(self, call: CallId) -> bool:
        """Tell whether a call is due and has to wait: nothing but its turn brings it on."""
        return call in self._due

    def may_go(self, orders: Sequence[Order], state: State) -> Sequence[Order]:
        """Return the orders without the checks that have to wait; leave a turn not needed."""
        checks = (order for order in orders if isinstance(order, CheckCall))
        held = [check for check in checks if self.must_wait(state, check.call)]
        left = [order for order in orders if order not in held]
        under_way = [state.calls[n - 1] for n in state.in_flight]
        under_way += [c for o in left if isinstance(o, CheckCall) and (c := state.call(o.call))]
        if not any(on_its_last_try(call) for call in under_way):
            self.leave()
        return left

    def leave(self) -> None:
        """End the turn, if it is this run's."""
        self._alone.over(self._run)
