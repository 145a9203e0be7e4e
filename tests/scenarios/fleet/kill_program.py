"""Start processes that are killed at a write to Postgres, then one that completes all runs.

python -m tests.scenarios.fleet.kill_program STORE FOLDER
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
from midrun.driver.holder_socket import is_holder_gone
from midrun.driver.journal_writer import load_run_state
from midrun.ports.environment import Environment
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import PostgresConnection, Rows, Values
from midrun.workers import local
from tests.scenarios.fleet.external_service import ExternalService
from tests.scenarios.fleet.worker_program import make_agents
from tests.support.conditions import make_clock_ahead

LONG_LEASE = timedelta(seconds=60)
"""Longer than any pause of a slow machine; the last process has a clock ahead of it."""


def kill_at_write(point: str, number: int) -> None:
    """Kill this process at its `number`-th write: before it is sent, or after the reply."""
    execute, numbers = PostgresConnection.execute, count(1)

    def kill_if_due() -> None:
        if next(numbers) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    async def execute_or_die(
        connection: PostgresConnection,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        is_write = statement == queries.WRITE
        if is_write and point == "before":
            kill_if_due()
        rows = await execute(connection, statement, values, prepare=prepare)
        if is_write and point == "after":
            kill_if_due()
        return rows

    setattr(
        PostgresConnection, PostgresConnection.execute.__name__, execute_or_die
    )  # only in this process
    # This process must not continue the runs of those that were killed before it.
    setattr(local, is_holder_gone.__name__, lambda _: False)


async def complete_runs(store: str, folder: Path, *cases: str, hours: int = 0) -> None:
    """Start or find the runs of `cases`, and answer their asks until they are completed."""
    environment = Environment(lease=LONG_LEASE, clock=make_clock_ahead(hours=hours))
    service = ExternalService(folder)
    async with (
        Midrun(store, agents=make_agents(folder), outside=environment) as midrun,
        anyio.create_task_group() as tasks,
    ):
        for case in cases:
            tasks.start_soon(_complete_run, midrun, service, case)


async def _complete_run(midrun: Midrun, service: ExternalService, case: str) -> None:
    run = await midrun.start("busy", case, request_id=case)
    while isinstance(outcome := await run.result(), Paused):
        state = await load_run_state(midrun.store, run.id)
        for ask in outcome.asks:
            call = state.find_call(ask.call)
            assert call is not None
            done = service.settle(make_call_key(run.id, ask.call), call.attempt)
            await run.answer("yes" if done else "no", ask=ask.id)
    assert isinstance(outcome, Completed), str(outcome)


def run_in_fork(work: Callable[[], None]) -> bool:
    """Call `work` in a forked process; tell whether it was killed."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or not os.waitstatus_to_exitcode(status)
    return os.WIFSIGNALED(status)


def run_and_kill(store: str, folder: Path, case: str) -> bool:
    """Run a process that is killed as `case` says; False if it had no such write."""
    point, _, number = case.partition("-")

    def run() -> None:
        kill_at_write(point, int(number))
        anyio.run(complete_runs, store, folder, case)

    return run_in_fork(run)


def main(store: str, folder: str) -> None:
    """Kill a process at each of its writes, before and after it; then complete all runs."""
    open_cases: list[str] = []
    for point in ("before", "after"):
        for number in count(1):
            case = f"{point}-{number}"
            killed = run_and_kill(store, Path(folder), case)
            print(json.dumps({"case": case, "killed": killed}), flush=True)  # noqa: T201 - the test reads it
            if not killed:
                break
            open_cases.append(case)
    complete = partial(complete_runs, store, Path(folder), *open_cases, hours=1)
    assert not run_in_fork(lambda: anyio.run(complete))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
