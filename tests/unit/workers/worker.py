"""A worker in a process of its own: its tools write down who used them, and may wait.

python -m … STORE TEMPORAL QUEUE FOLDER NAME LEASE_S
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import anyio

from midrun import Agent, Midrun, tool
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from midrun.stores.postgres import pool
from midrun.workers.temporal import Temporal

SILENCE = timedelta(seconds=3)
BACK_S = 1.0
"""How long a worker waits for a server that went away, before it does without: not ten seconds,
so that a short outage is a long one."""


def make_agents(folder: Path, name: str) -> list[Agent]:
    """Return two agents that make entries in one book; both wait in the middle.

    The clerk makes three, and any of them may be made again. The payer makes one, once.
    """

    def note(words: str) -> None:
        with (folder / "book").open("a") as book:
            book.write(f"{words} {name}\n")

    async def exists(file: str) -> None:
        while not (folder / file).exists():  # noqa: ASYNC110 - processes share a folder
            await anyio.sleep(0.02)

    @tool(idempotent=True)
    async def enter(word: str) -> str:
        """Make an entry."""
        note(word)
        try:
            if word == "b":
                await exists("on")
        finally:
            (folder / f"{word} is over").touch()
        return word

    @tool
    async def pay() -> str:
        """Pay, which nobody does twice unasked."""
        note("pay")
        await exists("paid")
        (folder / "pay is over").touch()
        return "paid"

    turns = [Use("enter", word=word) for word in "abc"]
    return [
        Agent("clerk", model=ScriptedModel([*turns, "Done."]), tools=[enter]),
        Agent("payer", model=ScriptedModel([Use("pay"), "Done."]), tools=[pay]),
    ]


async def main() -> None:
    """Work until killed."""
    store, address, queue, folder, name, lease_s = sys.argv[1:]
    setattr(pool, "RECONNECT_MAX_S", BACK_S)  # noqa: B010 - it is Final, but for this process
    engine = Temporal(address, queue=queue, silence=SILENCE)
    agents, outside = (
        make_agents(Path(folder), name),
        Environment(lease=timedelta(seconds=float(lease_s))),
    )
    async with Midrun(store, agents=agents, engine=engine, outside=outside):
        print("ready", os.getpid(), flush=True)  # noqa: T201 - this is how it talks
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
