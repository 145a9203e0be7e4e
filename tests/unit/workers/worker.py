"""A worker process for Temporal; its tools write their worker's name into a file.

Arguments: STORE TEMPORAL QUEUE FOLDER NAME LEASE_S
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

WORKER_SILENCE = timedelta(seconds=3)
RECONNECT_S = 1.0
"""Time that a worker waits for a lost server: short, so that the outages of tests exceed it."""


def make_agents(folder: Path, name: str) -> list[Agent]:
    """Return two agents whose tools write into one book; both wait in the middle.

    The clerk makes three idempotent calls. The payer makes one that must not be repeated.
    """

    def write_line(word: str) -> None:
        with (folder / "book").open("a") as book:
            book.write(f"{word} {name}\n")

    async def wait_for_file(file: str) -> None:
        while not (folder / file).exists():  # noqa: ASYNC110 - another process creates it
            await anyio.sleep(0.02)

    @tool(idempotent=True)
    async def enter(word: str) -> str:
        """Write a word into the book."""
        write_line(word)
        try:
            if word == "b":
                await wait_for_file("on")
        finally:
            (folder / f"{word} is over").touch()
        return word

    @tool
    async def pay() -> str:
        """Pay; not idempotent."""
        write_line("pay")
        await wait_for_file("paid")
        (folder / "pay is over").touch()
        return "paid"

    turns = [Use("enter", word=word) for word in "abc"]
    return [
        Agent("clerk", model=ScriptedModel([*turns, "Done."]), tools=[enter]),
        Agent("payer", model=ScriptedModel([Use("pay"), "Done."]), tools=[pay]),
    ]


def read_book(folder: Path) -> list[str]:
    """Return the lines of the book: a word and the name of its worker."""
    book = folder / "book"
    return book.read_text().splitlines() if book.exists() else []


async def main() -> None:
    """Drive runs until the process is killed."""
    store, address, queue, folder, name, lease_s = sys.argv[1:]
    setattr(pool, "RECONNECT_MAX_S", RECONNECT_S)  # noqa: B010 - a Final, changed for this process only
    worker = Temporal(address, queue=queue, silence=WORKER_SILENCE)
    agents = make_agents(Path(folder), name)
    environment = Environment(lease=timedelta(seconds=float(lease_s)))
    async with Midrun(store, agents=agents, engine=worker, outside=environment):
        print("ready", os.getpid(), flush=True)  # noqa: T201 - the test reads stdout
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
