"""A script with its tools in one file and no main guard: it runs when it is imported."""

from datetime import timedelta

import anyio

from midrun.agents.tool import tool
from midrun.driver.subprocess.zygote_client import Zygote
from tests.unit.driver.subprocess.scene import errand, ignore


@tool
def greet() -> str:
    """Say hello."""
    return "hello"


async def main() -> None:
    """Run the tool."""
    async with Zygote() as zygote:
        it = errand("__main__:greet", {})
        print(await zygote.run_to_end(it, save=ignore, note=ignore, grace=timedelta()))  # noqa: T201


anyio.run(main)
