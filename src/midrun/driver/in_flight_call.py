"""A call in flight: the handle by which the dispatcher stops it and waits for its end."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, Protocol, TypeAlias

import anyio

from midrun.core.driver_inputs import DriverInput
from midrun.core.effects import ControlChild
from midrun.core.state import Call
from midrun.core.values import CleanupAction, Json, OperationKind

WaitEnded: TypeAlias = Callable[[], Awaitable[None]]
"""Waits for the end of a call, or of the user code that runs for it."""

SHUTDOWN_REASON: Final = "shutdown"
"""The reason to stop a call because this worker gives the run back."""

FENCED_REASON: Final = "fenced"
"""The reason to stop a call because its epoch is over."""

OVERDUE_REASON: Final = "overdue"
"""The reason to stop user code whose own time (`timeout=`) is up, without a control."""

NO_WAIT_REASONS: Final = frozenset(
    {"cancelled", SHUTDOWN_REASON, FENCED_REASON, OVERDUE_REASON}
)
"""Reasons to stop a call for which the run waits no longer than the grace."""


class Stoppable(Protocol):
    """Async user code that runs for a call; see `user_code.UserCode`."""

    def stop(self) -> None:
        """Cancel the code; called again for each new reason to stop."""
        ...


class InFlightCall:
    """One call, undo, release or check that has started, and its stop state.

    The dispatcher creates it, aborts it, and marks its end. The code that makes the call runs
    inside `scope`, or sets `code` if it is async user code, and reads `stop_reason` to tell a
    stop from a failure.

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
        "_finished_event",
        "_scope",
        "abandoned",
        "attempt",
        "call",
        "code",
        "finished",
        "kill_time_s",
        "on_overdue",
        "operation",
        "overdue_input",
        "save",
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
        self.code: Stoppable | None = None  # async user code that runs for it
        self._scope: anyio.CancelScope | None = None
        self.finished = False
        self._finished_event: anyio.Event | None = (
            None  # created by the first waiter: most have none
        )
        self.stop_reason = ""
        self.sent_control: ControlChild | None = None  # the control that its child run was sent
        self.shutting_down = False  # the worker shuts down, and this call has a grace to finish
        self.abandoned = False
        self.kill_time_s = 0.0  # the time to end, after its grace, of a process that is killed
        self.overdue_input: DriverInput | None = None
        # Set by the dispatcher; called when the own time of async user code is up.
        self.on_overdue: Callable[[WaitEnded], None] | None = None

    @property
    def scope(self) -> anyio.CancelScope:
        """The scope of all waiting for this call, except for that of async user code.

        Most calls run async user code and need none, so it is made when it is first used.
        """
        if self._scope is None:
            self._scope = anyio.CancelScope()
            if self.stop_reason:
                self._scope.cancel()
        return self._scope

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
        """Cancel the call for `reason`; False if the reason changes nothing.

        A second reason, such as a cancel after a pause, replaces the first. The scope has been
        cancelled by then; async user code is cancelled once more.

        A reason for which the run waits never replaces one for which it does not. A pausing run
        whose worker shuts down asks for both stops in every iteration of its loop; otherwise
        they would replace each other, and each time start a new grace.
        """
        if self.stop_reason == reason:
            return False
        if self.stop_reason in NO_WAIT_REASONS and reason not in NO_WAIT_REASONS:
            return False
        self.stop_reason = reason
        if self._scope is not None:
            self._scope.cancel()
        if self.code is not None:
            self.code.stop()
        return True

    def forget_pause(self) -> bool:
        """Forget a pause that its child run was sent, as it is withdrawn; False if none was."""
        # A cancel or a halt cannot be withdrawn, and a call that is aborted does not continue.
        sent = self.sent_control
        if sent is None or sent.control != "pause" or self.stop_reason:
            return False
        self.sent_control = None
        return True
