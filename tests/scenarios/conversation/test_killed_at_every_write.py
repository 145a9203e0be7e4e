"""Promises 8 to 10 under SIGKILL: children, reviews, side questions, caps, long histories.

Processes are killed before a commit, or after a commit and before its reply. Then one `Midrun`
takes over all their runs, and the same controls are sent again. A kill before an insert leaves
the same file as a kill before the commit of that insert; `tests/crash` kills at each insert.
"""

import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from midrun import Midrun
from midrun.core.ids import RunId
from midrun.ports.environment import Environment
from tests.crash.child import LONG_LEASE
from tests.scenarios.conversation.crash_scenarios import SCENARIOS, read_family_runs
from tests.support.conditions import draw_no_delay, make_clock_ahead
from tests.support.paths import ROOT
from tests.support.store_choice import get_store_url

# A kill after a commit leaves the same file as a kill before the next one; only the effects in
# between differ. `tests/crash` kills at both points, so here the second one is for the night.
KILL_POINTS = ("commit", pytest.param("reply", marks=pytest.mark.nightly))
TIME_LIMIT_SECONDS = 240  # enough for a process at each write of a run
MAX_PARALLEL_RUNS = 8


class Case(msgspec.Struct, frozen=True):
    """One run, and the acknowledgements that its processes got before they were killed."""

    case: str
    scenario: str = msgspec.field(name="story")
    killed: bool
    acks: list[str]


async def run_killed_processes(folder: Path, scenario: str, *kill_points: str) -> list[Case]:
    """Run the processes that are killed, and return a case for each run."""
    command = [
        sys.executable,
        "-m",
        "tests.scenarios.conversation.killed_process",
        str(folder),
        scenario,
        *kill_points,
    ]
    process = await anyio.run_process(command, cwd=ROOT, check=False, stderr=None)
    assert process.returncode == 0
    return [msgspec.json.decode(line, type=Case) for line in process.stdout.splitlines()]


async def finish_runs(cases: list[Case], folder: Path) -> None:
    """Take over all runs of the killed processes, finish and check them."""
    agents = [SCENARIOS[case.scenario].agent(case.case, folder / case.case) for case in cases]
    outside = Environment(
        lease=LONG_LEASE, clock=make_clock_ahead(hours=9), random_unit=draw_no_delay
    )
    semaphore = anyio.Semaphore(MAX_PARALLEL_RUNS)
    async with (
        Midrun(get_store_url(f"{folder}/runs.db"), agents=agents, outside=outside) as midrun,
        anyio.create_task_group() as tasks,
    ):
        for case in cases:
            tasks.start_soon(finish_and_check, midrun, case, folder / case.case, semaphore)


async def finish_and_check(
    midrun: Midrun, case: Case, folder: Path, semaphore: anyio.Semaphore
) -> None:
    """Bring one run to its end; check its effects and the journals of its family."""
    scenario = SCENARIOS[case.scenario]
    agent = midrun.agents[f"{case.case}_top"]
    async with semaphore:
        run = await midrun.start(agent, "go", request_id=case.case)
        await scenario.send_controls(midrun, run, folder, after_crash=True)
        await scenario.check(midrun, run, folder)
        lines: set[tuple[int, str]] = set()
        for member in await read_family_runs(midrun, agent):
            verdict = await midrun.verify(member.id)
            assert verdict, f"{case.case}: {verdict}"
            stored = await midrun.store.read_lines(RunId(member.id))
            lines |= {(seq, link.hex()) for seq, (_, link) in enumerate(stored, 1)}
        for ack in case.acks:  # all acknowledged entries are still there
            seq, link = ack.split()
            assert (int(seq), link) in lines, case.case


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_scenario_survives_a_kill_at_one_of_its_writes(
    tmp_path: Path, scenario: str
) -> None:
    """A quick sample; the next test has all writes."""
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        cases = await run_killed_processes(tmp_path, scenario, "commit-6")
        assert all(case.killed for case in cases)
        await finish_runs(cases, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("point", KILL_POINTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_scenario_survives_a_kill_at_every_one_of_its_writes(
    tmp_path: Path, scenario: str, point: str
) -> None:
    """Before a commit, and after it, until no write is left."""
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        cases = await run_killed_processes(tmp_path, scenario, point)
        assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
        assert len(cases) > 5
        await finish_runs(cases, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "kill_point"),
    [
        ("children", "commit-9"),
        pytest.param("cancelled_children", "reply-9", marks=pytest.mark.nightly),
        pytest.param("take_over", "commit-6", marks=pytest.mark.nightly),
        ("retried_undo", "commit-32"),
    ],
)
async def test_a_scenario_survives_a_second_kill_at_every_write(
    tmp_path: Path, scenario: str, kill_point: str
) -> None:
    """The process that took the runs over is killed at each of its writes."""
    with anyio.fail_after(TIME_LIMIT_SECONDS):
        cases = await run_killed_processes(tmp_path, scenario, kill_point, "commit")
        assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
        await finish_runs(cases, tmp_path)
