"""Start-up time: `import midrun` and short commands, compared with their dependencies alone.

Each figure is the fastest of many processes, started in turns. Bytecode is compiled before the
first one, as an installer does.
"""

import compileall
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

import anyio

import midrun as midrun_package
from bench.figures import Figure, print_figures
from midrun import Agent, Midrun
from midrun.models import ScriptedModel

PROCESSES: Final = 15
RUNS: Final = 20

CASES: Final = {
    "nothing": ("-c", "pass"),
    "dependencies": ("-c", "import asyncio, anyio, apsw, msgspec"),
    "import": ("-c", "import midrun"),
    "names": ("-c", "from midrun import Agent, Midrun, tool"),
    "help": ("-m", "midrun", "--help"),
    "ls": ("-m", "midrun", "ls"),
}


def figures() -> Sequence[Figure]:
    """Measure all cases."""
    compileall.compile_dir(Path(midrun_package.__file__).parent, quiet=1)
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as name:
        folder = Path(name)
        anyio.run(_make_store, folder)
        best = _measure(folder)
        modules = {case: _count_modules(case, folder) for case in CASES}
    without = (
        f"Python alone {best['nothing']:.0f} ms, dependencies {best['dependencies']:.0f} ms"
    )

    def make_figure(case: str, name: str, bound: float | None = None) -> Figure:
        detail = f"{modules[case]} modules; {without}"
        return Figure(name=name, value=best[case], unit="ms", at_most=bound, detail=detail)

    return [
        make_figure("import", "import midrun, whole process", 60),
        make_figure("names", "from midrun import Agent, Midrun, tool, whole process"),
        make_figure("help", "midrun --help"),
        make_figure("ls", f"midrun ls, with {RUNS} runs", 150),
    ]


async def _make_store(folder: Path) -> None:
    agent = Agent("clerk", model=ScriptedModel(lambda _: "Done."))
    async with Midrun(f"sqlite:///{folder / 'midrun.db'}", agents=[agent]) as midrun:
        for number in range(RUNS):
            await (await midrun.start("clerk", f"task {number}")).result()


def _measure(folder: Path) -> dict[str, float]:
    """Return the milliseconds of the fastest process of each case."""
    best = dict.fromkeys(CASES, float("inf"))
    for _ in range(PROCESSES):
        for case in CASES:
            started = perf_counter()
            _run(CASES[case], folder)
            best[case] = min(best[case], (perf_counter() - started) * 1e3)
    return best


def _count_modules(case: str, folder: Path) -> int:
    lines = _run(("-X", "importtime", *CASES[case]), folder).splitlines()
    return sum(line.startswith("import time:") for line in lines) - 1  # without the heading


def _run(arguments: Sequence[str], folder: Path) -> str:
    environment = {**os.environ}
    # Otherwise the dependencies would be compiled in every process that imports them.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(  # noqa: S603 - our own
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
