"""Cost of a durable step, compared with raw commits and with the floor.

A step is one model call (300 B of text) and one tool call (500 B of result), each journaled
before and after, in two commits. Every program runs in a process of its own. The programs take
turns, and a ratio is the median over the rounds, so that a busy machine disturbs both sides.
`python -m bench.durable_step long` goes to step 10,000.
"""

import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Final

import anyio

import midrun as midrun_package
from bench.figures import Figure, print_figures
from bench.midrun_steps import look
from bench.probe import REPLY_TEXT
from bench.program import Steps, run_program, run_resume
from midrun import Agent, Midrun
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.stores.sqlite.store import SqliteStore

STEPS: Final = 1000
LONG_STEPS: Final = 10_000
ROUNDS: Final = 3
COUNTED_STEPS: Final = 100
IN_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else "."  # noqa: S108 - see `count_calls`

PROGRAMS: Final = {
    "raw": ("bench.raw", "one"),
    "raw two": ("bench.raw", "two"),
    "raw spaced": ("bench.raw", "spaced"),
    "floor": ("bench.floor",),
    "midrun": ("bench.midrun_steps",),
}

Round = dict[str, Steps]


def figures(last_step: int = STEPS) -> Sequence[Figure]:
    """Measure steps, bytes, Python calls, and the resume after a crash."""
    rounds = [_run_round() for _ in range(ROUNDS)]
    found = [*_compare_steps(rounds), *_compare_bytes(rounds), *_measure_resume()]
    found += _list_call_figures(count_calls())
    if last_step > STEPS:
        found.append(_measure_growth(last_step))
    return found


def _run_round() -> Round:
    return {name: run_program(*program, steps=STEPS) for name, program in PROGRAMS.items()}


def _ratio(rounds: Sequence[Round], other: str, cost: Callable[[Steps], float]) -> float:
    """Return the median over the rounds of the cost of midrun, in costs of `other`."""
    return median(cost(one["midrun"]) / cost(one[other]) for one in rounds)


def _compare_steps(rounds: Sequence[Round]) -> list[Figure]:
    def describe(number: int) -> str:
        costs = {n: median(one[n].step_us(number) for one in rounds) for n in PROGRAMS}
        return ", ".join(f"{name} {cost:.0f} µs" for name, cost in costs.items())

    def compare(number: int, other: str, bound: float | None = None, goal: str = "") -> Figure:
        return Figure(
            name=f"step {number:,}, compared with {LABELS[other]}",
            value=_ratio(rounds, other, lambda steps: steps.step_us(number)),
            at_most=bound,
            detail=goal,
        )

    cpu = median(one["midrun"].step_cpu_us(STEPS) for one in rounds)
    return [
        compare(100, "raw"),
        compare(STEPS, "raw", 5, f"goal: 4; {describe(STEPS)}"),
        compare(STEPS, "raw spaced"),
        compare(STEPS, "raw two"),
        compare(100, "floor"),
        compare(STEPS, "floor", 1.6, "goal: 1.25"),
        Figure(
            name="CPU for a step",
            value=cpu / 1e3,
            unit="ms",
            at_most=0.5,
            detail=", ".join(
                f"{name} {median(one[name].step_cpu_us(STEPS) for one in rounds) / 1e3:.2f} ms"
                for name in PROGRAMS
            ),
        ),
        Figure(
            name=f"step {STEPS:,}, compared with step 100",
            value=median(
                one["midrun"].step_us(STEPS) / one["midrun"].step_us(100) for one in rounds
            ),
            at_most=1.1,
        ),
    ]


LABELS: Final = {
    "raw": "one raw commit",
    "raw spaced": "a raw commit with work between the commits",
    "raw two": "two raw commits",
    "floor": "the floor loop",
}


def _compare_bytes(rounds: Sequence[Round]) -> list[Figure]:
    last = rounds[-1]
    return [
        Figure(
            name="bytes passed to write() for a step, compared with one raw commit",
            value=_ratio(rounds, "raw", lambda steps: steps.written_kib),
            at_most=3,
            detail=", ".join(f"{name} {last[name].written_kib:.0f} KiB" for name in PROGRAMS),
        ),
        Figure(
            name="storage for a step, log included",
            value=last["midrun"].stored_kib,
            unit="KiB",
            detail=", ".join(f"{name} {last[name].stored_kib:.1f} KiB" for name in PROGRAMS),
        ),
    ]


def _measure_growth(last_step: int) -> Figure:
    steps = run_program(*PROGRAMS["midrun"], steps=last_step)
    return Figure(
        name=f"step {last_step:,}, compared with step {STEPS:,}",
        value=steps.step_us(last_step) / steps.step_us(STEPS),
        at_most=1.1,
    )


# ── resume ───────────────────────────────────────────────────────────────────


