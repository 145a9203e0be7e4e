"""The simulator repeats its schedules, finds planted faults, and else breaks no rule."""

from hashlib import sha256
from pathlib import Path

import pytest

import midrun.core
from midrun.core import session
from midrun.core.controls import Say
from midrun.core.entries import (
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    CallUnknown,
    FrameAbandoned,
)
from midrun.core.transitions import INPUT_TABLE, Accepted, Refused
from midrun.core.values import Phase
from tests.support.mutants.asks import ASK_MUTANTS
from tests.support.mutants.replacements import Mutant, replace_attribute
from tests.support.mutants.runner import MUTANTS, search
from tests.support.simulate.__main__ import main
from tests.support.simulate.setup import SINGLE_STRATEGIES, STRATEGIES, Strategy
from tests.support.simulate.simulation import Simulation
from tests.support.simulate.sweep import run_in_processes, run_schedule, run_schedules

FIXED_SCHEDULES = 500  # of each strategy; the nightly workflow runs 100,000
FRESH_SCHEDULES = 1500
MUTANTS_MIN = 25

CALL_ENDS = (CallDone, CallFailed, CallAborted, CallUnknown, AskOpened)
"""Entries that take a call out of flight; a call that asks does not run meanwhile."""

ACTIVITIES = (
    "frame",
    "child",
    "child asks",
    "queued approval",
    "take-over",
    "condensing",
    "side question waits",
)
INTERRUPTED_ACTIVITIES = {
    (activity, fault) for activity in ACTIVITIES for fault in ("crash", "zombie")
}
SAY_VERDICTS = {
    (phase, Accepted if INPUT_TABLE[Say][phase].next_phases else Refused) for phase in Phase
}
REQUEST_APPLIED_TWICE = next(
    mutant for mutant in ASK_MUTANTS if mutant.name == "request_applied_twice"
)


def run_and_read_journal(seed: int, strategy: Strategy) -> list[object]:
    """Run a schedule; return its entries and its effects."""
    simulation = Simulation(seed, strategy)
    simulation.run()
    return [*simulation.env.journal.entries_with_epochs, *simulation.env.world.log]


def assert_no_failure(seed: int, count: int, strategy: Strategy) -> None:
    """Run `count` schedules from `seed` on, and fail with the first failure."""
    result = run_schedules(range(seed, seed + count), strategy)
    assert not result.failures, result.failures[0].text


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("strategy", SINGLE_STRATEGIES)
def test_no_rule_is_broken_in_the_schedules_of_fixed_seeds(strategy: Strategy) -> None:
    """The seeds are the same on every machine, so a failure is caused by the current change."""
    assert_no_failure(0, FIXED_SCHEDULES, strategy)


@pytest.mark.slow
@pytest.mark.once
def test_no_rule_is_broken_in_the_schedules_of_fresh_seeds() -> None:
    """The first seed is a digest of the core: each change of the core runs other schedules."""
    source = Path(midrun.core.__file__).parent
    digest = sha256(b"".join(path.read_bytes() for path in sorted(source.rglob("*.py"))))
    assert_no_failure(int.from_bytes(digest.digest()[:5]), FRESH_SCHEDULES, "mixed")


