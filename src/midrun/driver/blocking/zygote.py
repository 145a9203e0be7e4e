"""The zygote as the runtime holds it: started when it is needed, again if it was killed."""

import math
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self

from anyio import CancelScope, create_task_group
from anyio.abc import TaskGroup

from midrun.agents.environment import NOTHING_DECLARED, ToolEnvironment
from midrun.driver.blocking.errands import Errand, Outcome
from midrun.driver.blocking.importing import refuse_while_importing
from midrun.driver.blocking.link import Link
from midrun.driver.blocking.running import Noter, Running, Saver
from midrun.driver.blocking.wire import TARGET_MAX
from midrun.errors import Misconfigured


class Zygote:
    """Runs blocking functions in processes that can be killed. An async context manager.

    Functions are named by place and found by importing their modules there, so they share no
    memory with the runtime, nor with each other. They see the working directory that the
    runtime had at the first call, and of its environment only what is declared for them: each
    declared environment has a process of its own that imports the modules, so that a module
    finds its variables when it is imported, and no function finds those of another.

    Make it before the runtime does anything else. A script that runs its agent outside
    `if __name__ == "__main__":` is found out by that, before it does anything twice.

    Raises:
        Misconfigured: processes cannot be forked here, or this is a zygote that is importing
            the module of a tool.
    """

    def __init__(self) -> None:
        refuse_while_importing()
        if not hasattr(os, "fork") or not sys.executable:
            raise Misconfigured(
                "blocking tools",
                "this system cannot fork processes for them; declare them in_process=True",
            )
        self._group: TaskGroup | None = None
        self._links: dict[ToolEnvironment, Link] = {}
        self._deadline = math.inf

    async def __aenter__(self) -> Self:
        self._group = await create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, error, trace)

    def set_deadline(self, moment: float) -> None:
        """Have all calls killed at `moment`, by `boottime`, unless it is moved before.

        The zygote does that, so it happens although this process is frozen. May be called
        from any thread; a runtime that never calls it has no deadline.
        """
        self._deadline = moment
        for link in tuple(self._links.values()):
            link.deadline.moment = moment

    async def kill_calls(self) -> None:
        """Kill all calls at once, without their grace."""
        for link in tuple(self._links.values()):
            await link.kill_all()

    @asynccontextmanager
    async def running(
        self,
        errand: Errand,
        *,
        save: Saver,
        note: Noter,
        grace: timedelta,
        environment: ToolEnvironment = NOTHING_DECLARED,
    ) -> AsyncIterator[Running]:
        """Run a function; leaving the context ends it, however it is left.

        If it has not ended by then, it gets SIGTERM, `grace` to come to an end by itself, and
        SIGKILL; the context is left when its process is reaped. `Running.ended` tells what came
        of it, also after a cancel, to be read when the context has been left: a function that
        finished within its grace has returned. If entering is cancelled, it was not run.

        `save` and `note` are awaited one at a time for what the function saves and notes; it
        goes on when they return, and is ended if they raise.
        """
        _check(errand.target)
        mine, theirs = socket.socketpair()
        with mine:
            mine.setblocking(False)  # noqa: FBT003 - the name says it
            call = Running(self._link_for(environment), mine, save, note)
            with theirs:
                await call.start(errand.target, theirs)
            try:
                await call.instruct(errand)
                yield call
            finally:
                with CancelScope(shield=True):
                    await call.stop(grace)

    async def run(
        self, errand: Errand, *, save: Saver, note: Noter, grace: timedelta
    ) -> Outcome:
        """Run a function to its end: `running` for those who do not ask after a cancel."""
        async with self.running(errand, save=save, note=note, grace=grace) as call:
            return await call.outcome()

    def _link_for(self, environment: ToolEnvironment) -> Link:
        assert self._group is not None, "enter the zygote's context first"
        link = self._links.get(environment)
        if link is None or link.lost:
            link = self._links[environment] = Link(environment.variables(), self._deadline)
            self._group.start_soon(link.listen, name="zygote")
        return link


def _check(target: str) -> None:
    if len(target) > TARGET_MAX:
        raise Misconfigured(target[:80] + "…", f"a place has at most {TARGET_MAX} characters")
