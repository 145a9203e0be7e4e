"""The gate: every planted fault must be found within its number of schedules."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from tests.support.mutants.asks import ASKING
from tests.support.mutants.call_starts import STARTS
from tests.support.mutants.conversation import THOUGHT
from tests.support.mutants.driver_and_store import SHELL
from tests.support.mutants.endings import ENDS
from tests.support.mutants.replacements import Mutant
from tests.support.simulate.setup import Strategy
from tests.support.simulate.sweep import Failure, failure_of

MUTANTS: Final[tuple[Mutant, ...]] = (*STARTS, *ENDS, *ASKING, *THOUGHT, *SHELL)


class Found(Struct, frozen=True, kw_only=True):
    """How a fault was found by one strategy; `schedules` is 0 if it was not."""

    strategy: Strategy
    schedules: int
    rule: str = ""
    seed: int = 0


def hunt(mutant: Mutant, strategy: Strategy, seed: int, limit: int) -> Found:
    """Plant the fault and run schedules until one fails that passes without it."""
    seeds = iter(range(seed, seed + limit))
    crash = ""
    while (failure := _next_failure(mutant, strategy, seeds)) is not None:
        if failure.crashed:  # it does not fit the code any more, and proves nothing
            crash = failure.rule
            continue
        counts = not mutant.rules or failure.rule in mutant.rules
        if counts and failure_of(failure.seed, strategy) is None:
            return Found(
                strategy=strategy,
                schedules=failure.seed - seed + 1,
                rule=failure.rule,
                seed=failure.seed,
            )
    return Found(strategy=strategy, schedules=0, rule=crash)


def _next_failure(mutant: Mutant, strategy: Strategy, seeds: Iterator[int]) -> Failure | None:
    with mutant.plant():
        failures = (failure_of(seed, strategy) for seed in seeds)
        return next((failure for failure in failures if failure is not None), None)


def hunts(
    mutants: tuple[Mutant, ...], strategies: tuple[Strategy, ...], seed: int, limit: int
) -> Iterator[tuple[Mutant, tuple[Found, ...]]]:
    """Hunt every fault with every strategy; those that are not its own give up at `limit`."""
    for mutant in mutants:
        bounds = (mutant.limit if s == mutant.strategy else limit for s in strategies)
        pairs = zip(strategies, bounds, strict=True)
        yield mutant, tuple(hunt(mutant, s, seed, bound) for s, bound in pairs)
