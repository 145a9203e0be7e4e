"""`Agent.run` and `Agent.resume`: drive one run in memory, without a store.

The run exists in a `memory://` store that is dropped at the end. All that remains of a paused
run is its checkpoint. Without a shared store it is not possible to find out whether a
checkpoint was resumed before.

If the caller is cancelled (by a timeout, for example), the run is cancelled, too, and its undo
and release hooks run before the cancellation continues. Later they could not run any more: the
journal that lists them is gone. So the run lives in a shielded scope, and the caller's
cancellation only sets an event (`given_up`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskStatus

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Outcome
from midrun.core.stops import Stop
from midrun.core.values import RESTING_PHASES, Json, ModelSettings
from midrun.errors import ControlRefused
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run

CLEANUP_MAX_S: Final = 30.0
"""Seconds that a run may take to clean up after its caller was cancelled, beyond the grace of
its calls."""


OpenedRun: TypeAlias = AbstractAsyncContextManager[Run]
"""The handle of a run in memory, while the context is open."""


async def run_in_memory(
    agent: Agent,
    task: str,
    *,
    stop: Stop | None = None,
    model_settings: ModelSettings | None = None,
    history: Sequence[object] | None = None,
) -> Outcome:
    """Run `agent` on `task` until it has ended, failed, or waits for a person."""
    return await _run_shielded(
        agent,
        lambda midrun: midrun.start(
            agent, task, stop=stop, model_settings=model_settings, history=history
        ),
    )


@asynccontextmanager
async def stream_in_memory(
    agent: Agent,
    task: str,
    *,
    stop: Stop | None = None,
    model_settings: ModelSettings | None = None,
    history: Sequence[object] | None = None,
) -> AsyncIterator[Run]:
    """Yield the handle of a new run in memory; cancel it if it still works at the end.

    The run is driven in a shielded task: if the caller is cancelled, the run is cancelled and
    its undos run before the cancellation continues.
    """
    left = anyio.Event()
    # Errors are raised outside of the task group, which would wrap them.
    errors: list[Exception] = []

    async def drive(*, task_status: TaskStatus[Run | None]) -> None:
        is_started = False
        with anyio.CancelScope(shield=True):
            try:
                async with Midrun("memory://", agents=[agent]) as midrun:
                    run = await midrun.start(
                        agent, task, stop=stop, model_settings=model_settings, history=history
                    )
                    is_started = True
                    task_status.started(run)
                    await left.wait()
                    await _cancel_if_working(agent, run)
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
                if not is_started:
                    task_status.started(None)

    async with anyio.create_task_group() as tasks:
        run = await tasks.start(drive)
        if run is not None:
            try:
                yield run
            except Exception as error:  # noqa: BLE001 - raised below
                errors.insert(0, error)
            finally:
                left.set()
    if errors:
        raise errors[0]


async def _cancel_if_working(agent: Agent, run: Run) -> None:
    """Cancel a run that does not rest, and wait for its cleanup."""
    with anyio.move_on_after(CLEANUP_MAX_S + 2 * agent.grace.total_seconds()):
        if (await run.view()).phase not in RESTING_PHASES:
            with suppress(ControlRefused):  # it has ended in the meantime
                await run.cancel(reason="its caller left it")
            await run.result()


async def resume_in_memory(
    agent: Agent,
    checkpoint: Checkpoint,
    answer: Json = None,
    *,
    instruction: str | None = None,
    caps: dict[str, float] | None = None,
) -> Outcome:
    """Continue from `checkpoint` until the run has ended, failed, or waits for a person.

    Raises:
        CheckpointRefused: It has expired, or is of another agent.
        ControlRefused: The run cannot take the answer or the instruction in its phase.
    """
    return await _run_shielded(
        agent,
        lambda midrun: midrun.resume(checkpoint, answer, instruction=instruction, caps=caps),
    )


async def _run_shielded(agent: Agent, start: Callable[[Midrun], Awaitable[Run]]) -> Outcome:
    """Drive one run in a shielded task, so that it can clean up after a cancellation."""
    results: list[Outcome | Exception] = []  # at most one
    finished, given_up = anyio.Event(), anyio.Event()

    async def drive() -> None:
        with anyio.CancelScope(shield=True):
            try:
                async with Midrun("memory://", agents=[agent]) as midrun:
                    await _wait_for_outcome(agent, await start(midrun), given_up, results)
            except Exception as error:  # noqa: BLE001 - raised below, outside the task group, which would wrap it
                results.append(error)
            finished.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(drive)
        try:
            await finished.wait()
        finally:
            # On a cancellation, the task group now waits for `drive`, whose shield keeps the
            # cancellation out until the run is cancelled and cleaned up.
            given_up.set()
    # Not reached after a cancellation: the task group has raised it again.
    outcome = results.pop()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _wait_for_outcome(
    agent: Agent, run: Run, given_up: anyio.Event, results: list[Outcome | Exception]
) -> None:
    """Append the outcome of the run to `results`; nothing if its cleanup takes too long."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_given_up, agent, run, given_up, tasks.cancel_scope)
        results.append(await run.result())
        tasks.cancel_scope.cancel()


async def _cancel_when_given_up(
    agent: Agent, run: Run, given_up: anyio.Event, wait_scope: anyio.CancelScope
) -> None:
    """Cancel the run when its caller gives up; then bound the wait for its end."""
    await given_up.wait()
    with suppress(ControlRefused):  # the run has ended in the meantime
        await run.cancel(reason="its caller gave up on it")
    await anyio.sleep(CLEANUP_MAX_S + 2 * agent.grace.total_seconds())
    wait_scope.cancel()
