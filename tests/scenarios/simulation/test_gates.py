"""The gates: many schedules break nothing, and what is broken on purpose is found."""

from hashlib import sha256
from pathlib import Path

import pytest

import midrun.core
from tests.support.mutants.replacements import Mutant
from tests.support.mutants.runner import MUTANTS, search
from tests.support.simulate.setup import SINGLE_STRATEGIES, Strategy
from tests.support.simulate.sweep import run_schedules

pytestmark = [pytest.mark.slow, pytest.mark.once]

FIXED = 1500
FRESH = 4000
FAULTS_MIN = 25


def _run(seed: int, count: int, strategy: Strategy) -> None:
    sweep = run_schedules(range(seed, seed + count), strategy)
    assert not sweep.failures, sweep.failures[0].text


@pytest.mark.parametrize("strategy", SINGLE_STRATEGIES)
def test_no_rule_is_broken_in_the_schedules_of_fixed_seeds(strategy: Strategy) -> None:
    """The same on every machine, so a failure here is about the change at hand."""
    _run(0, FIXED, strategy)


def test_no_rule_is_broken_in_the_schedules_of_fresh_seeds() -> None:
    """A changed core is tried elsewhere; the same core gives the same answer everywhere."""
    source = Path(midrun.core.__file__).parent
    digest = sha256(b"".join(path.read_bytes() for path in sorted(source.rglob("*.py"))))
    _run(int.from_bytes(digest.digest()[:5]), FRESH, "mixed")


def test_there_are_enough_planted_faults_and_each_has_its_own_name() -> None:
    """The list may grow; a fault that is removed takes what it proved with it."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= FAULTS_MIN


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    """A check that cannot fail is worse than none: it is trusted."""
    found = search(mutant, mutant.strategy, seed=mutant.seed, limit=mutant.limit)
    assert found.schedules, (
        f"{mutant.name} survived {mutant.limit} schedules: {mutant.description}"
    )
