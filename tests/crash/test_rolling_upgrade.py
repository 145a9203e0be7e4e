"""Workers of two versions side by side on one store, while runs are in flight."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
import pytest

import midrun
from midrun import Midrun
from midrun.errors import StoreForeign
from midrun.testing.postgres import Postgres
from tests.support.newer_version import MIGRATIONS, find_newer_version, make_newer_version

TIMEOUT_S: Final = 60

WORKER: Final = """
import sys

import anyio

import midrun
from midrun import Agent, Midrun, tool
from midrun.models import ScriptedModel, Use

url, gate = sys.argv[1], anyio.Path(sys.argv[2])


@tool
async def wait_for_gate() -> str:
    '''Wait until the file is there.'''
    while not await gate.exists():
        await anyio.sleep(0.01)
    return midrun.__file__


async def main() -> None:
    name = sys.argv[3]
    model = ScriptedModel([Use("wait_for_gate"), "Done."])
    agent = Agent(name, tools=[wait_for_gate], model=model)
    async with Midrun(url, agents=[agent]) as process:
        run = await process.start(agent, "go")
        await run.until("running")
        print(run.id, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


anyio.run(main)
"""
"""A process that starts one run of its own agent, and drives until its input ends."""


@contextmanager
def running_worker(source: Path, url: str, gate: Path, agent: str) -> Iterator[str]:
    """Start a worker from the package in `source`; yield the id of its run."""
    command = [sys.executable, "-c", WORKER, url, str(gate), agent]
    worker = subprocess.Popen(  # noqa: S603 - this interpreter
        command,
        env=os.environ | {"PYTHONPATH": str(source)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        yield worker.stdout.readline().strip()
        worker.stdin.close()
        assert worker.wait(TIMEOUT_S) == 0
    finally:
        worker.kill()
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()


@pytest.mark.once
@pytest.mark.parametrize("store", MIGRATIONS)
async def test_an_older_worker_goes_on_beside_a_newer_one_that_migrates(
    store: str, postgres: Postgres, tmp_path: Path
) -> None:
    """Runs of both complete; a second process of the older version is refused by name."""
    url = postgres.url() if store == "postgres" else f"sqlite:///{tmp_path}/runs.db"
    gate, newer_version = tmp_path / "gate", find_newer_version(store)
    older, newer = Path(midrun.__file__).parents[1], make_newer_version(tmp_path / "newer")
    is_newer: dict[str, bool] = {}  # run -> its tool ran in the newer version
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun(url) as observer:
            with (
                running_worker(older, url, gate, "old") as first,
                running_worker(newer, url, gate, "new") as second,
            ):
                gate.touch()
                for run_id in (first, second):
                    run = await observer.get(run_id)
                    assert (await run.until("completed")).output == "Done."
                    assert await observer.verify(run_id)
                    is_newer[run_id] = str(newer) in b"".join(await run.export()).decode()
        with pytest.raises(StoreForeign, match=f"schema {newer_version} belongs to a newer"):
            async with Midrun(url):
                pass
    assert is_newer == {first: False, second: True}