def _measure_resume() -> list[Figure]:
    """Kill a worker in step 1,000, and measure the next process on the same file."""
    resumed, loads = [], []
    for _ in range(3):
        with TemporaryDirectory(prefix="midrun-bench-", dir=".") as name:
            folder = Path(name)
            run_program(*PROGRAMS["midrun"], steps=STEPS, folder=folder)
            loads.append(run_resume("bench.raw", "load", steps=STEPS, folder=folder))
            resumed.append(run_resume(*PROGRAMS["midrun"], steps=STEPS, folder=folder))
    ours, raw = median(resumed), median(loads)
    return [
        Figure(
            name=f"resume of {STEPS:,} steps after SIGKILL on the same host",
            value=ours / 1e3,
            unit="s",
            at_most=1,
            detail="from the opening of the store to the next model call",
        ),
        Figure(
            name="… compared with reading and decoding its lines",
            value=ours / raw,
            at_most=2,
            detail=f"raw {raw:.0f} ms, ours {ours:.0f} ms",
        ),
    ]


# ── Python calls ─────────────────────────────────────────────────────────────


class CallCounter:
    """Counts the calls of Python functions by file: a figure that no machine changes.

    A call of the function with the code `step_code` begins a step.
    """

    def __init__(self, step_code: CodeType) -> None:
        self.by_file: Counter[str] = Counter()
        self.c_calls = 0
        self.step_counts: list[int] = []  # the last one is of a step that has not ended
        self._step_code = step_code

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count one event of `sys.setprofile`."""
        if event == "call":
            if frame.f_code is self._step_code:
                self.step_counts.append(0)
            self.by_file[frame.f_code.co_filename] += 1
            if self.step_counts:
                self.step_counts[-1] += 1
        elif event == "c_call":
            self.c_calls += 1

    @property
    def quietest_step(self) -> int:
        """The calls of the step with the fewest: no timer or poller ran meanwhile.

        Those run once in so many milliseconds. A step that takes longer, because the machine is
        busy, has more of them.
        """
        return min(self.step_counts[:-1])

    def by_package(self) -> Counter[str]:
        """Return the calls by package of midrun, or by package outside of it."""
        counts: Counter[str] = Counter()
        for file, calls in self.by_file.items():
            counts[_find_package(Path(file))] += calls
        return counts


def _find_package(file: Path) -> str:
    """Return the package of a file, without the folder in which it is installed."""
    folders = (
        Path(midrun_package.__file__).parent,
        *(Path(sysconfig.get_path(kind)) for kind in ("purelib", "stdlib")),
    )
    for folder in folders:
        if file.is_relative_to(folder):
            return file.relative_to(folder).parts[0].removesuffix(".py")
    return "other"


def count_calls() -> CallCounter:
    """Count the calls of `COUNTED_STEPS` steps in this process."""
    # In memory if possible: pollers call functions while a step waits for a slow disk.
    with TemporaryDirectory(prefix="midrun-bench-", dir=IN_MEMORY) as folder:
        return anyio.run(_count_calls, Path(folder))


async def _count_calls(folder: Path) -> CallCounter:
    warm_up = 100

    def turn(messages: Transcript) -> Line:
        number = messages.assistant_turn_count
        if number == warm_up:
            sys.setprofile(counter)
        if number == warm_up + COUNTED_STEPS:
            sys.setprofile(None)
            return "Done."
        return [REPLY_TEXT, Use("look", n=number)]

    counter = CallCounter(turn.__code__)
    agent = Agent("stepper", model=ScriptedModel(turn), tools=[look])
    async with Midrun(f"sqlite:///{folder / 'runs.db'}", agents=[agent]) as midrun:
        assert isinstance(midrun.store, SqliteStore)
        # A slow commit would send the next ones to the writer thread, which is not counted.
        midrun.store._writer._timer = repeat(0.0).__next__  # noqa: SLF001 - no public setting
        run = await midrun.start("stepper", "measure")
        await run.result()
    return counter


def _list_call_figures(counter: CallCounter) -> list[Figure]:
    packages = counter.by_package()
    split = ", ".join(f"{n} {c / COUNTED_STEPS:.0f}" for n, c in packages.most_common(12))
    return [
        Figure(
            name="Python calls for a step",
            value=packages.total() / COUNTED_STEPS,
            unit="calls",
            at_most=500,
            detail=f"{split}; and {counter.c_calls / COUNTED_STEPS:.0f} of C functions",
        ),
        Figure(
            name="… in the step with the fewest, without timers and pollers",
            value=counter.quietest_step,
            unit="calls",
        ),
    ]


if __name__ == "__main__":
    sys.exit(print_figures(figures(LONG_STEPS if "long" in sys.argv else STEPS)))
