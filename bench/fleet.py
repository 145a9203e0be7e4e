"""`python -m bench.fleet STORE LEASE_S`: a worker for the figures of many processes.

It prints the time at which its standing tool was told to stop: all processes of a machine have
one monotonic clock.
"""

import sys
import time
from datetime import timedelta

import anyio

from midrun import Agent, Midrun, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.environment import Environment

STEPS = 20


@tool(read_only=True)
async def look(n: int) -> str:
    """Return what a search would."""
    return f"{n}" + "y" * 500


@tool(read_only=True)
async def stand() -> None:
    """Stand until told to stop."""
    print("stands", flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print(time.monotonic_ns(), flush=True)


def _steps(messages: Transcript) -> Line:
    n = messages.assistant_turn_count
    return ["x" * 300, Use("look", n=n)] if n < STEPS else "Done."


def agents() -> list[Agent]:
    """Return one that makes steps, and one that stands."""
    return [
        Agent("walker", model=ScriptedModel(_steps), tools=[look]),
        Agent("stander", model=ScriptedModel(lambda _: Use("stand")), tools=[stand]),
    ]


async def main(store: str, lease_s: str) -> None:
    """Drive until killed."""
    outside = Environment(lease=timedelta(seconds=float(lease_s)))
    async with Midrun(store, agents=agents(), outside=outside):
        print("ready", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
