"""A worker in a process of its own: its one tool writes down who made it, and may wait.

python -m … STORE TEMPORAL QUEUE FOLDER NAME LEASE_S
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import anyio

from midrun import Agent, Midrun, tool
from midrun.engines.temporal import Temporal
from midrun.models import ScriptedModel, Use
from midrun.ports.outside import Outside

SILENCE = timedelta(seconds=3)


def agent_of(folder: Path, name: str) -> Agent:
    """Return an agent that makes three entries in a book; the second takes its time."""

    @tool(idempotent=True)
    async def enter(word: str) -> str:
        """Make an entry."""
        with (folder / "book").open("a") as book:
            book.write(f"{word} {name}\n")
        while word == "b" and not (folder / "on").exists():  # noqa: ASYNC110 - a file is shared
            await anyio.sleep(0.02)
        (folder / f"{word} is over").touch()
        return word

    turns = [Use("enter", word=word) for word in "abc"]
    return Agent("clerk", model=ScriptedModel([*turns, "Done."]), tools=[enter])


async def main() -> None:
    """Work until killed."""
    store, address, queue, folder, name, lease_s = sys.argv[1:]
    engine = Temporal(address, queue=queue, silence=SILENCE)
    agents, outside = (
        [agent_of(Path(folder), name)],
        Outside(lease=timedelta(seconds=float(lease_s))),
    )
    async with Midrun(store, agents=agents, engine=engine, outside=outside):
        print("ready", os.getpid(), flush=True)  # noqa: T201 - this is how it talks
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
