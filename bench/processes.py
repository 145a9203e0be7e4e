"""Other processes of a measurement: `python -m bench.processes worker|server|watcher …`.

- `worker STORE LEASE_S` drives runs, and prints when its waiting tool starts and is cancelled.
- `server FOLDER` serves the same agents with the token `TOKEN`, and prints its port.
- `watcher PATH` prints the time of each change notification of a store in SQLite.

All processes of a machine share one monotonic clock.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio

from bench.probe import REPLY_TEXT, RESULT_TEXT
from midrun import Agent, Midrun, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.environment import Environment
from midrun.server import Limits, app
from midrun.server.serve import UvicornServer, open_listener
from midrun.stores.sqlite.store import SqliteStore

TOKEN: Final = "a-token-for-the-bench-1234"  # noqa: S105 - of a server that runs for a minute
WORKER_STEPS: Final = 20
SERVER_STEPS: Final = 500
"""Each step writes four entries: 2,000 in total."""


@tool(read_only=True)
async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}{RESULT_TEXT}"


@tool(read_only=True)
async def wait_for_cancel() -> None:
    """Wait until cancelled."""
    print("started", flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        print(time.monotonic_ns(), flush=True)


def make_agents(steps: int) -> list[Agent]:
    """Return an agent that makes `steps` steps, and one whose tool waits."""

    def turn(messages: Transcript) -> Line:
        n = messages.assistant_turn_count
        return [REPLY_TEXT, Use("look", n=n)] if n < steps else "Done."

    return [
        Agent("stepper", model=ScriptedModel(turn), tools=[look]),
        Agent(
            "waiter",
            model=ScriptedModel(lambda _: Use("wait_for_cancel")),
            tools=[wait_for_cancel],
        ),
    ]


async def run_worker(store: str, lease_s: str) -> None:
    """Drive runs until killed."""
    outside = Environment(lease=timedelta(seconds=float(lease_s)))
    async with Midrun(store, agents=make_agents(WORKER_STEPS), outside=outside):
        print("ready", flush=True)
        await anyio.sleep_forever()


async def run_server(folder: str) -> None:
    """Serve until terminated."""
    store = f"sqlite:///{Path(folder) / 'served.db'}"
    midrun = Midrun(store, agents=make_agents(SERVER_STEPS))
    served = app(midrun, token=TOKEN, limits=Limits(rate=1e6, burst=10**6))
    with open_listener("127.0.0.1", 0) as listening:
        print(listening.getsockname()[1], flush=True)
        await UvicornServer(served).serve([listening])


async def run_watcher(path: str) -> None:
    """Watch until killed."""
    store = SqliteStore(path)
    async with store.watch() as watch:
        print("ready", flush=True)
        async for _ in watch:
            print(time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", store, lease_s]:
            anyio.run(run_worker, store, lease_s)
        case ["server", folder]:
            anyio.run(run_server, folder)
        case ["watcher", path]:
            anyio.run(run_watcher, path)
        case _:
            sys.exit(__doc__)
