"""A script with its tools in one file and no main guard: it runs when it is imported."""

from datetime import timedelta

import anyio

from midrun.agents.tool import tool
from midrun.driver.subprocess.zygote_client import Zygote
from tests.unit.driver.subprocess.process_calls import ignore_callback, make_task


@tool
def greet() -> str:
    """Say hello."""
    return "hello"


async def main() -> None:
    """Run the tool."""
    async with Zygote() as zygote:
        outcome = await zygote.run_to_end(
            make_task("__main__:greet", {}),
            save=ignore_callback,
            note=ignore_callback,
            grace=timedelta(),
        )
        print(outcome)  # noqa: T201 - the test reads it


anyio.run(main)
