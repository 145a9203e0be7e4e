"""Processes killed at every write of a run, and what the next one makes of what they left.

Each of them is a real process that meets SIGKILL before an entry is inserted, before a commit,
or after it but before anybody hears of it. All runs are in one file; one `Midrun` takes all of
them up, drives them to their ends, and asks a person where only the world can tell: the person
looks at the file of deeds. It does not wait for leases to expire: by its clock they have.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from midrun import Midrun, Run
from midrun.core.entries import CallDone, CallStarted, Record
from midrun.core.ids import CallId, make_call_key
from midrun.ports.environment import Environment
from tests.crash.child import LONG, answer_it, cancel_it
from tests.crash.conftest import child
from tests.crash.deeds import STORIES, Deed, deeds
from tests.crash.facts import later
from tests.support.store_choice import kept_at

pytestmark = pytest.mark.about_sqlite(
    "dies at statements of SQLite; tests/scenarios/fleet/test_processes.py does in Postgres"
)

POINTS = ("insert", "commit", "reply")
ONCE = ("charge", "press", "lock", "hold")
TAKEN_BACK = {"charge": "uncharge", "hold": "unhold", "lock": "unlock"}


class Case(Struct, frozen=True):
    """One run, and what its processes had been told before they died."""

    case: str
    story: str
    killed: bool
    acks: list[str]


async def killed(folder: Path, story: str, *ends: str) -> list[Case]:
    """Have processes killed, and return what is known of each run.

    An end is a point and which of the writes it is at; without a number, each of them in turn.
    """
    with child("kills", folder, story, *ends) as process:
        lines = await process.hear_all()
        assert await process.end() == 0
    return [Case(**json.loads(line)) for line in lines]


async def go_on_with(cases: list[Case], folder: Path) -> None:
    """Take over everything that the dead left, and see to every run."""
    agents = [STORIES[case.story](case.case, folder / case.case) for case in cases]
    outside = Environment(lease=LONG, clock=later(hours=9))
    async with (
        Midrun(kept_at(f"{folder}/runs.db"), agents=agents, outside=outside) as midrun,
        anyio.create_task_group() as tasks,
    ):
        for case in cases:
            tasks.start_soon(see_to, midrun, case, folder / case.case)


async def see_to(midrun: Midrun, case: Case, place: Path) -> None:
    """Bring one run to its end, and hold it against the world."""
    before = deeds(place)
    run = await midrun.start(case.case, "go", request_id=case.case)
    if case.story == "held_up":
        await cancel_it(run, at_once=True)
        await check_cancelled(run, place)
    else:
        await answer_it(run, place)
        check_completed(deeds(place))
    records = await midrun.store.read(run.id)
    check_acknowledged(case, await midrun.store.read_lines(run.id))
    check_deeds(run, case, records, deeds(place))
    assert deeds(place)[: len(before)] == before


# ── what must be so ──────────────────────────────────────────────────────────


def check_acknowledged(case: Case, lines: Sequence[tuple[bytes, bytes]]) -> None:
    """Whatever the dead were told is in the journal, where they were told, byte for byte."""
    for ack in case.acks:
        seq, link = ack.split()
        assert lines[int(seq) - 1][1].hex() == link, case.case


def check_completed(done: list[Deed]) -> None:
    """Everything of the plan took effect, and what must not take effect twice did not."""
    counts = Counter(deed.what for deed in done)
    for what in ("charge", "press", "lock"):
        assert counts[what] == 1, (what, done)
    assert counts["put"] >= 1
    assert counts["unlock"] >= 1
    assert counts["uncharge"] == 0
    for what in ("put", "look", "unlock"):
        assert len({deed.key for deed in done if deed.what == what}) == 1


async def check_cancelled(run: Run, place: Path) -> None:
    """Nothing is left of what can be taken back, and every deed is in the report."""
    report, done = await run.report(), deeds(place)
    assert not report.not_undone, str(report)
    assert not report.still_held, str(report)
    assert {deed.tool for deed in report.unsure} <= {"put", "lock"}  # these have no undo
    for what, back in TAKEN_BACK.items():
        last = {deed.of: deed.what for deed in done if deed.what in {what, back}}
        assert set(last.values()) <= {back}, done
    undone = {make_call_key(run.id, CallId(deed.call)) for deed in report.undone}
    assert {deed.key for deed in done if deed.what in {"charge", "hold"}} <= undone
    left = (*report.done, *report.released, *report.unsure)
    told = {make_call_key(run.id, CallId(deed.call)) for deed in left}
    assert {deed.key for deed in done if deed.what in {"put", "lock"}} <= told


def check_deeds(run: Run, case: Case, records: Sequence[Record], done: list[Deed]) -> None:
    """Nothing happened that was not journaled as started; what was done was left alone."""
    attempts = Counter(
        make_call_key(run.id, r.entry.call) for r in records if isinstance(r.entry, CallStarted)
    )
    ended = {
        make_call_key(run.id, r.entry.call)
        for r in records
        if isinstance(r.entry, CallDone) and r.epoch == 1
    }
    made = [deed for deed in done if deed.what not in TAKEN_BACK.values()]
    taken_back = {(deed.of, deed.key) for deed in done if deed not in made}
    assert len(taken_back) == len(dict(taken_back)), done  # one key, however often it is tried
    for deed in made:
        assert deed.attempt <= attempts[deed.key], (case.case, deed)
        assert deed.attempt == 1 or deed.key not in ended, (case.case, deed)
    for what in ONCE:
        keys = [deed.key for deed in made if deed.what == what]
        assert len(keys) == len(set(keys)), (case.case, made)


@pytest.mark.parametrize("story", STORIES)
async def test_a_run_survives_its_process_at_a_few_of_its_writes(
    path: Path, story: str
) -> None:
    """One of each point, for those who are in a hurry; the next test has all of them."""
    cases: list[Case] = []
    for end in ("insert-5", "commit-4", "reply-6"):
        cases += await killed(path.parent, story, end)
    assert all(case.killed for case in cases)
    await go_on_with(cases, path.parent)


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("story", STORIES)
async def test_a_run_survives_its_process_at_every_one_of_its_writes(
    path: Path, story: str, point: str
) -> None:
    """Before an insert, before a commit, after it; until there is no write left to die at."""
    cases = await killed(path.parent, story, point)
    assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
    assert len(cases) > 10
    await go_on_with(cases, path.parent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "end"),
    [("completing", "commit-8"), ("held_up", "reply-6"), ("held_up", "commit-8")],
)
async def test_a_run_survives_the_process_that_took_it_over_as_well(
    path: Path, story: str, end: str
) -> None:
    """The second dies at each of its writes: orphans of orphans, undos cut short twice."""
    cases = await killed(path.parent, story, end, "insert")
    assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
    await go_on_with(cases, path.parent)
