"""Cost of a durable run: steps, controls, a thousand concurrent runs, and loading.

A step is one model call (300 B of text) and one tool call (500 B of result), each journaled
before and after. The raw step is one commit of the same bytes to the same disk.
"""

import gc
import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import anyio
import apsw

from bench.figures import Figure, micros
from midrun import Agent, Midrun, Run, tool
from midrun.core.ids import RunId
from midrun.core.transcript import Transcript
from midrun.driver.journal_writer import load_run_state
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.store import Store

STEPS = 3000
WINDOW = 100
LOADED = 1000
CROWD = 1000
CROWD_STEPS = 10
WAIT_S = 1.0
CONTROLS = 100


@tool
async def look(n: int) -> str:
    """Return a text as long as a search result."""
    return f"{n}" + "y" * 500


waited: list[tuple[int, float]] = []
"""Number and end time of each wait, over all concurrent runs."""


@tool(read_only=True)
async def wait(n: int) -> str:
    """Wait as long as a slow service takes."""
    await anyio.sleep(WAIT_S)
    waited.append((n, perf_counter()))
    return f"{n}" + "y" * 500


def _steps(name: str, count: int) -> ScriptedModel:
    def turn(messages: Transcript) -> Line:
        n = messages.assistant_turn_count
        return ["x" * 300, Use(name, n=n)] if n < count else "Done."

    return ScriptedModel(turn)


def figures() -> Sequence[Figure]:
    """Measure steps and storage of a long run, then controls, then concurrent runs."""
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as folder:
        return [
            *anyio.run(_long_run, Path(folder)),
            *anyio.run(_controls, Path(folder)),
            *anyio.run(_crowd, Path(folder)),
        ]


class RawSteps:
    """One commit per step: the least that durability costs."""

    def __init__(self, path: Path) -> None:
        self._db = apsw.Connection(str(path))
        self._db.execute("PRAGMA journal_mode = WAL").fetchall()
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute("CREATE TABLE steps (run TEXT, seq INTEGER, line BLOB)")
        self._seq = 0

    def step(self) -> float:
        """Commit one step and return its duration."""
        self._seq += 1
        started = perf_counter()
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute("INSERT INTO steps VALUES (?, ?, ?)", ("r", self._seq, b"x" * 1300))
        self._db.execute("COMMIT")
        return perf_counter() - started


async def _long_run(folder: Path) -> list[Figure]:
    raw = RawSteps(folder / "raw.db")
    path = folder / "long.db"
    theirs = [raw.step() for _ in range(1000)][500:]
    agent = Agent("long", model=_steps("look", STEPS), tools=[look])
    async with Midrun(f"sqlite:///{path}", agents=[agent]) as midrun:
        before = _written_bytes()
        run = await midrun.start("long", "measure")
        await run.result()
        written = _written_bytes() - before
        gaps = await _gaps(midrun.store, run.id)
        again, once = await _loads(midrun.store, run.id, path)
    theirs += [raw.step() for _ in range(1000)]
    stored = path.stat().st_size
    early, late = (median(gaps[n : n + WINDOW]) for n in (30, STEPS - WINDOW - 2))
    one = micros(theirs)
    return [
        Figure(
            name="durable step, compared with a raw commit",
            value=median(gaps) / one,
            at_most=4,
            detail=f"raw {one:.0f} µs, step {median(gaps):.0f} µs (goal: 3 times)",
        ),
        Figure(
            name=f"step {STEPS}, compared with step 30",
            value=late / early,
            at_most=1.1,
            detail=f"medians of {WINDOW}: {early:.0f} µs, {late:.0f} µs",
        ),
        Figure(
            name="storage for a step",
            value=stored / STEPS / 1024,
            unit="KiB",
            at_most=3,
        ),
        Figure(
            name="bytes written for a step: log, checkpoints and snapshots",
            value=written / STEPS / 1024,
            unit="KiB",
            at_most=25,
            detail="two commits; each writes its pages as a whole",
        ),
        Figure(
            name="loading a long run, compared with reading its lines",
            value=again / once,
            at_most=2,
            detail=f"{STEPS} steps: raw {once * 1e3:.0f} ms, ours {again * 1e3:.0f} ms",
        ),
    ]


def _written_bytes() -> int:
    """Return the bytes that this process has passed to `write` (Linux)."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["wchar"])


async def _gaps(store: Store, run: RunId) -> list[int]:
    """Return the microseconds between the starts of consecutive model calls."""
    starts = [
        record.at
        for record in await store.read(run)
        if getattr(record.entry, "call_kind", "") == "model"
    ]
    return [after - before for before, after in pairwise(starts)]


async def _loads(store: Store, run: RunId, path: Path) -> tuple[float, float]:
    """Return the seconds to load the run, and to read its lines with plain apsw."""
    ours, raw = [], []
    for _ in range(5):
        gc.collect()
        started = perf_counter()
        await load_run_state(store, run)
        ours.append(perf_counter() - started)
        started = perf_counter()
        db = apsw.Connection(str(path))
        list(db.execute("SELECT line FROM entries ORDER BY seq"))
        raw.append(perf_counter() - started)
        db.close()
    return median(ours), median(raw)


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
    agent = Agent("crowd", model=_steps("wait", CROWD_STEPS), tools=[wait])
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
            at_least=900,
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
    from bench.figures import table

    sys.stdout.write(table(figures()) + "\n")
