"""Cost of a run on Postgres, with one and with several processes.

The raw commit inserts the same bytes into a plain table, with the same package and disk. The
benchmark starts its own server, with fsync on.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import pairwise
from statistics import median
from time import perf_counter, process_time

import anyio
import anyio.to_thread
import psycopg

from bench.figures import Figure, micros, print_figures
from bench.probe import REPLY_TEXT
from bench.processes import WORKER_STEPS, look, make_agents
from midrun import Agent, Midrun
from midrun.codec.journal import encode_entry, format_line
from midrun.core.entries import LeaseTaken, MessageReceived, RunStarted
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.transcript import Transcript
from midrun.core.values import Phase
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.ports.store import RunQuery
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres, running

TEXT = MessageReceived(text="x" * 400)
STARTED = RunStarted(agent="bench", task="measure")
APPENDS = 500
CROWD = 200
APPENDS_PER_RUN = 10
CONTROLS = 40
LONG_STEPS = 1000
WINDOW = 100
STEPPERS = 60
PARKED = 100_000
DEATHS = 3
LEASE_S = 6.0


class Raw:
    """The minimum: insert the line and commit."""

    def __init__(self, db: psycopg.AsyncConnection) -> None:
        self._db = db
        self._seq = 0
        self._body = encode_entry(TEXT)

    async def commit(self) -> float:
        """Commit one line and return the duration."""
        self._seq += 1
        at = Micros(1_763_251_200_000_000)
        data = format_line(self._body, seq=Seq(self._seq), at=at, epoch=None)
        started = perf_counter()
        await self._db.execute(
            "INSERT INTO raw VALUES (%s, %s, %s)", ("run_bench", self._seq, data)
        )
        return perf_counter() - started


class StoredRun:
    """One run of a store; appends as a driver does."""

    def __init__(self, store: PostgresStore, run: str) -> None:
        self._store = store
        self._run = RunId(run)
        self._seq = Seq(0)

    async def begin(self) -> "StoredRun":
        """Create the run."""
        self._seq = (await self._store.create(self._run, [STARTED], head=_head(0))).seq
        return self

    async def append(self) -> float:
        """Append one entry and return the duration."""
        started = perf_counter()
        appended = await self._store.append(
            self._run, [TEXT], after=self._seq, lease=None, head=_head(self._seq)
        )
        self._seq = appended.seq
        return perf_counter() - started


def _head(step: int) -> Head:
    return Head(phase=Phase.PAUSED, agent="bench", task="measure", step=step)


def figures() -> Sequence[Figure]:
    """Measure one process, then several, then a hundred thousand parked runs."""
    with running(durable=True, shared_buffers="256MB") as server:
        return anyio.run(_measure, server)


async def _measure(server: Postgres) -> list[Figure]:
    server.execute("CREATE TABLE raw (run text, seq bigint, line bytea)")
    url = server.url()
    db = await psycopg.AsyncConnection.connect(
        f"host={server.folder} user=midrun dbname=postgres", autocommit=True
    )
    raw, store = Raw(db), await PostgresStore.open(url)
    measured = [await _measure_sequential(raw, store), await _measure_concurrent(raw, store)]
    measured.append(await _measure_step(raw, server))
    measured += await _steps(raw, server)
    measured += await _controls(server)
    measured.append(await _deaths(server))
    measured += await _parked(raw, store, url)
    await store.close()
    await db.close()
    return measured


async def _measure_sequential(raw: Raw, store: PostgresStore) -> Figure:
    return Figure(
        name="append, compared with a raw commit",
        value=await _compare_appends(raw, await StoredRun(store, "one").begin()),
        at_most=4,
        detail=f"medians of {APPENDS}, alternating",
    )


async def _compare_appends(raw: Raw, one: StoredRun) -> float:
    """Return the duration of an append in raw commits; they alternate on the same disk."""
    theirs, ours = [], []
    for n in range(APPENDS):
        theirs.append(await raw.commit())
        ours.append(await one.append())
        if n == APPENDS // 5:  # warm-up ends
            theirs, ours = [], []
    return micros(ours) / micros(theirs)


async def _measure_concurrent(raw: Raw, store: PostgresStore) -> Figure:
    runs = [await StoredRun(store, f"crowd{n}").begin() for n in range(CROWD)]

    async def work(run: StoredRun) -> None:
        for _ in range(APPENDS_PER_RUN):
            await run.append()

    theirs = [await raw.commit() for _ in range(APPENDS)]
    started = perf_counter()
    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(work, run)
    rate = CROWD * APPENDS_PER_RUN / (perf_counter() - started)
    return Figure(
        name=f"rate with {CROWD} writers, compared with sequential raw commits",
        value=rate * median(theirs),
        at_least=1,
        detail=f"raw {1 / median(theirs):.0f}/s, ours {rate:.0f}/s",
    )


async def _measure_step(raw: Raw, server: Postgres) -> Figure:
    """Compare a durable step with a raw commit; raw commits before and after the run."""
    marks: list[float] = []

    def turn(messages: Transcript) -> Line:
        marks.append(perf_counter())
        number = messages.assistant_turn_count
        return [REPLY_TEXT, Use("look", n=number)] if number < LONG_STEPS else "Done."

    agent = Agent("long", model=ScriptedModel(turn), tools=[look])
    theirs = [await raw.commit() for _ in range(APPENDS)]
    async with Midrun(server.url(), agents=[agent]) as midrun:
        busy = process_time()
        await (await midrun.start("long", "measure")).result()
        busy = process_time() - busy
    theirs += [await raw.commit() for _ in range(APPENDS)]
    steps = [after - before for before, after in pairwise(marks)]
    late = micros(steps[-WINDOW:])
    return Figure(
        name=f"Postgres: step {LONG_STEPS:,}, compared with one raw commit",
        value=late / micros(theirs),
        at_most=5,
        detail=f"raw {micros(theirs):.0f} µs, step {late:.0f} µs (step {WINDOW}: "
        f"{micros(steps[:WINDOW]):.0f} µs); {busy / LONG_STEPS * 1e3:.2f} ms of CPU",
    )


# ── several processes ────────────────────────────────────────────────────────


@contextmanager
def workers(
    url: str, count: int, lease_s: float = 60.0
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start worker processes and wait until they are ready."""
    with start_processes("worker", url, str(lease_s), count=count) as crew:
        yield crew


