"""A process that forks others; each plays a scenario and is killed at one of its writes."""

import sys
from pathlib import Path

from midrun import Midrun
from midrun.ports.environment import Environment
from tests.crash.child import LONG_LEASE, kill_at_writes
from tests.scenarios.conversation.crash_scenarios import SCENARIOS
from tests.support.conditions import draw_no_delay, make_clock_ahead
from tests.support.store_choice import get_store_url


async def play_scenario(folder: str, scenario_name: str, case: str, hours: int) -> None:
    """Start the run, or find it, and send its controls until it has ended."""
    scenario, case_folder = SCENARIOS[scenario_name], Path(folder) / case
    agent = scenario.agent(case, case_folder)
    outside = Environment(
        lease=LONG_LEASE, clock=make_clock_ahead(hours=hours), random_unit=draw_no_delay
    )
    async with Midrun(
        get_store_url(f"{folder}/runs.db"), agents=[agent], outside=outside
    ) as midrun:
        run = await midrun.start(agent, "go", request_id=case)
        await scenario.send_controls(midrun, run, case_folder, after_crash=hours > 0)


if __name__ == "__main__":
    kill_at_writes(play_scenario, *sys.argv[1:])
