"""Many failures at once; afterwards journals, effects, receipts and tables must agree.

These are samples of `make chaos`, which plays many more plans for longer. The program is a
process of its own: it adopts the processes that its workers leave behind.
"""

import subprocess
import sys

import pytest

from midrun.core import entries as e
from midrun.core.ids import CallId, Seq
from midrun.core.state import CallState
from tests.scenarios.fleet.chaos.checks import check_call
from tests.scenarios.fleet.chaos.plan import make_plan
from tests.scenarios.fleet.external_service import Effect
from tests.support.paths import ROOT

SAMPLE_SEED = 52
"""A seed whose plans have most kinds of faults; see the test of the sample."""

TIMEOUT_S = 540


def play_sample(store: str) -> str:
    """Play a short plan; return the output of the program."""
    command = [sys.executable, "-m", "tests.scenarios.fleet.chaos", "--store", store]
    command += ["--seed", str(SAMPLE_SEED), "--seconds", "4", "--runs", "16"]
    done = subprocess.run(  # noqa: S603 - our own program
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_journals_effects_and_tables_agree_after_many_failures(store: str) -> None:
    """Nothing is made twice, nothing is unseen, and nothing is left behind."""
    output = play_sample(store)
    assert f'"store": "{store}"' in output
    assert "1 of 1 seeds without a problem" in output


def test_the_plan_of_a_seed_is_always_the_same() -> None:
    first = make_plan(SAMPLE_SEED, seconds=4, runs=16)
    assert make_plan(SAMPLE_SEED, seconds=4, runs=16) == first
    assert make_plan(SAMPLE_SEED + 1, seconds=4, runs=16) != first


def test_the_sample_has_most_kinds_of_faults() -> None:
    sqlite = make_plan(SAMPLE_SEED, seconds=4, runs=16, store="sqlite")
    postgres = make_plan(SAMPLE_SEED, seconds=4, runs=16, store="postgres")
    for plan in (sqlite, postgres):
        assert plan.is_encrypted
        assert plan.has_clock_jumps
        assert plan.has_upgrade
        assert {task.agent for task in plan.tasks} >= {"clerk", "biller"}
    assert sqlite.has_full_disk
    assert postgres.has_server_faults


CALL = CallState(number=1, id=CallId("c1"), call_kind="tool", step=1)
STARTED = e.CallStarted(call=CALL.id, call_kind="tool", attempt=1, seen=Seq(1))
DONE = e.CallDone(call=CALL.id)
DRAFT = Effect("draft", "run_1", "key", 1)
UNDO = Effect("undo draft", "run_1", "key", 1)


@pytest.mark.parametrize(
    ("journaled", "made", "reversals", "problem"),
    [
        ([STARTED, DONE], [DRAFT, DRAFT], [], "made 2 times"),
        ([], [DRAFT], [], "attempt 1 has an effect"),
        ([STARTED, DONE], [], [], "done without an effect"),
        ([STARTED, e.CallSettled(call=CALL.id, happened=True)], [], [], "settled as done"),
        ([STARTED, DONE, e.UndoDone(call=CALL.id)], [DRAFT], [], "and not in the service"),
        ([STARTED, DONE], [DRAFT], [UNDO], "undone without an entry"),
    ],
)
def test_a_contradiction_between_journal_and_service_is_found(
    journaled: list[e.Entry], made: list[Effect], reversals: list[Effect], problem: str
) -> None:
    found = list(check_call(CALL, journaled, made, reversals))
    assert any(problem in each for each in found), found


def test_a_call_that_agrees_with_the_service_has_no_problem() -> None:
    undo: list[e.Entry] = [e.UndoStarted(call=CALL.id), e.UndoDone(call=CALL.id)]
    assert not list(check_call(CALL, [STARTED, DONE, *undo], [DRAFT], [UNDO]))
