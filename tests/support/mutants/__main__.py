"""`python -m tests.support.mutants`: plant each fault and check that it is found."""

import argparse
import sys
from time import perf_counter
from typing import cast

from tests.support.mutants.replacements import Mutant
from tests.support.mutants.runner import MUTANTS, SearchResult, search_all
from tests.support.simulate.setup import SINGLE_STRATEGIES, STRATEGIES, Strategy
from tests.support.simulate.sweep import run_schedules

SOUND_SCHEDULES = 300


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a fault survived, or if a schedule fails without one."""
    options = _parser().parse_args(arguments)
    strategies = tuple(cast("list[Strategy]", options.strategy or list(SINGLE_STRATEGIES)))
    mutants = tuple(m for m in MUTANTS if options.only in m.name)
    sound = run_schedules(range(options.seed, options.seed + SOUND_SCHEDULES), "mixed")
    if sound.failures:
        print(sound.failures[0].text)
        print("a schedule fails without a planted fault: fix that first")
        return 1
    began = perf_counter()
    print(f"| planted fault | {' | '.join(strategies)} | caught as |")
    print(f"|---|{'---|' * len(strategies)}---|")
    survived = []
    for mutant, found in search_all(mutants, strategies, options.seed, options.limit):
        print(_row(mutant, found), flush=True)
        if not any(result.schedules for result in found):
            survived.append(mutant.name)
    print(f"{len(mutants)} faults in {perf_counter() - began:.0f} s, first seed {options.seed}")
    print(f"SURVIVED: {', '.join(survived)}" if survived else "every planted fault was found")
    return 1 if survived else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit",
        type=int,
        default=1000,
        help="schedules for each strategy, except the strategy of the fault",
    )
    parser.add_argument("--only", default="", help="plant only faults whose name contains this")
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    return parser


def _row(mutant: Mutant, found: tuple[SearchResult, ...]) -> str:
    cells = (f"{result.schedules}" if result.schedules else "-" for result in found)
    rules = sorted({result.rule for result in found if result.rule})
    name = f"{mutant.name} (documented limit)" if mutant.is_documented_limit else mutant.name
    return f"| {name} | {' | '.join(cells)} | {', '.join(rules)} |"


if __name__ == "__main__":
    sys.exit(main())