@contextmanager
def start_processes(*arguments: str, count: int) -> Iterator[list["subprocess.Popen[str]"]]:
    """Start `count` times `python -m bench.processes`, and wait until all are ready."""
    command = [sys.executable, "-m", "bench.processes", *arguments]
    with ExitStack() as stack:
        crew = []
        for _ in range(count):
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            crew.append(worker)
        for worker in crew:
            assert worker.stdout
            assert worker.stdout.readline() == "ready\n"
        yield crew


async def _read_line(worker: "subprocess.Popen[str]") -> str:
    assert worker.stdout
    return await anyio.to_thread.run_sync(worker.stdout.readline)


async def _steps(raw: Raw, server: Postgres) -> list[Figure]:
    """Measure the steps per second of one worker and of two, with many runs."""
    found = []
    for count in (1, 2):
        url = server.url()
        async with Midrun(url, agents=make_agents(WORKER_STEPS), engine=None) as midrun:
            theirs = [await raw.commit() for _ in range(APPENDS)]
            runs = [await midrun.start("stepper", "measure") for _ in range(STEPPERS)]
            with workers(url, count):
                started = perf_counter()
                for run in runs:
                    await run.until("completed")
                rate = STEPPERS * WORKER_STEPS / (perf_counter() - started)
        found.append(
            Figure(
                name=f"steps per raw commit, {count} worker{'s' * (count > 1)}",
                value=rate * median(theirs),
                detail=f"{rate:.0f} steps/s of {STEPPERS} runs; raw {1 / median(theirs):.0f}/s",
            )
        )
    return found


async def _controls(server: Postgres) -> list[Figure]:
    """Measure the time from a pause or a cancel until a tool in another process stops."""
    url, seen, known = server.url(), [], []
    async with Midrun(url, agents=make_agents(WORKER_STEPS), engine=None) as midrun:
        with workers(url, 1) as (worker,):
            for n in range(CONTROLS):
                run = await midrun.start("waiter", "wait")
                await _read_line(worker)
                asked = time.monotonic_ns()
                await (run.cancel() if n % 2 else run.pause(now=True))
                await run.until("cancelled" if n % 2 else "paused")
                known.append((time.monotonic_ns() - asked) / 1e6)
                seen.append((int(await _read_line(worker)) - asked) / 1e6)
    seen.sort()
    return [
        Figure(
            name="from a control to a tool in another process",
            value=median(seen),
            unit="ms",
            at_most=10,
            detail=f"median of {CONTROLS}; 90th percentile {seen[CONTROLS * 9 // 10]:.1f} ms",
        ),
        Figure(
            name="… until its effect is known to the caller", value=median(known), unit="ms"
        ),
    ]


