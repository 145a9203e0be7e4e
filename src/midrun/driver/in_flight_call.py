"""A call in flight: the handle by which the dispatcher stops it and waits for its end."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Literal, TypeAlias

import anyio

from midrun.core.driver_inputs import Evidence
from midrun.core.effects import ControlChild
from midrun.core.state import Call
from midrun.core.values import Action, Json

Form: TypeAlias = Literal["call", "undo", "release", "check"]
"""The call itself, or one of its tool's hooks."""

Ended: TypeAlias = Callable[[], Awaitable[None]]
"""Waits for the end of a call, or of the user code that runs for it."""

FENCED: Final = "fenced"
"""The reason to stop a call because its epoch is over."""


class Flight:
    """One call, undo, release or check that has started, and its stop state.

    The dispatcher creates it, aborts it, and marks its end. The code that makes the call runs
    inside `scope` and reads `stop_reason` to tell a stop from a failure.

    `stop_reason` is the reason to stop, or "" while there is none. For a child run it is the
    control that was passed on: "pause", "cancel" or "halt". For everything else it is "paused",
    "redirected", "cancelled", "halted", "shutdown" or "fenced". `finished` says that nothing of
    the call runs any more. `abandoned` says that the journal has closed the call without
    waiting for it: it may still be running, and an outcome that it has is late. `overdue_input`
    is the driver input to journal if it is abandoned because its own time (`timeout=`) is up.
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
        self._ended: anyio.Event | None = None  # created by the first waiter: most have none
        self.stop = ""
        self.passed_on: ControlChild | None = None  # the control that its child run was sent
        self.winding = False  # the worker shuts down, and this call has a grace to finish
        self.given_up = False
        self.overdue: Evidence | None = None
        self.mind_overdue: Callable[[Ended], None] | None = None  # set by the dispatcher
        self._remind: Callable[[], None] | None = None  # cancels the user task once more

    @property
    def action(self) -> Action:
        """The kind of cleanup; of use only for an undo or a release."""
        return "release" if self.form == "release" else "undo"

    def end(self) -> None:
        """Mark the call as finished, and wake all waiters."""
        self.over = True
        if self._ended is not None:
            self._ended.set()

    async def ended(self) -> None:
        """Wait until the call is finished."""
        if not self.over:
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()

    def abort(self, because: str) -> bool:
        """Cancel the call for `reason`; False if that reason is known already.

        A second reason, such as a cancel after a pause, replaces the first. The scope has been
        cancelled by then, which has no further effect on user code (see `user_tasks`), so the
        user task is cancelled once more by itself.
        """
        if self.stop == because:
            return False
        self.stop = because
        self.scope.cancel()
        if self._remind is not None:
            self._remind()
        return True

    def watch_stop(self, remind: Callable[[], None], ended: Ended) -> None:
        """Note that user code of this call is being stopped; `cancel_again` cancels it again.

        Without a reason in `stop_reason`, the code is cancelled because its own time is up.
        Then the dispatcher starts a grace for it, as for every other reason.
        """
        self._remind = remind
        if not self.stop and self.mind_overdue is not None:
            self.mind_overdue(ended)

    def let_go(self) -> bool:
        """Forget a pause that its child run was sent, as it is withdrawn; False if none was."""
        # A cancel or a halt cannot be withdrawn, and a shutdown has replaced `stop_reason`.
        if self.passed_on is None or not self.stop == self.passed_on.control == "pause":
            return False
        self.stop, self.passed_on = "", None
        return True
