"""A script with its tools in one file and no main guard: it runs when it is imported."""

import anyio

from midrun.agents.tool import tool
from midrun.driver.subprocess.zygote_client import Zygote
from tests.unit.driver.subprocess.process_calls import make_task, run_to_end


@tool
def greet() -> str:
    """Say hello."""
    return "hello"


async def main() -> None:
    """Run the tool."""
    async with Zygote() as zygote:
        outcome = await run_to_end(zygote, make_task("__main__:greet", {}))
        print(outcome)  # noqa: T201 - the test reads it


anyio.run(main)
