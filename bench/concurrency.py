"""Controls of a running tool, and a thousand concurrent runs in one process."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import anyio

from bench.figures import Figure, print_figures
from bench.probe import REPLY_TEXT, RESULT_TEXT
from midrun import Agent, Midrun, Run, tool
from midrun.core.transcript import Transcript
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line

CROWD = 1000
CROWD_STEPS = 10
WAIT_S = 1.0
CONTROLS = 100


waited: list[tuple[int, float]] = []
"""Number and end time of each wait, over all concurrent runs."""


@tool(read_only=True)
async def wait(n: int) -> str:
    """Wait as long as a slow service takes."""
    await anyio.sleep(WAIT_S)
    waited.append((n, perf_counter()))
    return f"{n}{RESULT_TEXT}"


def _turn(messages: Transcript) -> Line:
    n = messages.assistant_turn_count
    return [REPLY_TEXT, Use("wait", n=n)] if n < CROWD_STEPS else "Done."


def figures() -> Sequence[Figure]:
    """Measure controls, then concurrent runs."""
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as folder:
        return [
            *anyio.run(_controls, Path(folder)),
            *anyio.run(_crowd, Path(folder)),
        ]


async def _controls(folder: Path) -> list[Figure]:
    """Measure the time from a pause or a cancel until an async tool is cancelled."""
    here: list[float] = []
    seen: list[float] = []
    ready = anyio.Event()

    @tool
    async def wait_for_cancel() -> None:
        nonlocal ready
        ready.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append(perf_counter())

    agent = Agent(
        "waiter", model=ScriptedModel(lambda _: Use("wait_for_cancel")), tools=[wait_for_cancel]
    )
    path = f"sqlite:///{folder / 'controls.db'}"
    async with Midrun(path, agents=[agent]) as midrun, Midrun(path) as elsewhere:
        there: list[float] = []
        for times, handle in ((here, midrun), (there, elsewhere)):
            for n in range(CONTROLS):
                ready = anyio.Event()
                run = await midrun.start("waiter", "wait")
                await ready.wait()
                await _control(await handle.get(run.id), n, times)
                times[-1] = seen[-1] - times[-1]
    return [
        Figure(
            name="from a control to an async tool, same process",
            value=median(here) * 1e3,
            unit="ms",
            at_most=2,
            detail=f"median of {CONTROLS} pauses and cancels",
        ),
        Figure(
            name="… through a second store on the same file",
            value=median(there) * 1e3,
            unit="ms",
            at_most=10,
            detail=f"median of {CONTROLS} pauses and cancels",
        ),
    ]


async def _control(run: Run, n: int, times: list[float]) -> None:
    times.append(perf_counter())
    if n % 2:
        await run.cancel()
        await run.until("cancelled")
    else:
        await run.pause(now=True)
        await run.until("paused")


async def _crowd(folder: Path) -> list[Figure]:
    """Measure a thousand concurrent runs whose tool waits a second."""
    agent = Agent("crowd", model=ScriptedModel(_turn), tools=[wait])
    async with Midrun(f"sqlite:///{folder / 'crowd.db'}", agents=[agent]) as midrun:
        before, busy = _memory(), process_time()
        started = perf_counter()
        runs = [await midrun.start("crowd", f"task {n}") for n in range(CROWD)]
        all_live = perf_counter()
        live = (_memory() - before) / CROWD
        with anyio.fail_after(CROWD_STEPS * 30):
            for run in runs:
                await run.result()
        over, busy = perf_counter(), process_time() - busy
    steps = CROWD * CROWD_STEPS
    rate = overall = steps / (over - started)
    first_end = min(at for n, at in waited if n == CROWD_STEPS - 1)
    if first_end > all_live:  # in between, all runs are active
        within = sum(all_live <= at < first_end for _, at in waited)
        rate = within / (first_end - all_live)
    return [
        Figure(
            name=f"steps per second of {CROWD} runs that wait {WAIT_S:g} s (ideal: 1,000)",
            value=rate,
            unit="/s",
            at_least=950,
            detail=f"while all are active, synchronous=FULL; {busy / steps * 1e3:.2f} ms of "
            f"CPU per step; with starts ({all_live - started:.1f} s) and ends "
            f"{overall:.0f}/s",
        ),
        Figure(name="memory of an active run", value=live / 1024, unit="KiB", at_most=100),
    ]


def _memory() -> int:
    """Return the resident memory of this process, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a real file
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
