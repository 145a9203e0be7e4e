"""A program that forks inside an open Midrun: `python fork_program.py STORE ENDING`."""

import os
import sys
from collections.abc import Callable

import anyio
import anyio.to_thread

from midrun import Agent, Midrun, tool
from midrun.models import ScriptedModel, Use

tool_called, gate = anyio.Event(), anyio.Event()


@tool
async def slow() -> str:
    """Wait until the fork has ended."""
    tool_called.set()
    await gate.wait()
    return "over"


agent = Agent("a", model=ScriptedModel([Use("slow"), "Done."]), tools=[slow])


def _raise_error() -> None:
    raise ValueError("in the fork")


ENDINGS: dict[str, Callable[[], None]] = {
    "raises": _raise_error,
    "exits": lambda: sys.exit(7),
}


async def main(store: str, ending: str) -> None:
    """Fork while a tool runs, and print the exit code of the fork and the output of the run."""
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await tool_called.wait()
        fork = os.fork()
        if fork:
            _, status = await anyio.to_thread.run_sync(os.waitpid, fork, 0)
            gate.set()
            output = (await run.until("completed")).output
            sys.stdout.write(f"{os.waitstatus_to_exitcode(status)} {output}\n")
        else:
            ENDINGS[ending]()
    if not fork:
        sys.stdout.write("the fork goes on\n")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
