"""Other processes of a measurement: `python -m bench.processes worker|server|watcher …`.

- `worker STORE LEASE_S` drives runs, and prints when its waiting tool starts and is cancelled.
- `fleet STORE [TEMPORAL]` drives runs whose tool waits for `FLEET_WAIT_S` seconds. With the
  address of a Temporal server, that decides which process drives a run.
- `server STORE STEPS` serves the same agents with the token `TOKEN`, and prints its port.
- `watcher PATH` prints the time of each change notification of a store in SQLite.

All processes of a machine share one monotonic clock.
"""

import sys
import time
from datetime import timedelta
from typing import Final, Literal

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
from midrun.workers.local import RunPlacement

TOKEN: Final = "a-token-for-the-bench-1234"  # noqa: S105 - of a server that runs for a minute
WORKER_STEPS: Final = 20
FLEET_STEPS: Final = 5
FLEET_WAIT_S: Final = 10.0
FLEET_MAX_RUNS: Final = 100_000
"""The runs that Temporal gives one worker at most: more than any measurement has."""


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


@tool(read_only=True)
async def wait_for_service(n: int) -> str:
    """Wait as long as a slow service takes."""
    await anyio.sleep(FLEET_WAIT_S)
    return f"{n}{RESULT_TEXT}"


def make_fleet_agent() -> Agent:
    """Return an agent that makes `FLEET_STEPS` steps and waits in each."""

    def turn(messages: Transcript) -> Line:
        n = messages.assistant_turn_count
        return [REPLY_TEXT, Use("wait_for_service", n=n)] if n < FLEET_STEPS else "Done."

    return Agent("fleet", model=ScriptedModel(turn), tools=[wait_for_service])


async def run_fleet_worker(store: str, temporal: str = "") -> None:
    """Drive runs that wait, until killed."""
    engine: Literal["local"] | RunPlacement = "local"
    if temporal:
        from midrun.workers.temporal import Temporal  # noqa: PLC0415 - needs its extra

        engine = Temporal(temporal, runs=FLEET_MAX_RUNS)
    async with Midrun(store, agents=[make_fleet_agent()], engine=engine):
        print("ready", flush=True)
        await anyio.sleep_forever()


async def run_worker(store: str, lease_s: str) -> None:
    """Drive runs until killed."""
    outside = Environment(lease=timedelta(seconds=float(lease_s)))
    async with Midrun(store, agents=make_agents(WORKER_STEPS), outside=outside):
        print("ready", flush=True)
        await anyio.sleep_forever()


async def run_server(store: str, steps: str) -> None:
    """Serve until terminated."""
    midrun = Midrun(store, agents=make_agents(int(steps)))
    limits = Limits(
        rate=1e6,
        burst=10**6,
        streams=10**4,
        connections=10**4,
        connections_per_address=10**4,
    )
    served = app(midrun, token=TOKEN, limits=limits)
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
        case ["fleet", store, *temporal]:
            anyio.run(run_fleet_worker, store, "".join(temporal))
        case ["server", store, steps]:
            anyio.run(run_server, store, steps)
        case ["watcher", path]:
            anyio.run(run_watcher, path)
        case _:
            sys.exit(__doc__)