@pytest.mark.slow
@pytest.mark.once
def test_there_are_enough_planted_faults_and_each_has_its_own_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_MIN


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    found = search(mutant, mutant.strategy, seed=mutant.seed, limit=mutant.limit)
    assert found.schedules, (
        f"{mutant.name} survived {mutant.limit} schedules: {mutant.description}"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_is_the_same_schedule(strategy: Strategy) -> None:
    for seed in range(5):
        first = run_and_read_journal(seed, strategy)
        assert run_and_read_journal(seed, strategy) == first


def test_different_seeds_are_different_schedules() -> None:
    journals = {str(run_and_read_journal(seed, "mixed")) for seed in range(40)}
    assert len(journals) > 35


@pytest.mark.parametrize("seed", [2**31, 2**63, 10**30])
def test_a_large_number_is_a_valid_seed(seed: int) -> None:
    assert run_schedule(seed, "mixed") is None


def test_schedules_write_most_kinds_of_entries() -> None:
    kinds: set[type] = set()
    for seed in range(400):
        simulation = Simulation(seed, "targeted")
        simulation.run()
        kinds |= set(simulation.env.journal.entry_counts)
    assert {CallStarted, FrameAbandoned} <= kinds
    assert len(kinds) > 50


def test_no_schedule_exceeds_the_calls_at_a_time_that_an_agent_declares() -> None:
    """Whatever crashes, pauses and redirects come between."""
    checked = 0
    for seed in range(1500):
        simulation = Simulation(seed, "mixed")
        limit = simulation.env.program.max_parallel
        if not limit:
            continue
        simulation.run()
        checked += 1
        in_flight: set[str] = set()
        for entry, _ in simulation.env.journal.entries_with_epochs:
            if isinstance(entry, CallStarted) and entry.call_kind != "model":
                in_flight.add(entry.call)
                assert len(in_flight) <= limit
            elif isinstance(entry, CALL_ENDS):
                in_flight.discard(entry.call)
    assert checked > 10


def test_crashes_and_freezes_interrupt_each_activity_of_an_agent() -> None:
    """Held topics, child runs, reviews, take-overs and summaries, each with each fault."""
    interrupted: set[tuple[str, str]] = set()
    seeds = iter(range(5000))
    while not interrupted >= INTERRUPTED_ACTIVITIES and (seed := next(seeds, None)) is not None:
        simulation = Simulation(seed, "targeted")
        simulation.run()
        interrupted |= simulation.env.interrupted_activities
    assert interrupted == INTERRUPTED_ACTIVITIES


def test_side_questions_are_sent_in_every_phase() -> None:
    """The transition table says in which phases they are accepted, and where refused."""
    verdicts: set[tuple[Phase, type]] = set()
    seeds = iter(range(5000))
    while not verdicts >= SAY_VERDICTS and (seed := next(seeds, None)) is not None:
        simulation = Simulation(seed, "targeted")
        simulation.run()
        verdicts |= {
            (reply.phase, type(reply.verdict))
            for reply in simulation.env.replies
            if isinstance(reply.control, Say)
        }
    assert verdicts >= SAY_VERDICTS


def test_the_text_of_a_failure_has_seed_command_parameters_and_journal() -> None:
    found = search(REQUEST_APPLIED_TWICE, "mixed", seed=0, limit=500)
    with REQUEST_APPLIED_TWICE.plant():
        failure = run_schedule(found.seed, "mixed")
        simulation = Simulation(found.seed, "mixed")
        with pytest.raises(AssertionError):
            simulation.run()
    assert failure is not None
    assert failure.rule == "I20"
    assert f"FAILED seed {found.seed}, strategy mixed: I20" in failure.text
    command = f"--schedules 1 --seed {found.seed} --strategy mixed --verbose"
    assert f"python -m tests.support.simulate {command}" in failure.text
    assert "crashes = " in failure.text
    for entry, _ in simulation.env.journal.entries_with_epochs:
        assert type(entry).__name__ in failure.text


def test_a_planted_fault_is_removed_after_its_with_block() -> None:
    """A fault that stays would fail every later test of the process."""
    before = [run_and_read_journal(seed, "mixed") for seed in range(10)]
    for mutant in MUTANTS:
        with mutant.plant():
            continue
    assert [run_and_read_journal(seed, "mixed") for seed in range(10)] == before
    assert search(REQUEST_APPLIED_TWICE, "mixed", seed=0, limit=500).schedules
    assert [run_and_read_journal(seed, "mixed") for seed in range(10)] == before


def test_a_fault_that_only_raises_does_not_count_as_found() -> None:
    """Otherwise a fault would pass after the function that it replaces was renamed."""
    broken = Mutant(
        name="broken",
        description="it raises before it can break a rule",
        plant=lambda: replace_attribute(session, "decide", None),
    )
    found = search(broken, "mixed", seed=0, limit=5)
    assert found.schedules == 0
    assert found.rule == "TypeError"


def test_the_command_exits_with_1_when_a_schedule_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = search(REQUEST_APPLIED_TWICE, "mixed", seed=0, limit=500)
    arguments = ["--schedules", "1", "--seed", str(found.seed), "--processes", "1"]
    with REQUEST_APPLIED_TWICE.plant():
        assert main([*arguments, "--verbose"]) == 1
        assert main(arguments) == 1
    assert "FAILED: I20" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "no rule was broken" in capsys.readouterr().out


def test_two_processes_have_the_same_outcomes_as_one() -> None:
    alone = run_schedules(range(220), "mixed")
    outcomes: dict[str, int] = {}
    for result in run_in_processes(range(220), "mixed", processes=2):
        for name, count in result.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    assert outcomes == alone.outcomes
