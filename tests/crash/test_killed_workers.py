"""Workers that are killed: at each write of a run, and by one of their calls.

A process dies of SIGKILL before an entry is inserted, before a commit, or between the commit
and its reply. One `Midrun` takes over all runs and completes them. When it asks whether a call
took effect, the test answers according to the recorded actions. The clock of that `Midrun` is
ahead, so that it need not wait for leases to expire.
"""

import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from msgspec import Struct

from midrun import Midrun, Run
from midrun.core.entries import CallDone, CallStarted, Record, RunFailed
from midrun.core.ids import CallId, make_call_key
from midrun.core.retries import WORKER_DEATHS_MAX, WORKERS_DIED_CODE
from midrun.ports.environment import Environment
from tests.crash.child import LONG_LEASE, answer_until_completed, cancel_run
from tests.crash.conftest import start_child
from tests.crash.recording_tools import (
    BYSTANDERS,
    STORIES,
    ToolAction,
    make_parsing_agent,
    read_actions,
)
from tests.support.conditions import make_clock_ahead
from tests.support.store_choice import get_store_url

about_sqlite = pytest.mark.about_sqlite(
    "dies at statements of SQLite; scenarios/fleet has the same for Postgres"
)

POINTS = ("insert", "commit", "reply")
NOT_REPEATABLE = ("charge", "press", "lock", "hold")
REVERSALS = {"charge": "uncharge", "hold": "unhold", "lock": "unlock"}


class Case(Struct, frozen=True):
    """One run, and the appends that its processes had seen acknowledged."""

    case: str
    story: str
    killed: bool
    acks: list[str]


async def run_kills(folder: Path, story: str, *kill_points: str) -> list[Case]:
    """Have processes killed and return one case for each run.

    A kill point is `point-number`; without a number, each write in turn.
    """
    with start_child("kills", folder, story, *kill_points) as process:
        lines = await process.read_all_lines()
        assert await process.wait() == 0
    return [Case(**json.loads(line)) for line in lines]


async def complete_runs(cases: list[Case], folder: Path) -> None:
    """Take over all runs in one `Midrun` and complete them."""
    agents = [STORIES[case.story](case.case, folder / case.case) for case in cases]
    environment = Environment(lease=LONG_LEASE, clock=make_clock_ahead(hours=9))
    async with (
        Midrun(
            get_store_url(f"{folder}/runs.db"), agents=agents, outside=environment
        ) as midrun,
        anyio.create_task_group() as tasks,
    ):
        for case in cases:
            tasks.start_soon(complete_run, midrun, case, folder / case.case)


async def complete_run(midrun: Midrun, case: Case, case_folder: Path) -> None:
    """Bring one run to its end and compare it with the recorded actions."""
    before = read_actions(case_folder)
    run = await midrun.start(case.case, "go", request_id=case.case)
    if case.story == "held_up":
        await cancel_run(run, at_once=True)
        await check_cancelled(run, case_folder)
    else:
        await answer_until_completed(run, case_folder)
        check_completed(read_actions(case_folder))
    records = await midrun.store.read(run.id)
    check_acknowledged(case, await midrun.store.read_lines(run.id))
    check_actions(run, case, records, read_actions(case_folder))
    assert read_actions(case_folder)[: len(before)] == before


# ── checks ───────────────────────────────────────────────────────────────────


def check_acknowledged(case: Case, lines: Sequence[tuple[bytes, bytes]]) -> None:
    """Check that each acknowledged append is in the journal with the same hash."""
    for ack in case.acks:
        seq, link = ack.split()
        assert lines[int(seq) - 1][1].hex() == link, case.case


def check_completed(actions: list[ToolAction]) -> None:
    """Check that each action happened, and those that are not repeatable once."""
    counts = Counter(action.name for action in actions)
    for name in ("charge", "press", "lock"):
        assert counts[name] == 1, (name, actions)
    assert counts["put"] >= 1
    assert counts["unlock"] >= 1
    assert counts["uncharge"] == 0
    for name in ("put", "look", "unlock"):
        assert len({action.key for action in actions if action.name == name}) == 1


async def check_cancelled(run: Run, case_folder: Path) -> None:
    """Check that all reversible actions are reversed and that the report has the others."""
    report, actions = await run.report(), read_actions(case_folder)
    assert not report.not_undone, str(report)
    assert not report.still_held, str(report)
    assert {action.tool for action in report.unsure} <= {"put", "lock"}  # these have no undo
    for name, reversal in REVERSALS.items():
        last = {
            action.original_key: action.name
            for action in actions
            if action.name in {name, reversal}
        }
        assert set(last.values()) <= {reversal}, actions
    undone = {make_call_key(run.id, CallId(action.call)) for action in report.undone}
    assert {action.key for action in actions if action.name in {"charge", "hold"}} <= undone
    left = (*report.done, *report.released, *report.unsure)
    reported = {make_call_key(run.id, CallId(action.call)) for action in left}
    assert {action.key for action in actions if action.name in {"put", "lock"}} <= reported