async def _deaths(server: Postgres) -> Figure:
    """Measure the time until another worker takes the run of a killed one."""
    gaps = []
    for _ in range(DEATHS):
        url = server.url()
        async with Midrun(url, agents=make_agents(WORKER_STEPS), engine=None) as midrun:
            run = await midrun.start("waiter", "wait")
            with workers(url, 1, LEASE_S) as (first,):
                await _read_line(first)
                with workers(url, 1, LEASE_S):
                    first.kill()
                    killed = perf_counter()
                    while not await _is_taken_again(midrun, run.id):  # noqa: ASYNC110 - in another process
                        await anyio.sleep(0.01)
                    gaps.append(perf_counter() - killed)
    return Figure(
        name="until the run of a killed worker continues",
        value=median(gaps),
        unit="s",
        at_most=1,
        detail=f"median of {DEATHS}, on one host, with a lease of {LEASE_S:g} s",
    )


async def _is_taken_again(midrun: Midrun, run: RunId) -> bool:
    entries = [record.entry for record in await midrun.store.read(run)]
    return sum(isinstance(entry, LeaseTaken) for entry in entries) > 1


# ── parked runs ──────────────────────────────────────────────────────────────

PARK = """
    INSERT INTO midrun_runs (run, seq, hash, at, started_at, epoch, holder, head, phase,
                             attention, wake_at, agent, thread, parent, owner, tenant, team)
    SELECT 'parked_' || n, r.seq, r.hash, r.at, r.started_at, 1, '', r.head, 'waiting', 'ask',
           r.at + 1000000000000 + n, 'bench', '', '', '', '', ''
    FROM midrun_runs AS r, generate_series(1, %s) AS n WHERE r.run = 'one'
"""


async def _parked(raw: Raw, store: PostgresStore, url: str) -> list[Figure]:
    """Measure appends, searches and lists beside a hundred thousand waiting runs."""
    one = await StoredRun(store, "beside").begin()
    before = await _compare_appends(raw, one)
    with psycopg.connect(url, autocommit=True) as db:
        (empty,) = db.execute("SELECT pg_total_relation_size('midrun_runs')").fetchone() or (0,)
        db.execute(PARK, (PARKED,))
        db.execute("VACUUM ANALYZE midrun_runs")  # else the next appends would be slower
        db.execute("CHECKPOINT")
        (full,) = db.execute("SELECT pg_total_relation_size('midrun_runs')").fetchone() or (0,)
    after = await _compare_appends(raw, one)
    looks: list[float] = []
    for _ in range(30):
        started = perf_counter()
        await store.list_due(limit=256)
        await store.list_drivable(limit=256, agents=["bench"])
        await store.list_runs(RunQuery(phases=(Phase.HALTED,), limit=256))
        looks.append(perf_counter() - started)
    lists: list[float] = []
    for _ in range(10):
        started = perf_counter()
        await store.list_runs(RunQuery(attention=True, limit=50))
        lists.append(perf_counter() - started)
    return [
        Figure(
            name=f"append beside {PARKED:,} parked runs, compared with none",
            value=after / before,
            at_most=1.5,
            detail=f"{before:.2f} and {after:.2f} raw commits",
        ),
        Figure(
            name="a worker's search for work beside them, once a second",
            value=median(looks) * 1e3,
            unit="ms",
            at_most=50,
        ),
        Figure(
            name="the newest 50 that wait for a person", value=median(lists) * 1e3, unit="ms"
        ),
        *await _measure_followers(store, url),
        Figure(
            name="storage for the row of a parked run", value=(full - empty) / PARKED, unit="B"
        ),
    ]


async def _measure_followers(store: PostgresStore, url: str) -> list[Figure]:
    """Measure a new follower of all these runs, and one that has delivered them."""
    cursors = store.follower_cursors()
    started = perf_counter()
    await cursors.acquire_leadership("late", holder="bench", ttl=timedelta(minutes=5))
    came = perf_counter() - started
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT midrun_acquire_leadership('early', 'bench', 1, NULL)")
        db.execute("UPDATE midrun_followers SET since = 0 WHERE follower = 'early'")
        db.execute(
            "INSERT INTO midrun_cursors SELECT 'early', no, seq, '' FROM midrun_runs"
        )  # a cursor for every run
        db.execute("ANALYZE midrun_cursors")  # as autovacuum does within a minute
    looks: dict[str, list[float]] = {"late": [], "early": []}
    for follower in [*looks] * 10:
        started = perf_counter()
        await cursors.list_behind(follower, limit=256)
        looks[follower].append(perf_counter() - started)
    return [
        Figure(
            name="the first start of a follower on them",
            value=came * 1e3,
            unit="ms",
            at_most=1000,
        ),
        Figure(
            name="its regular scan, every ten seconds",
            value=median(looks["late"]) * 1e3,
            unit="ms",
        ),
        Figure(
            name="… of a follower that has delivered them",
            value=median(looks["early"]) * 1e3,
            unit="ms",
        ),
    ]


if __name__ == "__main__":
    sys.exit(print_figures(figures()))
