"""A worker in a process of its own, for a test that kills it in the middle of a call."""

import sys
from datetime import timedelta

import anyio

from midrun import Agent, Midrun, tool
from midrun.models import ScriptedModel, Use
from midrun.ports.outside import Outside

LEASE = Outside(lease=timedelta(seconds=1))
"""A worker that is silent for longer than this is given up."""


@tool
async def post(text: str) -> str:
    """Post something, which takes for ever where this is the main program."""
    if __name__ == "__main__":
        sys.stdout.write(f"posting {text}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()
    return "posted"


def poster() -> Agent:
    """Return the agent that both sides know."""
    return Agent(
        "poster", model=ScriptedModel([Use("post", text="hello"), "Done."]), tools=[post]
    )


async def _main(address: str) -> None:
    async with Midrun(address, agents=[poster()], outside=LEASE):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])