def check_actions(
    run: Run, case: Case, records: Sequence[Record], actions: list[ToolAction]
) -> None:
    """Check that each action was journaled as started, and none repeated after its end."""
    attempts = Counter(
        make_call_key(run.id, r.entry.call) for r in records if isinstance(r.entry, CallStarted)
    )
    ended = {
        make_call_key(run.id, r.entry.call)
        for r in records
        if isinstance(r.entry, CallDone) and r.epoch == 1
    }
    forward_actions = [action for action in actions if action.name not in REVERSALS.values()]
    reversals = {
        (action.original_key, action.key) for action in actions if action not in forward_actions
    }
    assert len(reversals) == len(dict(reversals)), actions  # all attempts have the same key
    for action in forward_actions:
        assert action.attempt <= attempts[action.key], (case.case, action)
        assert action.attempt == 1 or action.key not in ended, (case.case, action)
    for name in NOT_REPEATABLE:
        keys = [action.key for action in forward_actions if action.name == name]
        assert len(keys) == len(set(keys)), (case.case, forward_actions)


@about_sqlite
@pytest.mark.parametrize("story", STORIES)
async def test_a_run_survives_a_kill_at_some_of_its_writes(path: Path, story: str) -> None:
    """A quick selection; the next test has all writes."""
    cases: list[Case] = []
    for kill_point in ("insert-5", "commit-4", "reply-6"):
        cases += await run_kills(path.parent, story, kill_point)
    assert all(case.killed for case in cases)
    await complete_runs(cases, path.parent)


@about_sqlite
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("story", STORIES)
async def test_a_run_survives_a_kill_at_each_of_its_writes(
    path: Path, story: str, point: str
) -> None:
    """The last case has no write left and is not killed."""
    cases = await run_kills(path.parent, story, point)
    assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
    assert len(cases) > 10
    await complete_runs(cases, path.parent)


@about_sqlite
@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "kill_point"),
    [("completing", "commit-8"), ("held_up", "reply-6"), ("held_up", "commit-8")],
)
async def test_a_run_survives_kills_of_two_processes(
    path: Path, story: str, kill_point: str
) -> None:
    """The second process is killed at each of its writes, also during undos."""
    cases = await run_kills(path.parent, story, kill_point, "insert")
    assert [case.killed for case in cases] == [True] * (len(cases) - 1) + [False]
    await complete_runs(cases, path.parent)


# ── a call that kills its worker ─────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.once
async def test_a_safe_call_that_killed_three_workers_fails_its_run_only(path: Path) -> None:
    """The calls of the bystanders were in flight at the first two crashes.

    The last attempt of a suspect call is made alone, so the third crash is blamed on the right
    call and the bystanders complete.
    """
    folder = path.parent
    bad_file = folder / "bad.pdf"
    bad_file.touch()
    for number in range(WORKER_DEATHS_MAX):
        if number == WORKER_DEATHS_MAX - 1:
            (folder / "open").touch()  # lets the bystanders return
        with start_child("parse", folder, number) as process:
            assert await process.wait() == -signal.SIGSEGV
    with start_child("parse", folder, WORKER_DEATHS_MAX) as process:
        lines = await process.read_all_lines()
        assert await process.wait() == 0
    assert lines[0].startswith("failed parse_pdf: 3 processes ended")
    assert lines[1:] == ["completed"] * BYSTANDERS
    parse_actions = [action for action in read_actions(folder) if action.name == "parse"]
    assert [action.attempt for action in parse_actions] == [1, 2, 3]
    assert len({action.pid for action in parse_actions}) == WORKER_DEATHS_MAX
    bad_file.unlink()
    agent = make_parsing_agent(folder)
    environment = Environment(
        lease=LONG_LEASE, clock=make_clock_ahead(hours=WORKER_DEATHS_MAX + 1)
    )
    async with Midrun(get_store_url(path), agents=[agent], outside=environment) as midrun:
        run = await midrun.start(agent, "go", request_id="the file")
        entries = [record.entry for record in await midrun.store.read(run.id)]
        assert [e.code for e in entries if isinstance(e, RunFailed)] == [WORKERS_DIED_CODE]
        assert "resume" in (await run.view()).allowed
        await run.resume()
        assert (await run.until("completed")).output == "Done."
