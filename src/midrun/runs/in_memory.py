"""Running an agent without a store: in memory, in this process, until it rests.

What a paused run needs to go on is in its checkpoint, and nowhere else. Nobody can know here
whether a checkpoint was resumed before: that takes a store that both resumptions share.

Whoever gives up on such a run, by a timeout say, cancels it. Nobody could undo what it did, or
release what it holds, later: the run is gone with the memory that it was in.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import anyio

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Outcome
from midrun.core.stops import Stop
from midrun.core.values import Json
from midrun.errors import ControlRefused
from midrun.runs.midrun import Midrun
from midrun.runs.run import Run

CLEAN_S: Final = 30.0
"""How long a run that is given up may take to clean up, beyond the grace of its calls."""


async def run(agent: Agent, task: str, *, stop: Stop | None = None) -> Outcome:
    """Run `agent` on `task` until it has ended, failed, or needs somebody."""
    return await _alone(agent, lambda midrun: midrun.start(agent, task, stop=stop))


async def resume(
    agent: Agent,
    checkpoint: Checkpoint,
    answer: Json = None,
    *,
    instruction: str | None = None,
    caps: dict[str, float] | None = None,
) -> Outcome:
    """Go on from `checkpoint`, with the answer it waits for and an instruction if given.

    Raises:
        CheckpointRefused: it has expired, or is of another agent.
        ControlRefused: the answer or the instruction does not fit where the run stands.
    """
    return await _alone(
        agent,
        lambda midrun: midrun.resume(checkpoint, answer, instruction=instruction, caps=caps),
    )


async def _alone(agent: Agent, begin: Callable[[Midrun], Awaitable[Run]]) -> Outcome:
    """Have a run driven where no cancellation reaches it before it is cleaned up."""
    found: list[Outcome | Exception] = []
    over, given_up = anyio.Event(), anyio.Event()

    async def live() -> None:
        with anyio.CancelScope(shield=True):
            try:
                async with Midrun("memory://", agents=[agent]) as midrun:
                    await _seen_through(agent, await begin(midrun), given_up, found)
            except Exception as error:  # noqa: BLE001 - the caller's, and not as a group of one
                found.append(error)
            over.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(live)
        try:
            await over.wait()
        finally:
            given_up.set()
    outcome = found.pop()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _seen_through(
    agent: Agent, run: Run, given_up: anyio.Event, found: list[Outcome | Exception]
) -> None:
    """Find how the run comes to rest; nothing, if it was given up and does not end in time."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancelled, agent, run, given_up, tasks.cancel_scope)
        found.append(await run.result())
        tasks.cancel_scope.cancel()


async def _cancelled(
    agent: Agent, run: Run, given_up: anyio.Event, waiting: anyio.CancelScope
) -> None:
    """Cancel the run once its caller gives up on it; then do not wait for it for ever."""
    await given_up.wait()
    with suppress(ControlRefused):  # it has ended meanwhile
        await run.cancel(reason="its caller gave up on it")
    await anyio.sleep(CLEAN_S + 2 * agent.grace.total_seconds())
    waiting.cancel()
