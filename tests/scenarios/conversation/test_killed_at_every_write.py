"""Promises 8 to 10 under SIGKILL: families, reviews, side questions, caps, long histories.

Real processes die before an entry is inserted, before a commit, or after it but before anybody
hears of it. One `Midrun` takes everything over that they left; the same people come back.
"""

import json
import sys
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from midrun import Midrun
from midrun.core.ids import RunId
from midrun.ports.environment import Environment
from tests.crash.child import LONG
from tests.crash.facts import at_once, later
from tests.scenarios.conversation.stories import STORIES, runs_of
from tests.support.processes import ROOT
from tests.support.store_choice import kept_at

POINTS = ("insert", "commit", "reply")
PATIENCE = 240  # for a process at each write of a run
AT_ONCE = 8


class Case(Struct, frozen=True):
    """One run, and what its processes had been told before they died."""

    case: str
    story: str
    killed: bool
    acks: list[str]


async def killed(folder: Path, story: str, *ends: str) -> list[Case]:
    """Have processes killed, and return what is known of each run."""
    command = [
        sys.executable,
        "-m",
        "tests.scenarios.conversation.child",
        str(folder),
        story,
        *ends,
    ]
    process = await anyio.run_process(command, cwd=ROOT, check=False, stderr=None)
    assert process.returncode == 0
    return [Case(**json.loads(line)) for line in process.stdout.splitlines()]


async def go_on_with(cases: list[Case], folder: Path) -> None:
    """Take over everything that the dead left, and see to every run."""
    agents = [STORIES[case.story].agent(case.case, folder / case.case) for case in cases]
    outside = Environment(lease=LONG, clock=later(hours=9), random_unit=at_once)
    room = anyio.Semaphore(AT_ONCE)
    async with (
        Midrun(kept_at(f"{folder}/runs.db"), agents=agents, outside=outside) as midrun,
        anyio.create_task_group() as tasks,
    ):
        for case in cases:
            tasks.start_soon(see_to, midrun, case, folder / case.case, room)


async def see_to(midrun: Midrun, case: Case, place: Path, room: anyio.Semaphore) -> None:
    """Bring one run to its end, and hold it and its whole family against the world."""
    story = STORIES[case.story]
    agent = midrun.agents[f"{case.case}_top"]
    async with room:
        run = await midrun.start(agent, "go", request_id=case.case)
        await story.people(midrun, run, place, again=True)
        await story.check(midrun, run, place)
        lines: set[tuple[int, str]] = set()
        for member in await runs_of(midrun, agent):
            verdict = await midrun.verify(member.id)
            assert verdict, f"{case.case}: {verdict}"
            stored = await midrun.store.read_lines(RunId(member.id))
            lines |= {(seq, link.hex()) for seq, (_, link) in enumerate(stored, 1)}
        for ack in case.acks:  # whatever the dead were told is still there, byte for byte
            seq, link = ack.split()
            assert (int(seq), link) in lines, case.case


@pytest.mark.parametrize("story", STORIES)
async def test_a_story_survives_its_process_at_one_of_its_writes(
    tmp_path: Path, story: str
) -> None:
    """For those who are in a hurry; the next test has all of them."""
    with anyio.fail_after(PATIENCE):
        cases = await killed(tmp_path, story, "commit-6")
        assert all(case.killed for case in cases)
        await go_on_with(cases, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "point"),
    [
        (story, point)
        for story in STORIES
        for point in POINTS
        if (story, point) != ("mended", "insert")  # three times the writes of the others
    ],
)
async def test_a_story_survives_its_process_at_every_one_of_its_writes(
    tmp_path: Path, story: str, point: str
) -> None:
    """Before an insert, before a commit, after it; until there is no write left to die at."""
    with anyio.fail_after(PATIENCE):
        cases = await killed(tmp_path, story, point)
        assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
        assert len(cases) > 5
        await go_on_with(cases, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "end"),
    [
        ("family", "commit-9"),
        ("cut_off", "reply-9"),
        ("wheel", "commit-6"),
        ("mended", "commit-32"),
    ],
)
async def test_a_story_survives_the_process_that_took_it_over_as_well(
    tmp_path: Path, story: str, end: str
) -> None:
    """The second dies at each of its writes: orphans of orphans, over generations."""
    with anyio.fail_after(PATIENCE):
        cases = await killed(tmp_path, story, end, "commit")
        assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
        await go_on_with(cases, tmp_path)
