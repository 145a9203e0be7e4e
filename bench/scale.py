"""Postgres at scale: a fleet of workers, many stored runs, many watchers.

    python -m bench.scale [fleet] [temporal] [stored] [watchers] [LIVE STORED WATCHERS]

By default 10,000 live runs, 1,000,000 stored runs and 1,000 watchers. Without the name of a
part, all four are measured. `temporal` is the fleet again, with two workers; a Temporal server
for development, in one process with SQLite, decides which of them drives a run. On two cores
all parts take about half an hour. Workers, servers and the benchmark share the cores of one
machine, so that the CPU time of a step says more than the steps per second.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

import anyio
import psycopg

from bench import http
from bench.figures import Figure, print_figures
from bench.postgres import StoredRun, start_processes
from bench.processes import FLEET_STEPS, make_fleet_agent
from midrun import Midrun
from midrun.core.values import Phase
from midrun.ports.environment import read_wall_clock
from midrun.ports.store import EndedQuery, RunQuery
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres, running
from midrun.testing.temporal import running as running_temporal

PARTS: Final = ("fleet", "temporal", "stored", "watchers")
SIZES: Final = (10_000, 1_000_000, 1_000)
"""Live runs, stored runs and watchers."""
WORKER_COUNTS: Final = (1, 2, 4)
TEMPORAL_WORKERS: Final = 2
STARTERS: Final = 50
SAMPLE_S: Final = 1.0
REPEATS: Final = 20
WATCHED_STEPS: Final = 50
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


# ── a fleet of workers ───────────────────────────────────────────────────────


async def measure_fleet(server: Postgres, live: int) -> list[Figure]:
    """Measure the steps of `live` runs whose tool waits, with one, two and four workers."""
    return [
        figure
        for count in WORKER_COUNTS
        for figure in await _measure_workers(server, live, count)
    ]


async def measure_temporal(server: Postgres, live: int) -> list[Figure]:
    """Measure the same steps with two workers, to which Temporal gives the runs."""
    with TemporaryDirectory() as folder, running_temporal(Path(folder)) as temporal:
        found = await _measure_workers(
            server, live, TEMPORAL_WORKERS, temporal.address, temporal.pid
        )
        size = _read_folder_size(Path(folder))
    written = Figure(
        name="… bytes that Temporal's server stored for a run",
        value=size / live / 1024,
        unit="KiB",
    )
    return [*found, written]


async def _measure_workers(
    server: Postgres, live: int, count: int, temporal: str = "", temporal_pid: int = 0
) -> list[Figure]:
    url = server.url()
    numbers = iter(range(live))
    async with Midrun(url, agents=[make_fleet_agent()], engine=None) as midrun:

        async def start() -> None:
            for number in numbers:
                await midrun.start("fleet", f"task {number}")

        arguments = [url, temporal] if temporal else [url]
        with start_processes("fleet", *arguments, count=count) as crew:
            workers = [worker.pid for worker in crew]
            busy = _read_fleet_cpu(server, workers)
            placing = _read_cpu(temporal_pid)
            started = perf_counter()
            async with anyio.create_task_group() as tasks:
                for _ in range(STARTERS):
                    tasks.start_soon(start)
            took_start = perf_counter() - started
            best, most_live = await _watch_progress(url, live)
            elapsed = perf_counter() - started
            ours, theirs = (
                after - before
                for after, before in zip(_read_fleet_cpu(server, workers), busy, strict=True)
            )
            placing = _read_cpu(temporal_pid) - placing
    steps = live * FLEET_STEPS
    label = f"{count} worker{'s' * (count > 1)}" + ", placed by Temporal" * bool(temporal)
    placement = Figure(
        name=f"… CPU of Temporal's server for a run, {label}",
        value=placing / live * 1e3,
        unit="ms",
    )
    return [
        Figure(
            name=f"steps per second of {live:,} runs, {label}",
            value=best,
            unit="/s",
            detail=f"the best ten seconds; {steps / elapsed:.0f}/s with starts "
            f"({took_start:.0f} s) and ends; at most {most_live:,} runs at once had a worker",
        ),
        Figure(
            name=f"… CPU for a step, {label}",
            value=ours / steps * 1e3,
            unit="ms",
            detail=f"of the workers; Postgres {theirs / steps * 1e3:.2f} ms",
        ),
        *([placement] if temporal else []),
    ]


async def _watch_progress(url: str, live: int) -> tuple[float, int]:
    """Wait for the end of all runs; return the best rate of ten seconds, and the most held."""
    entries_of_step = 4
    samples: list[tuple[float, int]] = []
    most_held = 0
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        while True:
            cursor = await db.execute(
                "SELECT coalesce(sum(seq), 0), count(*) FILTER (WHERE holder <> ''),"
                " count(*) FILTER (WHERE phase = 'completed') FROM midrun_runs"
            )
            total, held, ended = await cursor.fetchone() or (0, 0, 0)
            samples.append((perf_counter(), int(total)))
            most_held = max(most_held, held)
            if ended == live:
                break
            await anyio.sleep(SAMPLE_S)
    rates = [
        (later[1] - earlier[1]) / (later[0] - earlier[0]) / entries_of_step
        for earlier, later in zip(samples, samples[10:], strict=False)
    ]
    return max(rates, default=0.0), most_held


def _read_folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _read_cpu(pid: int) -> float:
    """Return the seconds of CPU that a process has used; 0 for the pid 0."""
    if not pid:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _read_fleet_cpu(server: Postgres, workers: Sequence[int]) -> tuple[float, float]:
    """Return the seconds of CPU that the workers and the processes of Postgres have used."""
    postmaster = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    ours = theirs = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        parent = int(fields[1])
        used = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        if int(folder.name) in workers:
            ours += used
        elif parent == postmaster:
            theirs += used
        elif int(folder.name) == postmaster:  # with its children that have ended
            theirs += used + (int(fields[13]) + int(fields[14])) / CLOCK_TICKS
    return ours, theirs


# ── stored runs ──────────────────────────────────────────────────────────────


async def measure_stored(server: Postgres, stored: int) -> list[Figure]:
    """Measure what a server and a worker do, beside few and beside many stored runs."""
    url = server.url()
    store = await PostgresStore.open(url)
    one = await StoredRun(store, "template").begin()
    for _ in range(9):
        await one.append()
    small = await _time_operations(store, "small")
    started = perf_counter()
    size = _copy_template(url, stored)
    filled = perf_counter() - started
    large = await _time_operations(store, "large")
    await store.close()
    found = [
        Figure(
            name=f"{name}, beside {stored:,} stored runs, compared with none",
            value=large[name] / small[name],
            detail=f"{small[name] * 1e3:.2f} ms and {large[name] * 1e3:.2f} ms",
        )
        for name in small
    ]
    return [
        *found,
        Figure(
            name="storage for a stored run of ten entries, with its indexes",
            value=size / stored / 1024,
            unit="KiB",
            detail=f"filled in {filled:.0f} s",
        ),
    ]


async def _time_operations(store: PostgresStore, name: str) -> dict[str, float]:
    """Return the median seconds of each operation."""
    run = await StoredRun(store, f"beside_{name}").begin()
    starts = iter(range(REPEATS))

    async def begin() -> None:
        await StoredRun(store, f"started_{name}_{next(starts)}").begin()

    async def search_for_work() -> None:
        await store.list_due(limit=256)
        await store.list_drivable(limit=256, agents=["bench"])

    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "append": run.append,
        "start of a run": begin,
        "a worker's search for work": search_for_work,
        "the newest 50 runs": lambda: store.list_runs(RunQuery(limit=50)),
        "the 50 newest of one owner": lambda: store.list_runs(RunQuery(limit=50, owner="ann")),
        "a search for a word in few runs": lambda: store.list_runs(
            RunQuery(limit=50, search="word4711")
        ),
        "a search for a word in every run": lambda: store.list_runs(
            RunQuery(limit=50, search="measure")
        ),
        "the next runs that retention deletes": lambda: store.list_ended(
            EndedQuery(before=read_wall_clock(), agent="none")
        ),
    }
    return {label: await _take_median(operation) for label, operation in operations.items()}


async def _take_median(operation: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(REPEATS):
        started = perf_counter()
        await operation()
        times.append(perf_counter() - started)
    return median(times)


def _copy_template(url: str, stored: int) -> int:
    """Store `stored` completed copies of the run `template`; return the bytes they take."""
    with psycopg.connect(url, autocommit=True) as db:
        before = _read_size(db)
        columns = [
            row[0]
            for row in db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'midrun_runs'::regclass"
                " AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
                " AND attidentity = ''"
            )
        ]
        copied = {
            "run": "'stored_' || n",
            "phase": f"'{Phase.COMPLETED}'",
            "started_at": "r.started_at - n",
            "at": "r.at - n",
            "ended_at": "r.at - n",
        }
        chosen = ", ".join(copied.get(name, f"r.{name}") for name in columns)
        batch = 50_000
        for first in range(0, stored, batch):
            db.execute(
                f"INSERT INTO midrun_runs ({', '.join(columns)}) SELECT {chosen}"  # noqa: S608 - its own columns
                " FROM midrun_runs AS r, generate_series(%s::int, %s::int) AS n"
                " WHERE r.run = 'template'",
                (first, min(first + batch, stored) - 1),
            )
        db.execute(
            "INSERT INTO midrun_entries SELECT c.no, e.seq, e.line, e.hash"
            " FROM midrun_runs AS c, midrun_entries AS e, midrun_runs AS t"
            " WHERE c.run LIKE 'stored\\_%' AND t.run = 'template' AND e.no = t.no"
        )
        db.execute(
            "INSERT INTO midrun_search"
            " SELECT c.no, s.words || array_to_tsvector(ARRAY['word' || c.no % 9973])"
            " FROM midrun_runs AS c, midrun_search AS s, midrun_runs AS t"
            " WHERE c.run LIKE 'stored\\_%' AND t.run = 'template' AND s.no = t.no"
        )
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")
        return _read_size(db) - before


def _read_size(db: "psycopg.Connection") -> int:
    row = db.execute(
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
        " WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
    ).fetchone()
    return int((row or (0,))[0] or 0)


# ── watchers ─────────────────────────────────────────────────────────────────


async def measure_watchers(server: Postgres, watchers: int) -> list[Figure]:
    """Measure one server whose run is watched by `watchers` connections."""
    async with http.serve(server.url(), steps=WATCHED_STEPS) as url:
        return await http.measure_burst(url, watchers)


async def _measure(parts: Sequence[str], live: int, stored: int, watchers: int) -> list[Figure]:
    found: list[Figure] = []
    with running(durable=True, shared_buffers="512MB", max_wal_size="4GB") as server:
        if "watchers" in parts:
            found += await measure_watchers(server, watchers)
        if "fleet" in parts:
            found += await measure_fleet(server, live)
        if "temporal" in parts:
            found += await measure_temporal(server, live)
        if "stored" in parts:
            found += await measure_stored(server, stored)
    return found


def main() -> int:
    """Measure the parts that the command line names, and print their figures."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    parts = [word for word in words if not word.isdecimal()]
    sizes = [int(word) for word in words if word.isdecimal()] or [*SIZES]
    if not {*parts} <= {*PARTS} or len(sizes) != len(SIZES):
        sys.exit(__doc__)
    live, stored, watchers = sizes
    return print_figures(anyio.run(_measure, parts or PARTS, live, stored, watchers))


if __name__ == "__main__":
    sys.exit(main())
