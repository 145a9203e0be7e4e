"""A script with its tools and a main guard in one file."""

from datetime import timedelta

import anyio

from midrun.agents.tool import find_import_path, tool
from midrun.driver.subprocess.zygote_client import Zygote
from tests.unit.driver.subprocess.process_calls import ignore_callback, make_task


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
        outcome = await zygote.run_to_end(
            make_task(path, {}),
            save=ignore_callback,
            note=ignore_callback,
            grace=timedelta(),
        )
        print(outcome)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    anyio.run(main)
