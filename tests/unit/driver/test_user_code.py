"""`UserTask`: how a user coroutine in its own asyncio task is cancelled."""

import asyncio
from datetime import timedelta

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun.driver.user_code import CANCELLATIONS_MAX, UserTask
from tests.support.run_journal import TIMEOUT_S, yield_until


@pytest.mark.slow
async def test_a_new_reason_to_stop_cancels_again_after_the_last_cancellation() -> None:
    """A cancel that comes long after a pause cancels the tool again."""
    gate, swallowed = anyio.Event(), 0

    async def swallow() -> None:
        nonlocal swallowed
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                swallowed += 1

    task = UserTask(swallow, "swallow", timedelta())
    await checkpoint()
    task.stop()
    await yield_until(lambda: swallowed == CANCELLATIONS_MAX)
    task.stop()
    await yield_until(lambda: swallowed > CANCELLATIONS_MAX)
    gate.set()
    await task.wait()
    assert task.has_outcome


async def test_a_cancellation_waits_for_the_end_of_a_shield() -> None:
    """The coroutine is not interrupted behind the shield, and is stopped right after it."""
    started, gate, done = anyio.Event(), anyio.Event(), []

    async def commit() -> None:
        with anyio.CancelScope(shield=True):
            started.set()
            await gate.wait()
            done.append("committed")
        await anyio.sleep_forever()

    with anyio.fail_after(TIMEOUT_S):
        task = UserTask(commit, "commit", timedelta(hours=1))
        await started.wait()
        task.stop()
        for _ in range(10):
            await checkpoint()
        gate.set()
        await task.wait()
    assert done == ["committed"]
    assert not task.has_outcome


async def test_a_coroutine_that_is_stopped_before_its_first_step_never_starts() -> None:
    """A stop may come in the same turn of the event loop as the start."""
    started = []

    async def work() -> None:
        started.append("work")

    task = UserTask(work, "work", timedelta(hours=1))
    task.stop()
    await task.wait()
    assert not started
