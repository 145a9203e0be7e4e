"""Instructions and Python calls of a durable step: figures that a busy machine does not change.

`valgrind` counts the instructions (package `valgrind` of Debian). A program runs twice, with
few and with many steps, and the difference is divided: start-up does not count. Work that a
timer starts is left out, because a step takes a hundred times longer under valgrind: the poller
of other processes, the sweep of the worker, collected notifications.

`python -m bench.instructions FOLDER STEPS` is one such run of midrun.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

import anyio

from bench import midrun_steps
from bench.durable_step import COUNTED_STEPS, IN_MEMORY, count_calls
from bench.figures import Figure, print_figures
from bench.probe import StepProbe
from midrun.stores import watchers
from midrun.stores.sqlite import change_poller, relay, writer
from midrun.workers import local

FEW_STEPS: Final = 40
MANY_STEPS: Final = 540
NEVER_S: Final = 1e6

COUNTER: Final = (
    "valgrind",
    "--tool=cachegrind",
    "--cache-sim=no",
    "--cachegrind-out-file=/dev/null",
)


def figures() -> Sequence[Figure]:
    """Count the instructions of midrun and of the floor, and the Python calls of midrun."""
    _stop_timers()
    counter = count_calls()
    calls = counter.by_package().total() / COUNTED_STEPS
    ours, floor = (_count_instructions(name) for name in ("bench.instructions", "bench.floor"))
    return [
        Figure(name="instructions of a step", value=ours / 1e3, unit="thousand"),
        Figure(
            name="instructions of a step of the floor loop", value=floor / 1e3, unit="thousand"
        ),
        Figure(name="Python calls of a step, without timers", value=calls, unit="calls"),
    ]


def _stop_timers() -> None:
    for module, name in (
        (change_poller, "POLL_INTERVAL_S"),
        (local, "SWEEP_S"),
        (local, "HOLDER_CHECK_S"),
        (watchers, "COLLECT_S"),
        (relay, "LISTING_MAX_AGE_S"),
    ):
        patch.object(module, name, NEVER_S).start()
    # A commit that seems slow would send the next ones to the thread of the writer.
    patch.object(writer, "INLINE_COMMIT_MAX_S", NEVER_S).start()


def _count_instructions(module: str) -> float:
    few, many = (_run_program(module, steps) for steps in (FEW_STEPS, MANY_STEPS))
    return (many - few) / (MANY_STEPS - FEW_STEPS)


def _run_program(module: str, steps: int) -> int:
    with TemporaryDirectory(prefix="midrun-bench-", dir=IN_MEMORY) as folder:
        done = subprocess.run(  # noqa: S603 - our own
            [*COUNTER, sys.executable, "-m", module, folder, str(steps)],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,  # the probe ends the process with SIGKILL
        )
    counted = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if counted is None:
        raise RuntimeError(f"Cannot count the instructions of {module}: {done.stderr[-300:]}")
    return int(counted[1].replace(",", ""))


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--markdown"]):
        _stop_timers()
        anyio.run(midrun_steps.main, StepProbe.from_arguments())
    sys.exit(print_figures(figures()))
