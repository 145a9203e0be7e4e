"""`UserCode`: how a user coroutine is cancelled in the asyncio task of its call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun.driver.user_code import CANCELLATIONS_MAX, CodeStopped, UserCode, UserTasks
from tests.support.run_journal import TIMEOUT_S, yield_until


@pytest.fixture
async def user_tasks() -> AsyncIterator[UserTasks]:
    """The tasks of a worker."""
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as tasks:
            yield UserTasks(tasks)


class Started:
    """A coroutine that was started, and the value that it has returned, if any."""

    def __init__(
        self, user_tasks: UserTasks, work: Callable[[], Awaitable[None]], grace: timedelta
    ) -> None:
        self.code = UserCode(user_tasks, "work", grace)
        self.was_stopped: bool | None = None
        user_tasks.start(self._run(work))

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await self.code.run(work)
            self.was_stopped = False
        except CodeStopped:
            self.was_stopped = True

    async def wait(self) -> None:
        await yield_until(lambda: self.was_stopped is not None)


@pytest.mark.slow
async def test_a_new_reason_to_stop_cancels_again_after_the_last_cancellation(
    user_tasks: UserTasks,
) -> None:
    """A cancel that comes long after a pause cancels the tool again."""
    gate, swallowed = anyio.Event(), 0

    async def swallow() -> None:
        nonlocal swallowed
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                swallowed += 1

    started = Started(user_tasks, swallow, timedelta())
    await checkpoint()
    started.code.stop()
    await yield_until(lambda: swallowed == CANCELLATIONS_MAX)
    started.code.stop()
    await yield_until(lambda: swallowed > CANCELLATIONS_MAX)
    gate.set()
    await started.wait()
    assert not started.was_stopped


async def test_a_cancellation_waits_for_the_end_of_a_shield(user_tasks: UserTasks) -> None:
    """The coroutine is not interrupted behind the shield, and is stopped right after it."""
    at_work, gate, done = anyio.Event(), anyio.Event(), []

    async def commit() -> None:
        with anyio.CancelScope(shield=True):
            at_work.set()
            await gate.wait()
            done.append("committed")
        await anyio.sleep_forever()

    started = Started(user_tasks, commit, timedelta(hours=1))
    await at_work.wait()
    started.code.stop()
    for _ in range(10):
        await checkpoint()
    gate.set()
    await started.wait()
    assert done == ["committed"]
    assert started.was_stopped


async def test_a_coroutine_that_is_stopped_before_its_first_step_never_starts(
    user_tasks: UserTasks,
) -> None:
    """A stop may come in the same turn of the event loop as the start."""
    done = []

    async def work() -> None:
        done.append("work")

    started = Started(user_tasks, work, timedelta(hours=1))
    started.code.stop()
    await started.wait()
    assert started.was_stopped
    assert not done


async def test_a_cancellation_that_code_leaves_behind_does_not_reach_its_call(
    user_tasks: UserTasks,
) -> None:
    """The call processes the value of the code in the same task; nothing may interrupt that."""

    async def cancel_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    started = Started(user_tasks, cancel_itself, timedelta(hours=1))
    await started.wait()
    assert started.code.task is not None
    assert not started.was_stopped
    assert not started.code.task.cancelling()
