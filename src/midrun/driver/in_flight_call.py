"""A flight: one call, undo, release or check under way, and how it is told to end."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Literal, TypeAlias

import anyio

from midrun.core.driver_inputs import Evidence
from midrun.core.effects import ControlChild
from midrun.core.state import Call
from midrun.core.values import Action, Json

Form: TypeAlias = Literal["call", "undo", "release", "check"]

Ended: TypeAlias = Callable[[], Awaitable[None]]
"""Waits for the end of a flight, or of the user code in it."""

FENCED: Final = "fenced"
"""Why a flight ends whose epoch is over: what it brings is late evidence, if anything."""


class Flight:
    """Something that left the process. Told to stop, it has its grace, and then no say.

    `stop` is why it must end, or "", and `over` that it has. `given_up` says that the journal
    has its end without it: it may still be running, and whatever it brings is late. `overdue`
    is the evidence in that case, if it is given up because its own time was up.
    """

    __slots__ = (
        "_ended", "_remind", "attempt", "call", "form", "given_up", "mind_overdue", "over",
        "overdue", "passed_on", "save", "scope", "stop", "winding",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        save: Callable[[Json], Coroutine[object, None, None]],
        form: Form = "call",
        attempt: int = 0,
    ) -> None:
        self.call = call
        self.save = save
        self.form = form
        self.attempt = attempt or call.attempt
        self.scope = anyio.CancelScope()
        self.over = False
        self._ended: anyio.Event | None = None  # made for the first who waits: mostly nobody
        self.stop = ""
        self.passed_on: ControlChild | None = None  # what its child has to be told
        self.winding = False  # told that the process is being left, with time to finish
        self.given_up = False
        self.overdue: Evidence | None = None
        self.mind_overdue: Callable[[Ended], None] | None = None  # the door's
        self._remind: Callable[[], None] | None = None  # tells a user task again to stop

    @property
    def action(self) -> Action:
        """Which cleanup this is, if it is one."""
        return "release" if self.form == "release" else "undo"

    def end(self) -> None:
        """Say that nothing of it is under way any more."""
        self.over = True
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        """Wait for that."""
        if not self.over:
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()

    def abort(self, because: str) -> bool:
        """Tell it to stop; False if it was told so before, for the same reason."""
        if self.stop == because:
            return False
        self.stop = because
        self.scope.cancel()
        if self._remind is not None:
            self._remind()
        return True

    def watch_stop(self, remind: Callable[[], None], ended: Ended) -> None:
        """Hear that user code of this flight is being stopped, and how to remind it of that.

        If no control wants the flight to stop, the time of the user code is up.
        """
        self._remind = remind
        if not self.stop and self.mind_overdue is not None:
            self.mind_overdue(ended)

    def let_go(self) -> bool:
        """Forget a pause that was passed on to its child: it was withdrawn. False: none was."""
        if self.passed_on is None or not self.stop == self.passed_on.control == "pause":
            return False
        self.stop, self.passed_on = "", None
        return True
