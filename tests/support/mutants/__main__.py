"""`python -m tests.support.mutants`: plant every fault and see that it is found."""

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
    """Print the table; 1 if a fault survived, or if there is one that nobody planted."""
    asked = _parser().parse_args(arguments)
    strategies = tuple(cast("list[Strategy]", asked.strategy or list(SINGLE_STRATEGIES)))
    mutants = tuple(m for m in MUTANTS if asked.only in m.name)
    sound = run_schedules(range(asked.seed, asked.seed + SOUND_SCHEDULES), "mixed")
    if sound.failures:
        print(sound.failures[0].text)
        print("a fault that nobody planted: the table would say nothing")
        return 1
    began = perf_counter()
    print(f"| planted fault | {' | '.join(strategies)} | caught as |")
    print(f"|---|{'---|' * len(strategies)}---|")
    survived = []
    for mutant, found in search_all(mutants, strategies, asked.seed, asked.limit):
        print(_row(mutant, found), flush=True)
        if not any(one.schedules for one in found):
            survived.append(mutant.name)
    print(f"{len(mutants)} faults in {perf_counter() - began:.0f} s, first seed {asked.seed}")
    print(f"SURVIVED: {', '.join(survived)}" if survived else "every planted fault was found")
    return 1 if survived else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--limit",
        type=int,
        default=1000,
        help="schedules for each strategy but the one that a fault must be found with",
    )
    parser.add_argument("--only", default="", help="part of the names to plant")
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    return parser


def _row(mutant: Mutant, found: tuple[SearchResult, ...]) -> str:
    cells = (f"{one.schedules}" if one.schedules else "-" for one in found)
    rules = sorted({one.rule for one in found if one.rule})
    name = f"{mutant.name} (documented limit)" if mutant.is_documented_limit else mutant.name
    return f"| {name} | {' | '.join(cells)} | {', '.join(rules)} |"


if __name__ == "__main__":
    sys.exit(main())
