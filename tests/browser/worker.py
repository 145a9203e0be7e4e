"""A worker in a process of its own, for tests that kill it in the middle of something."""

import sys
from datetime import timedelta

import anyio

from midrun import Agent, Call, Midrun, tool
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Outside

LEASE = Outside(lease=timedelta(seconds=30))
"""Longer than a busy machine ever keeps a worker from its beats."""


async def _here(what: str) -> None:
    """Say what is being done, and do it for ever, where this is the main program."""
    if __name__ == "__main__":
        sys.stdout.write(f"{what}\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


async def _take_back(call: Call, args: object, result: object) -> None:
    del call, args, result
    await _here("undoing")


@tool
async def post(text: str) -> str:
    """Post something, which takes for ever in a process that will be killed."""
    await _here(f"posting {text}")
    return "posted"


@tool(undo=_take_back)
async def draft(text: str) -> str:
    """Write a draft, at once; to take it back takes for ever."""
    return f"draft of {text}"


def poster() -> Agent:
    """Return the agent that both sides know."""
    model = ScriptedModel([Use("draft", text="hello"), Use("post", text="hello"), "Done."])
    return Agent("poster", model=model, tools=[draft, post])


async def _main(address: str) -> None:
    async with Midrun(address, agents=[poster()], outside=LEASE):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(_main, sys.argv[1])
