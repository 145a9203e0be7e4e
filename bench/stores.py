"""Cost of an append, compared with a raw commit of the same bytes to the same disk.

Raw commits and appends alternate, so that both run under the same load.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from types import FrameType

import anyio
import anyio.to_thread

from bench.figures import Figure, micros, print_figures
from bench.raw import RawTable
from midrun.codec.journal import encode_entry, format_line
from midrun.core.entries import MessageReceived, RunStarted
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.stores.encryption import PayloadCipher, make_key
from midrun.stores.sqlite.store import SqliteStore

TEXT = MessageReceived(text="x" * 400)
STARTED = RunStarted(agent="bench", task="measure")
WARMUP_APPENDS = 600
APPENDS = 2000
CALLS_APPENDS = 200
CROWD = 200


class Raw:
    """The minimum: insert the line and commit, with the same settings."""

    def __init__(self, path: Path) -> None:
        self._table = RawTable(path)
        self._line = format_line(
            encode_entry(TEXT), seq=Seq(1), at=Micros(1_763_251_200_000_000), epoch=None
        )

    def append(self) -> float:
        """Commit one line and return the duration."""
        return self._table.commit(self._line)


class StoredRun:
    """One run of a store; appends as a driver does."""

    def __init__(self, store: SqliteStore, run: str) -> None:
        self._store = store
        self._run = RunId(run)
        self._seq = Seq(0)

    async def begin(self, entries: int = 1) -> "StoredRun":
        """Create the run with this number of entries."""
        more = [TEXT] * (entries - 1)
        made = await self._store.create(self._run, [STARTED, *more], head=_head(0))
        self._seq = made.seq
        return self

    async def append(self) -> float:
        """Append one entry and return the duration."""
        head = _head(self._seq)
        started = perf_counter()
        appended = await self._store.append(
            self._run, [TEXT], after=self._seq, lease=None, head=head
        )
        took = perf_counter() - started
        self._seq = appended.seq
        return took


def _head(step: int) -> Head:
    return Head(phase=Phase.RUNNING, agent="bench", task="measure", step=step)


def figures() -> Sequence[Figure]:
    """Measure sequential and concurrent appends, long journals, and notifications."""
    with TemporaryDirectory(prefix="midrun-bench-", dir=".") as folder:
        return anyio.run(_measure, Path(folder))


async def _measure(folder: Path) -> list[Figure]:
    store = SqliteStore(folder / "runs.db")
    raw = Raw(folder / "raw.db")
    one = await StoredRun(store, "one").begin()
    for _ in range(WARMUP_APPENDS):
        raw.append()
        await one.append()
    measured = [
        await _measure_sequential(raw, one),
        await _measure_calls(store, one),
        await _measure_concurrent(raw, store),
        await _measure_growth(store),
        await _measure_notification(store),
        await _measure_encrypted(one, folder),
    ]
    await store.close()
    return measured


async def _measure_sequential(raw: Raw, one: StoredRun) -> Figure:
    theirs, ours = [], []
    for _ in range(APPENDS):
        theirs.append(raw.append())
        ours.append(await one.append())
    return Figure(
        name="append, compared with a raw commit",
        value=micros(ours) / micros(theirs),
        at_most=1.25,
        detail=f"medians of {APPENDS}: raw {micros(theirs):.0f} µs, ours {micros(ours):.0f} µs",
    )


async def _measure_encrypted(one: StoredRun, folder: Path) -> Figure:
    store = SqliteStore(folder / "encrypted.db", cipher=PayloadCipher([make_key()]))
    other = await StoredRun(store, "one").begin()
    for _ in range(WARMUP_APPENDS):
        await other.append()
    plain, encrypted = [], []
    for _ in range(APPENDS):
        plain.append(await one.append())
        encrypted.append(await other.append())
    await store.close()
    return Figure(
        name="append to an encrypted store, compared with a plain one",
        value=micros(encrypted) / micros(plain),
        detail=f"medians of {APPENDS}: {micros(plain):.0f} µs and {micros(encrypted):.0f} µs",
    )


async def _measure_calls(store: SqliteStore, one: StoredRun) -> Figure:
    """Count the Python functions that an append calls: a figure that no machine changes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    # Without a slow commit, which would send the next appends to the writer thread.
    writer = store._writer  # noqa: SLF001 - no public setting
    timer, writer._timer = writer._timer, repeat(0.0).__next__  # noqa: SLF001
    writer._detours_left = 0  # noqa: SLF001
    sys.setprofile(count)
    for _ in range(CALLS_APPENDS):
        await one.append()
    sys.setprofile(None)
    writer._timer = timer  # noqa: SLF001
    return Figure(
        name="Python calls for an append of one entry",
        value=calls / CALLS_APPENDS,
        unit="calls",
        at_most=50,
        detail="with encoding and hashing, without the writer thread",
    )


async def _measure_concurrent(raw: Raw, store: SqliteStore) -> Figure:
    rounds, each = 8, 20
    runs = [await StoredRun(store, f"crowd{n}").begin() for n in range(CROWD)]
    theirs, ours = [], []

    async def work(run: StoredRun) -> None:
        for _ in range(each):
            await run.append()

    for _ in range(rounds):
        # Both are averages over a whole round, slow moments included.
        theirs.append(sum(raw.append() for _ in range(100)) / 100)
        started = perf_counter()
        async with anyio.create_task_group() as group:
            for run in runs:
                group.start_soon(work, run)
        ours.append((perf_counter() - started) / (CROWD * each))
    return Figure(
        name=f"rate with {CROWD} writers, compared with sequential raw commits",
        value=micros(theirs) / micros(ours),
        at_least=5,
        detail=f"raw {1e6 / micros(theirs):.0f}/s, ours {1e6 / micros(ours):.0f}/s",
    )


async def _measure_growth(store: SqliteStore) -> Figure:
    """Compare appends near the 10th entry with appends after the 10,000th."""
    long = await StoredRun(store, "long").begin(10_000)
    young, old = [], []
    for n in range(60):
        short = await StoredRun(store, f"short{n}").begin(5)
        for _ in range(10):
            young.append(await short.append())
            old.append(await long.append())
    return Figure(
        name="10,000th append, compared with the 10th",
        value=micros(old) / micros(young),
        at_most=1.1,
        detail=f"medians of {len(old)}: {micros(young):.0f} µs, {micros(old):.0f} µs",
    )


async def _measure_notification(store: SqliteStore) -> Figure:
    chance = Random(1)  # noqa: S311 - only to be out of step with the polling of the other process
    run = await StoredRun(store, "noticed").begin()
    command = [sys.executable, "-m", "bench.processes", "watcher", str(store.path)]
    delays: list[float] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:  # noqa: S603, ASYNC220 - our own
        assert other.stdout
        await anyio.to_thread.run_sync(other.stdout.readline)
        for _ in range(200):
            await anyio.sleep(chance.uniform(0.001, 0.02))
            await run.append()
            committed = time.monotonic_ns()
            noticed = int(await anyio.to_thread.run_sync(other.stdout.readline))
            delays.append((noticed - committed) / 1e6)
        other.kill()
    delays.sort()
    return Figure(
        name="from an append to its notification in another process",
        value=delays[100],
        unit="ms",
        at_most=10,
        detail=f"median of 200; 90th percentile {delays[180]:.1f} ms",
    )


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
