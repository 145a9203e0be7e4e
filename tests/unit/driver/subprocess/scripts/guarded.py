"""A script with its tools and a main guard in one file."""

import anyio

from midrun.agents.tool import find_import_path, tool
from midrun.driver.subprocess.zygote_client import Zygote
from tests.unit.driver.subprocess.process_calls import make_task, run_to_end


@tool
def greet() -> str:
    """Say hello."""
    return f"hello from {__name__}"


async def main() -> None:
    """Run the tool."""
    print("imported as", __name__)  # noqa: T201 - the test reads it
    path = find_import_path(greet)
    assert path
    async with Zygote() as zygote:
        outcome = await run_to_end(zygote, make_task(path, {}))
        print(outcome)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    anyio.run(main)
