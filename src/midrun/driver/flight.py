"""A flight: one call, undo, release or check under way, and how it is told to end."""

from collections.abc import Callable, Coroutine
from typing import Final, Literal, TypeAlias

import anyio

from midrun.core.orders import ControlChild
from midrun.core.state import Call
from midrun.core.values import Action, Json

Form: TypeAlias = Literal["call", "undo", "release", "check"]

FENCED: Final = "fenced"
"""Why a flight ends whose epoch is over: what it brings is late evidence, if anything."""


class Flight:
    """Something that left the process. Told to stop, it has its grace, and then no say.

    `stop` is why it must end, or "", and `over` that it has. `given_up` says that the journal
    has its end without it: it may still be running, and whatever it brings is late.
    """

    __slots__ = (
        "_ended", "attempt", "call", "form", "given_up", "over", "passed_on", "save", "scope",
        "stop", "winding",
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
        return True

    def let_go(self) -> bool:
        """Forget a pause that was passed on to its child: it was withdrawn. False: none was."""
        if self.passed_on is None or not self.stop == self.passed_on.control == "pause":
            return False
        self.stop, self.passed_on = "", None
        return True
