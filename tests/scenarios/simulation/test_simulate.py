"""The simulator itself: it repeats itself, and tells everything about a failure."""

import pytest

from midrun.core.controls import Say
from midrun.core.entries import CallStarted, FrameAbandoned
from midrun.core.transitions import INPUT_TABLE, Accepted, Refused
from midrun.core.values import Phase
from tests.support.mutants.asks import ASK_MUTANTS
from tests.support.mutants.replacements import Mutant, replace_attribute
from tests.support.mutants.runner import MUTANTS, search
from tests.support.simulate import journal
from tests.support.simulate.__main__ import main
from tests.support.simulate.setup import STRATEGIES, Strategy
from tests.support.simulate.sweep import run_in_processes, run_schedule, run_schedules
from tests.support.simulate.universe import Universe

ON_ITS_MIND = (
    "frame",
    "child",
    "child asks",
    "queued approval",
    "take-over",
    "condensing",
    "side question waits",
)
ALL = {(one, fault) for one in ON_ITS_MIND for fault in ("crash", "zombie")}
SAID = {
    (phase, Accepted if INPUT_TABLE[Say][phase].next_phases else Refused) for phase in Phase
}
TWICE = next(mutant for mutant in ASK_MUTANTS if mutant.name == "request_applied_twice")


def _journal(seed: int, strategy: Strategy) -> list[object]:
    universe = Universe(seed, strategy)
    universe.run()
    return [*universe.scene.desk.written, *universe.scene.world.log]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_seed_is_the_same_schedule(strategy: Strategy) -> None:
    """A failure that does not come again cannot be mended."""
    for seed in range(5):
        assert _journal(seed, strategy) == _journal(seed, strategy)


def test_different_seeds_are_different_schedules() -> None:
    """Otherwise a million of them say no more than one."""
    journals = {str(_journal(seed, "mixed")) for seed in range(40)}
    assert len(journals) > 35


@pytest.mark.parametrize("seed", [2**31, 2**63, 10**30])
def test_any_number_is_a_seed(seed: int) -> None:
    """Whatever was drawn, the run comes to an end."""
    assert run_schedule(seed, "mixed") is None


def test_schedules_reach_every_end_and_most_entries() -> None:
    """What is never tried is never found."""
    kinds: set[type] = set()
    for seed in range(400):
        universe = Universe(seed, "targeted")
        universe.run()
        kinds |= set(universe.scene.desk.entry_counts)
    assert {CallStarted, FrameAbandoned} <= kinds
    assert len(kinds) > 50


def test_crashes_and_zombies_meet_everything_that_an_agent_has_on_its_mind() -> None:
    """Held thoughts, children, reviews, take-overs and summaries, each with each fault."""
    struck: set[tuple[str, str]] = set()
    seeds = iter(range(5000))
    while not struck >= ALL and (seed := next(seeds, None)) is not None:
        universe = Universe(seed, "targeted")
        universe.run()
        struck |= universe.scene.interrupted_activities
    assert struck == ALL


def test_side_questions_are_asked_in_every_phase() -> None:
    """Accepted where an agent can still hear them, refused by name everywhere else."""
    told: set[tuple[Phase, type]] = set()
    seeds = iter(range(5000))
    while not told >= SAID and (seed := next(seeds, None)) is not None:
        universe = Universe(seed, "targeted")
        universe.run()
        told |= {
            (one.phase, type(one.verdict))
            for one in universe.scene.replies
            if isinstance(one.control, Say)
        }
    assert told >= SAID


def test_a_failing_schedule_tells_everything_that_is_needed() -> None:
    """Seed, strategy, parameters, the one command, and the whole journal."""
    found = search(TWICE, "mixed", seed=0, limit=500)
    with TWICE.plant():
        failure = run_schedule(found.seed, "mixed")
        universe = Universe(found.seed, "mixed")
        with pytest.raises(AssertionError):
            universe.run()
    assert failure is not None
    assert failure.rule == "I20"
    assert f"FAILED seed {found.seed}, strategy mixed: I20" in failure.text
    command = f"--schedules 1 --seed {found.seed} --strategy mixed --verbose"
    assert f"python -m tests.support.simulate {command}" in failure.text
    assert "crashes = " in failure.text
    for entry, _ in universe.scene.desk.written:
        assert type(entry).__name__ in failure.text


def test_no_planted_fault_stays() -> None:
    """A fault that stays would be found by every test that comes after."""
    before = [_journal(seed, "mixed") for seed in range(10)]
    for mutant in MUTANTS:
        with mutant.plant():
            continue
    assert [_journal(seed, "mixed") for seed in range(10)] == before
    assert search(TWICE, "mixed", seed=0, limit=500).schedules
    assert [_journal(seed, "mixed") for seed in range(10)] == before


def test_a_fault_that_does_not_fit_the_code_proves_nothing() -> None:
    """Renaming a function must not make a planted fault look as if it was found."""
    broken = Mutant(
        name="broken",
        description="it raises before it can be wrong",
        plant=lambda: replace_attribute(journal, "decide", None),
    )
    found = search(broken, "mixed", seed=0, limit=5)
    assert found.schedules == 0
    assert found.rule == "TypeError"


def test_the_command_fails_when_a_schedule_does(capsys: pytest.CaptureFixture[str]) -> None:
    """CI looks at the exit code, people at the first failure."""
    found = search(TWICE, "mixed", seed=0, limit=500)
    arguments = ["--schedules", "1", "--seed", str(found.seed), "--processes", "1"]
    with TWICE.plant():
        assert main([*arguments, "--verbose"]) == 1
        assert main(arguments) == 1
    assert "FAILED: I20" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "no rule was broken" in capsys.readouterr().out


def test_two_processes_count_what_one_counts() -> None:
    """Splitting the work must not change it."""
    alone = run_schedules(range(220), "mixed")
    outcomes: dict[str, int] = {}
    for sweep in run_in_processes(range(220), "mixed", processes=2):
        for name, count in sweep.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    assert outcomes == alone.outcomes
