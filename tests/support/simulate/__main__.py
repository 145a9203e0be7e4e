"""`python -m tests.support.simulate`: run schedules and print the failures."""

import argparse
import os
import secrets
import sys
from time import perf_counter

from tests.support.simulate.setup import STRATEGIES
from tests.support.simulate.simulation import Simulation
from tests.support.simulate.sweep import (
    SweepResult,
    format_failure,
    run_in_processes,
    run_simulation,
)

FULL_FAILURES_MAX = 3
PROGRESS_INTERVAL_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Run the schedules; return 1 if one failed."""
    options = _parser().parse_args(arguments)
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    if options.schedules == 1 and options.verbose:
        return _run_one(seed, options.strategy)
    end = seed + options.schedules
    print(
        f"seeds {seed} to {end - 1}, strategy {options.strategy}, {options.processes} processes"
    )
    total, began = SweepResult(), perf_counter()
    last = began
    for sweep in run_in_processes(range(seed, end), options.strategy, options.processes):
        total.add(sweep)
        _print_failures(
            total, sweep, len(total.failures) if options.verbose else FULL_FAILURES_MAX
        )
        now = perf_counter()
        if now - last >= PROGRESS_INTERVAL_S:
            last = now
            _print_progress(total, options.schedules, now - began)
    _print_summary(total, perf_counter() - began)
    return 1 if total.failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulate")
    parser.add_argument("--schedules", type=int, default=1000, help="number of schedules")
    parser.add_argument("--seed", type=int, help="the first seed; default: a random one")
    parser.add_argument("--strategy", choices=STRATEGIES, default="mixed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="print every failure in full; print a single schedule even if it passes",
    )
    return parser


def _run_one(seed: int, strategy: str) -> int:
    """Run one schedule and print its journal, also if it passes."""
    simulation = Simulation(seed, strategy)  # type: ignore[arg-type]  # one of the choices
    failure = run_simulation(simulation)
    if failure is not None:
        print(failure.text)
        return 1
    print(format_failure(simulation.env, "").replace("FAILED", "passed", 1))
    return 0


def _print_failures(total: SweepResult, sweep: SweepResult, shown: int) -> None:
    """Print the first failures in full, later ones as one line."""
    before = len(total.failures) - len(sweep.failures)
    for number, failure in enumerate(sweep.failures, before + 1):
        if number <= shown:
            print(failure.text, end="\n\n", flush=True)
        else:
            print(failure.text.partition("\n")[0], flush=True)


def _print_progress(total: SweepResult, wanted: int, seconds: float) -> None:
    rate = total.schedules / seconds
    print(
        f"{total.schedules:,} of {wanted:,} schedules, {rate:.0f}/s, "
        f"{len(total.failures)} failed",
        flush=True,
    )


def _print_summary(total: SweepResult, seconds: float) -> None:
    count = max(1, total.schedules)
    print(
        f"{total.schedules:,} schedules in {seconds:.1f} s ({count / seconds:.0f}/s), "
        f"{total.entries / count:.0f} entries and {total.steps / count:.0f} steps on average"
    )
    for name, number in sorted(total.outcomes.items(), key=lambda item: -item[1]):
        print(f"  {number:8,} {name}")
    rules = sorted({failure.rule for failure in total.failures})
    print(f"FAILED: {', '.join(rules)}" if rules else "no rule was broken")


if __name__ == "__main__":
    sys.exit(main())
