"""Running an agent without a store: in memory, in this process, until it rests.

What a paused run needs to go on is in its checkpoint, and nowhere else. Nobody can know here
whether a checkpoint was resumed before: that takes a store that both resumptions share.
"""

from midrun.agents.agent import Agent
from midrun.agents.checkpoint import Checkpoint
from midrun.agents.outcome import Outcome
from midrun.core.stops import Stop
from midrun.core.values import Json
from midrun.embed.midrun import Midrun


async def run(agent: Agent, task: str, *, stop: Stop | None = None) -> Outcome:
    """Run `agent` on `task` until it has ended, failed, or needs somebody."""
    async with Midrun("memory://", agents=[agent]) as midrun:
        started = await midrun.start(agent, task, stop=stop)
        return await started.result()


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
    async with Midrun("memory://", agents=[agent]) as midrun:
        resumed = await midrun.resume(checkpoint, answer, instruction=instruction, caps=caps)
        return await resumed.result()
