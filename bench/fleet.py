"""`python -m bench.fleet STORE LEASE_S`: a worker for measurements with several processes.

It prints the time at which its waiting tool was cancelled. All processes of a machine share one
monotonic clock.
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
    """Return a text as long as a search result."""
    return f"{n}" + "y" * 500


@tool(read_only=True)
async def wait_for_cancel() -> None:
    """Wait until cancelled."""
    print("started", flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print(time.monotonic_ns(), flush=True)


def _steps(messages: Transcript) -> Line:
    n = messages.assistant_turn_count
    return ["x" * 300, Use("look", n=n)] if n < STEPS else "Done."


def agents() -> list[Agent]:
    """Return an agent that makes steps and one whose tool waits."""
    return [
        Agent("stepper", model=ScriptedModel(_steps), tools=[look]),
        Agent(
            "waiter",
            model=ScriptedModel(lambda _: Use("wait_for_cancel")),
            tools=[wait_for_cancel],
        ),
    ]


async def main(store: str, lease_s: str) -> None:
    """Drive until killed."""
    outside = Environment(lease=timedelta(seconds=float(lease_s)))
    async with Midrun(store, agents=agents(), outside=outside):
        print("ready", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
