"""One process after the other, each killed at a write to Postgres; then one that ends it all.

python -m tests.scenarios.fleet.kills STORE FOLDER
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import LiteralString

import anyio

from midrun import Completed, Midrun, Paused
from midrun.core.ids import make_call_key
from midrun.driver.journal_writer import load_run_state
from midrun.ports.environment import Environment
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection, Rows, Values
from tests.crash.facts import later
from tests.scenarios.fleet.crew import agents
from tests.scenarios.fleet.world import World

LONG = timedelta(seconds=60)
"""A lease that nobody loses because the machine is slow; who takes over has another clock."""


def arrange_the_end(point: str, number: int) -> None:
    """Have the process killed at its `number`-th write: before it is sent, or once answered."""
    ask, passed = PostgresConnection.execute, count(1)

    def look() -> None:
        if next(passed) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    async def dying(
        link: PostgresConnection,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        writes = statement == queries.WRITE
        if writes and point == "before":
            look()
        rows = await ask(link, statement, values, prepare=prepare)
        if writes and point == "after":
            look()
        return rows

    setattr(
        PostgresConnection, PostgresConnection.execute.__name__, dying
    )  # only in this process


async def live(store: str, folder: Path, *cases: str, hours: int = 0) -> None:
    """Start runs, or find them, and stay until they have ended; settle what is unsure."""
    outside, world = Environment(lease=LONG, clock=later(hours=hours)), World(folder)
    async with (
        Midrun(store, agents=agents(folder), outside=outside) as midrun,
        anyio.create_task_group() as tasks,
    ):
        for case in cases:
            tasks.start_soon(_see_to, midrun, world, case)


async def _see_to(midrun: Midrun, world: World, case: str) -> None:
    run = await midrun.start("busy", case, request_id=case)
    while isinstance(outcome := await run.result(), Paused):
        state = await load_run_state(midrun.store, run.id)
        for ask in outcome.asks:
            call = state.find_call(ask.call)
            assert call is not None
            done = world.settle(make_call_key(run.id, ask.call), call.attempt)
            await run.answer("yes" if done else "no", ask=ask.id)
    assert isinstance(outcome, Completed), str(outcome)


def forked(work: Callable[[], None]) -> bool:
    """Do something in a process of its own; tell whether it was killed."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    _, ending = os.waitpid(child, 0)
    assert os.WIFSIGNALED(ending) or not os.waitstatus_to_exitcode(ending)
    return os.WIFSIGNALED(ending)


def kill_at(store: str, folder: Path, case: str) -> bool:
    """Kill a process at one of its writes, as `case` says; tell whether it came to that."""
    point, _, number = case.partition("-")

    def dies() -> None:
        arrange_the_end(point, int(number))
        anyio.run(live, store, folder, case)

    return forked(dies)


def main(store: str, folder: str) -> None:
    """Kill at every write, before it is sent and after it is answered; then end all runs."""
    left: list[str] = []
    for point in ("before", "after"):
        for number in count(1):
            case = f"{point}-{number}"
            killed = kill_at(store, Path(folder), case)
            print(json.dumps({"case": case, "killed": killed}), flush=True)  # noqa: T201 - so it talks
            if not killed:
                break
            left.append(case)
    assert not forked(lambda: anyio.run(partial(live, store, Path(folder), *left, hours=1)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
