"""A process that forks others, which play a story and are killed at one of their writes."""

import sys
from pathlib import Path

from midrun import Midrun
from midrun.ports.environment import Environment
from tests.crash.child import LONG, kills
from tests.crash.facts import at_once, later
from tests.scenarios.conversation.stories import STORIES
from tests.support.store_choice import kept_at


async def live(folder: str, story: str, case: str, hours: int) -> None:
    """Start the run, or find it, and be its people until it has ended."""
    told, place = STORIES[story], Path(folder) / case
    agent = told.agent(case, place)
    outside = Environment(lease=LONG, clock=later(hours=hours), random_unit=at_once)
    async with Midrun(kept_at(f"{folder}/runs.db"), agents=[agent], outside=outside) as midrun:
        run = await midrun.start(agent, "go", request_id=case)
        await told.people(midrun, run, place, again=hours > 0)


if __name__ == "__main__":
    kills(live, *sys.argv[1:])
