"""A call in flight: the handle by which the dispatcher stops it and waits for its end."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeAlias

import anyio

from midrun.core.driver_inputs import DriverInput
from midrun.core.effects import ControlChild
from midrun.core.state import Call
from midrun.core.values import CleanupAction, Json, OperationKind

WaitEnded: TypeAlias = Callable[[], Awaitable[None]]
"""Waits for the end of a call, or of the user code that runs for it."""

FENCED_REASON: Final = "fenced"
"""The reason to stop a call because its epoch is over."""


class InFlightCall:
    """One call, undo, release or check that has started, and its stop state.

    The dispatcher creates it, aborts it, and marks its end. The code that makes the call runs
    inside `scope` and reads `stop_reason` to tell a stop from a failure.

    `stop_reason` is the reason to stop, or "" while there is none: "paused", "redirected",
    "cancelled", "halted", "shutdown" or "fenced". A call that waits for a child run is aborted
    only for "shutdown" and "fenced". Otherwise its child is sent a control (`sent_control`),
    and the call ends when the child rests.

    `finished` says that nothing of the call runs any more. `abandoned` says that the journal
    has closed the call without waiting for it: it may still be running, and an outcome that it
    has is late. `overdue_input` is the driver input to journal if it is abandoned because its
    own time (`timeout=`) is up.
    """

    __slots__ = (
        "_cancel_again",
        "_finished_event",
        "abandoned",
        "attempt",
        "call",
        "finished",
        "on_overdue",
        "operation",
        "overdue_input",
        "save",
        "scope",
        "sent_control",
        "shutting_down",
        "stop_reason",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        save: Callable[[Json], Coroutine[object, None, None]],
        operation: OperationKind = "call",
        attempt: int = 0,
    ) -> None:
        self.call = call
        self.save = save
        self.operation = operation
        self.attempt = attempt or call.attempt
        self.scope = anyio.CancelScope()
        self.finished = False
        self._finished_event: anyio.Event | None = (
            None  # created by the first waiter: most have none
        )
        self.stop_reason = ""
        self.sent_control: ControlChild | None = None  # the control that its child run was sent
        self.shutting_down = False  # the worker shuts down, and this call has a grace to finish
        self.abandoned = False
        self.overdue_input: DriverInput | None = None
        self.on_overdue: Callable[[WaitEnded], None] | None = None  # set by the dispatcher
        self._cancel_again: Callable[[], None] | None = None  # cancels the user task once more

    @property
    def action(self) -> CleanupAction:
        """The kind of cleanup; of use only for an undo or a release."""
        return "release" if self.operation == "release" else "undo"

    @property
    def is_stopping(self) -> bool:
        """Whether this call must stop, or its child run was sent a control to stop."""
        return bool(self.stop_reason) or self.sent_control is not None

    def mark_finished(self) -> None:
        """Mark the call as finished, and wake all waiters."""
        self.finished = True
        if self._finished_event is not None:
            self._finished_event.set()

    async def wait_finished(self) -> None:
        """Wait until the call is finished."""
        if not self.finished:
            self._finished_event = self._finished_event or anyio.Event()
            await self._finished_event.wait()

    def abort(self, reason: str) -> bool:
        """Cancel the call for `reason`; False if that reason is known already.

        A second reason, such as a cancel after a pause, replaces the first. The scope has been
        cancelled by then, which has no further effect on user code (see `user_code.UserTasks`),
        so the user task is cancelled once more by itself.
        """
        if self.stop_reason == reason:
            return False
        self.stop_reason = reason
        self.scope.cancel()
        if self._cancel_again is not None:
            self._cancel_again()
        return True

    def track_stop(self, cancel_again: Callable[[], None], wait_ended: WaitEnded) -> None:
        """Note that user code of this call is being stopped; `cancel_again` cancels it again.

        Without a reason in `stop_reason`, the code is cancelled because its own time is up.
        Then the dispatcher starts a grace for it, as for every other reason.
        """
        self._cancel_again = cancel_again
        if not self.stop_reason and self.on_overdue is not None:
            self.on_overdue(wait_ended)

    def forget_pause(self) -> bool:
        """Forget a pause that its child run was sent, as it is withdrawn; False if none was."""
        # A cancel or a halt cannot be withdrawn, and a call that is aborted does not continue.
        sent = self.sent_control
        if sent is None or sent.control != "pause" or self.stop_reason:
            return False
        self.sent_control = None
        return True
