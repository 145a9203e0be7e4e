"""Call contexts: the values that functions find in `call.context`.

A factory that takes `run_id` makes a context for each call. Any other makes one that all calls
of this worker share: the first call opens it, and the worker closes it after its last call.

A shared context has a task of its own, its *keeper*, which opens it, waits, and closes it. An
async context manager may have entered scopes and task groups, and these must be left in the
task that has entered them; the task of the first call ends too early. The keeper is user code
(`user_code.UserCode`), so it runs outside of our scopes and its stop is bounded.

- Several first calls wait for the same keeper.
- A call that is stopped while it waits leaves the others waiting. When the last one has left,
  the opening is cancelled, and the next call begins a new one.
- If the opening fails, the calls that wait for it fail, and the next call begins a new one.
- If the context ends by itself, because a task in it failed, the next call opens a new one.

A worker that is fenced keeps its contexts: they belong to the process, not to its leases.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from datetime import timedelta
from typing import Final

import anyio
from anyio.abc import TaskGroup

from midrun.agents.tool_context import ContextSource
from midrun.driver.user_code import (
    CodeStopped,
    UserCode,
    UserTasks,
    format_exception,
    must_reraise,
)
from midrun.errors import ContextFailed

log = logging.getLogger("midrun")

CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds that the contexts of a worker have to close by themselves when it shuts down."""

STOP_GRACE: Final = timedelta(seconds=5)
"""The grace of a context that is cancelled while it opens or closes."""


class CallContexts:
    """Opens the contexts of the calls of one worker; made inside a running event loop."""

    def __init__(self, task_group: TaskGroup) -> None:
        # Not the tasks of the calls: their shutdown comes first, and calls may use a context
        # until then.
        self._tasks = UserTasks(task_group)
        # The context variables of the worker. Those of the first call name its run in the log.
        self._variables = copy_context()
        # By the identity of the factory, which may not be hashable. Two agents that name the
        # same factory share its context.
        self._shared: dict[int, _SharedContext] = {}
        self._is_shut_down = False

    @asynccontextmanager
    async def open(self, source: ContextSource, run_id: str) -> AsyncIterator[object]:
        """Yield the context of one call.

        Raises:
            ContextFailed: It cannot be opened.
        """
        if source.is_shared:
            yield await self._get_shared(source)
            return
        is_open = False
        try:
            async with source.open(run_id) as value:
                is_open = True
                yield value
        except Exception as error:
            if is_open:
                raise
            raise ContextFailed(source.where, format_exception(error)) from error

    async def shut_down(self) -> None:
        """Close all shared contexts; abandon and log those that do not close in time."""
        self._is_shut_down = True
        with anyio.move_on_after(CLOSE_TIMEOUT_S):
            for shared in tuple(self._shared.values()):
                shared.close()
            for shared in tuple(self._shared.values()):
                await shared.ended.wait()
        await self._tasks.shut_down()

    async def _get_shared(self, source: ContextSource) -> object:
        key = id(source.factory)
        while True:
            shared = self._shared.get(key)
            if shared is None:
                if self._is_shut_down:  # a call that was abandoned continues
                    raise ContextFailed(source.where, "the worker has shut down")
                shared = self._shared[key] = _SharedContext(source, self._tasks)
                self._tasks.start(self._keep(key, shared), self._variables.copy())
            await shared.wait_opened()
            if shared.is_open:
                return shared.value
            if shared.problem:
                raise ContextFailed(source.where, shared.problem)
            # It was given up: all earlier calls had stopped waiting. This call tries again.

    async def _keep(self, key: int, shared: "_SharedContext") -> None:
        try:
            await shared.keep()
        finally:
            del self._shared[key]
            shared.end()


class _SharedContext:
    """One context that calls share, from the start of its opening to its end.

    Attributes:
        value: The context while `is_open`.
        problem: The error of its opening; "" if there was none.
        ended: Set when it is closed, or could not be opened.
    """

    def __init__(self, source: ContextSource, tasks: UserTasks) -> None:
        self.value: object = None
        self.is_open = False
        self.problem = ""
        self.ended = anyio.Event()
        self._source = source  # also keeps the factory, so that its id is not reused
        self._code = UserCode(tasks, f"context of {source.where}", STOP_GRACE)
        self._settled = anyio.Event()  # it is open, or has ended
        self._close_requested = anyio.Event()
        self._waiters = 0

    async def wait_opened(self) -> None:
        """Wait until it is open or has ended; if no other call waits, a stop gives it up."""
        if self._settled.is_set():
            return
        self._waiters += 1
        try:
            await self._settled.wait()
        finally:
            self._waiters -= 1
            if not (self._waiters or self._settled.is_set()):
                self._code.stop()

    def close(self) -> None:
        """Have the keeper close it; cancel its opening."""
        self._close_requested.set()
        if not self.is_open:
            self._code.stop()

    async def keep(self) -> None:
        """Open it, wait until it shall be closed, and close it."""
        was_open = False
        try:
            try:
                await self._code.run(self._keep_open)
            finally:
                was_open, self.is_open = self.is_open, False
        except CodeStopped:
            pass
        except BaseException as error:
            if must_reraise(error):
                raise
            problem = format_exception(error)
            if not was_open:
                # Libraries turn a cancellation into errors of their own. A call that began to
                # wait after the cancellation opens the context again.
                self.problem = "" if self._code.stopping_since is not None else problem
            elif self._close_requested.is_set():
                log.warning("Cannot close the %s: %s", self._code.label, problem)
            else:
                log.warning(
                    "The %s has ended: %s. The next call opens it again.",
                    self._code.label,
                    problem,
                )

    async def _keep_open(self) -> None:
        async with self._source.open("") as self.value:
            # The opening may have finished although it was cancelled. The cancellation is
            # repeated, and would end the context while calls use it: so it ends now.
            if self._code.stopping_since is not None:
                return
            self.is_open = True
            self._settled.set()
            await self._close_requested.wait()

    def end(self) -> None:
        """Record that it has ended, and wake all that wait for it."""
        self.value, self.is_open = None, False
        self._settled.set()
        self.ended.set()
