"""Search for planted faults: each must be found within its number of schedules."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from tests.support.mutants.asks import ASK_MUTANTS
from tests.support.mutants.call_starts import CALL_START_MUTANTS
from tests.support.mutants.conversation import CONVERSATION_MUTANTS
from tests.support.mutants.driver_and_store import DRIVER_AND_STORE_MUTANTS
from tests.support.mutants.endings import ENDING_MUTANTS
from tests.support.mutants.replacements import Mutant
from tests.support.mutants.session import SESSION_MUTANTS
from tests.support.simulate.setup import Strategy
from tests.support.simulate.sweep import Failure, run_schedule

MUTANTS: Final[tuple[Mutant, ...]] = (
    *CALL_START_MUTANTS,
    *ENDING_MUTANTS,
    *ASK_MUTANTS,
    *CONVERSATION_MUTANTS,
    *SESSION_MUTANTS,
    *DRIVER_AND_STORE_MUTANTS,
)


class SearchResult(Struct, frozen=True, kw_only=True):
    """The first schedule of one strategy that found a fault; `schedules` is 0 without one."""

    strategy: Strategy
    schedules: int
    rule: str = ""
    seed: int = 0


def search(mutant: Mutant, strategy: Strategy, seed: int, limit: int) -> SearchResult:
    """Plant the fault and run schedules until one fails that passes without the fault."""
    seeds = iter(range(seed, seed + limit))
    crash = ""
    while (failure := _next_failure(mutant, strategy, seeds)) is not None:
        if failure.crashed:  # the fault does not fit the code any more
            crash = failure.rule
            continue
        counts = not mutant.rules or failure.rule in mutant.rules
        if counts and run_schedule(failure.seed, strategy) is None:
            return SearchResult(
                strategy=strategy,
                schedules=failure.seed - seed + 1,
                rule=failure.rule,
                seed=failure.seed,
            )
    return SearchResult(strategy=strategy, schedules=0, rule=crash)


def _next_failure(mutant: Mutant, strategy: Strategy, seeds: Iterator[int]) -> Failure | None:
    with mutant.plant():
        failures = (run_schedule(seed, strategy) for seed in seeds)
        return next((failure for failure in failures if failure is not None), None)


def search_all(
    mutants: tuple[Mutant, ...], strategies: tuple[Strategy, ...], seed: int, limit: int
) -> Iterator[tuple[Mutant, tuple[SearchResult, ...]]]:
    """Search each fault with each strategy; `limit` is for strategies that are not its own."""
    for mutant in mutants:
        bounds = (mutant.limit if s == mutant.strategy else limit for s in strategies)
        pairs = zip(strategies, bounds, strict=True)
        yield mutant, tuple(search(mutant, s, seed, bound) for s, bound in pairs)
