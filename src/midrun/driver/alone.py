"""Alone: calls on their last try are made one at a time in a process, to see which one kills.

When a process ends, everything that it had in flight has lost a driver, whichever call it was.
Before a run rests for that, its call is made with no other such call beside it: then only the
one that kills has lost one more, and the others are past it.
"""

from typing import Final

import anyio

from midrun.core.attempts import DEATHS
from midrun.core.ids import RunId
from midrun.core.state import Call
from midrun.driver.bell import Bell

TRIAL_S: Final = 60.0
"""What has not ended its process by then, others need not wait for any longer."""


def on_its_last_try(call: Call | None) -> bool:
    """Tell whether the run rests if the process ends while `call` is under way."""
    return call is not None and call.deaths == DEATHS - 1


class Alone:
    """Whose turn it is in this process to make a call that has lost drivers before."""

    def __init__(self) -> None:
        self._run: RunId | None = None
        self._until = 0.0
        self._waiting: set[Bell] = set()

    def wait_s(self, run: RunId, bell: Bell) -> float:
        """Return for how long `run` has to wait for its turn: 0 if it has it now.

        Its bell is rung when the turn is free before that.
        """
        now = anyio.current_time()
        if self._run is None or self._until <= now:
            self._run, self._until = run, now + TRIAL_S
        if self._run == run:
            return 0.0
        self._waiting.add(bell)
        return self._until - now

    def over(self, run: RunId) -> None:
        """End the turn of `run`, if it has it: whoever waits asks again."""
        if self._run == run:
            self._run = None
            while self._waiting:
                self._waiting.pop().ring()
