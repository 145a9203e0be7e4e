"""A worker in its own process, for tests that kill it during a call."""

import sys
from datetime import timedelta

import anyio

from midrun import Agent, Call, Midrun, tool
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment

LEASE = Environment(lease=timedelta(seconds=30))
"""Longer than the heartbeat of a worker is ever delayed on a busy machine."""


async def _block_in_worker(what: str) -> None:
    """Print `what` and block for ever, in the worker process only."""
    if __name__ == "__main__":
        sys.stdout.write(f"{what}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


async def _take_back(call: Call, args: object, result: object) -> None:
    del call, args, result
    await _block_in_worker("undoing")


@tool
async def post(text: str) -> str:
    """Post a text; never returns in the worker process."""
    await _block_in_worker(f"posting {text}")
    return "posted"


@tool(undo=_take_back)
async def draft(text: str) -> str:
    """Write a draft at once; its undo never returns in the worker process."""
    return f"draft of {text}"


def poster() -> Agent:
    """Return the agent that the worker and the test share."""
    model = ScriptedModel([Use("draft", text="hello"), Use("post", text="hello"), "Done."])
    return Agent("poster", model=model, tools=[draft, post])


async def _main(address: str) -> None:
    async with Midrun(address, agents=[poster()], outside=LEASE):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])
