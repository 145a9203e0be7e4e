"""A process is killed at every one of its writes to Postgres; another ends what it began."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio.to_thread
import pytest

from midrun import Midrun
from midrun.ports.store import RunQuery
from midrun.testing.postgres import Postgres
from tests.scenarios.fleet.crew import STEPS
from tests.scenarios.fleet.world import World
from tests.support.processes import ROOT


@pytest.mark.slow
@pytest.mark.once
async def test_a_run_survives_its_process_at_every_one_of_its_writes(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Nothing that was done is done again, and nothing is left out."""
    url = postgres.url()
    command = [sys.executable, "-m", "tests.scenarios.fleet.kills", url, str(tmp_path)]
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(  # noqa: S603 - our own script
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
    )
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert [case["killed"] for case in cases].count(False) == 2  # the last of each point
    assert len(cases) > 2 * len(STEPS)
    world = World(tmp_path)
    deeds = world.deeds()
    world.close()
    async with Midrun(url) as midrun:
        rows = (await midrun.store.list_runs(RunQuery(limit=500))).items
        assert len(rows) == len(cases)
        for row in rows:
            assert row.head.phase == "completed", row
            verdict = await midrun.verify(row.run)
            assert verdict, str(verdict)
            made = Counter(deed.what for deed in deeds if deed.run == row.run)
            wanted = Counter(STEPS)
            assert (made["pay"], made["order"]) == (wanted["pay"], wanted["order"]), row
