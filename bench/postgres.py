"""What a run costs on Postgres, and what many processes on it do, next to its raw commit.

The raw commit inserts the same bytes into a plain table, through the same package, in the same
run, to the same disk: a server of our own with fsync on.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from statistics import median
from time import perf_counter

import anyio
import anyio.to_thread
import psycopg

from bench.figures import Figure, micros, table
from bench.fleet import STEPS, agents
from midrun import Midrun
from midrun.codec.journal import encode_entry, format_line
from midrun.core.entries import LeaseTaken, MessageReceived, RunStarted
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.ports.store import RunQuery
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres, running

TEXT = MessageReceived(text="x" * 400)
STARTED = RunStarted(agent="bench", task="measure")
APPENDS = 500
CROWD = 200
EACH = 10
CONTROLS = 40
WALKERS = 60
PARKED = 100_000
DEATHS = 3
LEASE_S = 6.0


class Raw:
    """The least that can be done: insert the line, commit."""

    def __init__(self, db: psycopg.AsyncConnection) -> None:
        self._db = db
        self._seq = 0
        self._body = encode_entry(TEXT)

    async def commit(self) -> float:
        """Commit one line, and return how long it took."""
        self._seq += 1
        at = Micros(1_763_251_200_000_000)
        data = format_line(self._body, seq=Seq(self._seq), at=at, epoch=None)
        started = perf_counter()
        await self._db.execute(
            "INSERT INTO raw VALUES (%s, %s, %s)", ("run_bench", self._seq, data)
        )
        return perf_counter() - started


class Ours:
    """One run of a store, appended to as a driver would."""

    def __init__(self, store: PostgresStore, run: str) -> None:
        self._store = store
        self._run = RunId(run)
        self._seq = Seq(0)

    async def begin(self) -> "Ours":
        """Create the run."""
        self._seq = (await self._store.create(self._run, [STARTED], head=_head(0))).seq
        return self

    async def append(self) -> float:
        """Append one entry, and return how long it took."""
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
    measured = [await _alone(raw, store), await _crowd(raw, store)]
    measured += await _steps(raw, server)
    measured += await _controls(server)
    measured.append(await _deaths(server))
    measured += await _parked(raw, store, url)
    await store.close()
    await db.close()
    return measured


async def _alone(raw: Raw, store: PostgresStore) -> Figure:
    return Figure(
        name="append, against a raw commit",
        value=await _side_by_side(raw, await Ours(store, "one").begin()),
        at_most=4,
        detail=f"medians of {APPENDS}, turn by turn",
    )


async def _side_by_side(raw: Raw, one: Ours) -> float:
    """Return how many raw commits an append costs; they take turns, so both see one disk."""
    theirs, ours = [], []
    for n in range(APPENDS):
        theirs.append(await raw.commit())
        ours.append(await one.append())
        if n == APPENDS // 5:  # until then everything warms up
            theirs, ours = [], []
    return micros(ours) / micros(theirs)


async def _crowd(raw: Raw, store: PostgresStore) -> Figure:
    runs = [await Ours(store, f"crowd{n}").begin() for n in range(CROWD)]

    async def work(run: Ours) -> None:
        for _ in range(EACH):
            await run.append()

    theirs = [await raw.commit() for _ in range(APPENDS)]
    started = perf_counter()
    async with anyio.create_task_group() as group:
        for run in runs:
            group.start_soon(work, run)
    rate = CROWD * EACH / (perf_counter() - started)
    return Figure(
        name=f"rate with {CROWD} appenders, against raw commits one by one",
        value=rate * median(theirs),
        at_least=1,
        detail=f"raw {1 / median(theirs):.0f}/s, ours {rate:.0f}/s",
    )


# ── many processes ───────────────────────────────────────────────────────────


@contextmanager
def workers(
    url: str, count: int, lease_s: float = 60.0
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Give worker processes that are ready."""
    command = [sys.executable, "-m", "bench.fleet", url, str(lease_s)]
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


async def _heard(worker: "subprocess.Popen[str]") -> str:
    assert worker.stdout
    return await anyio.to_thread.run_sync(worker.stdout.readline)


async def _steps(raw: Raw, server: Postgres) -> list[Figure]:
    """Measure the steps a second of one process, and of two, that have many runs to drive."""
    found = []
    for count in (1, 2):
        url = server.url()
        async with Midrun(url, agents=agents(), engine=None) as desk:
            theirs = [await raw.commit() for _ in range(APPENDS)]
            runs = [await desk.start("walker", "measure") for _ in range(WALKERS)]
            with workers(url, count):
                started = perf_counter()
                for run in runs:
                    await run.until("completed")
                rate = WALKERS * STEPS / (perf_counter() - started)
        found.append(
            Figure(
                name=f"steps a second, {count} worker{'s' * (count > 1)}, against raw commits",
                value=rate * median(theirs),
                detail=f"{rate:.0f} steps/s of {WALKERS} runs; raw {1 / median(theirs):.0f}/s",
            )
        )
    return found


async def _controls(server: Postgres) -> list[Figure]:
    """Measure how long a tool in another process takes to be told of a pause or a cancel."""
    url, seen, known = server.url(), [], []
    async with Midrun(url, agents=agents(), engine=None) as desk:
        with workers(url, 1) as (worker,):
            for n in range(CONTROLS):
                run = await desk.start("stander", "stand")
                await _heard(worker)
                asked = time.monotonic_ns()
                await (run.cancel() if n % 2 else run.pause(now=True))
                await run.until("cancelled" if n % 2 else "paused")
                known.append((time.monotonic_ns() - asked) / 1e6)
                seen.append((int(await _heard(worker)) - asked) / 1e6)
    seen.sort()
    return [
        Figure(
            name="control seen by a tool in another process",
            value=median(seen),
            unit="ms",
            at_most=10,
            detail=f"median of {CONTROLS}; 90th percentile {seen[CONTROLS * 9 // 10]:.1f} ms",
        ),
        Figure(name="… and known here to have happened", value=median(known), unit="ms"),
    ]


async def _deaths(server: Postgres) -> Figure:
    """Measure how long a run is without a driver when its worker is killed."""
    gaps = []
    for _ in range(DEATHS):
        url = server.url()
        async with Midrun(url, agents=agents(), engine=None) as desk:
            run = await desk.start("stander", "stand")
            with workers(url, 1, LEASE_S) as (first,):
                await _heard(first)
                with workers(url, 1, LEASE_S):
                    first.kill()
                    killed = perf_counter()
                    while not await _taken_again(desk, run.id):  # noqa: ASYNC110 - elsewhere
                        await anyio.sleep(0.01)
                    gaps.append(perf_counter() - killed)
    return Figure(
        name="take-over of a dead worker's run",
        value=median(gaps),
        unit="s",
        at_most=LEASE_S + 2,
        detail=f"median of {DEATHS}, with a lease of {LEASE_S:g} s",
    )


async def _taken_again(desk: Midrun, run: RunId) -> bool:
    entries = [record.entry for record in await desk.store.read(run)]
    return sum(isinstance(entry, LeaseTaken) for entry in entries) > 1


# ── parked runs ──────────────────────────────────────────────────────────────

PARK = """
    INSERT INTO midrun_runs (run, seq, hash, at, started_at, epoch, holder, head, phase,
                             attention, wake_at, agent, thread, parent)
    SELECT 'parked_' || n, r.seq, r.hash, r.at, r.started_at, 1, '', r.head, 'waiting', 'ask',
           r.at + 1000000000000 + n, 'bench', '', ''
    FROM midrun_runs AS r, generate_series(1, %s) AS n WHERE r.run = 'one'
"""


async def _parked(raw: Raw, store: PostgresStore, url: str) -> list[Figure]:
    """Measure what everything else costs beside a hundred thousand runs that wait."""
    one = await Ours(store, "beside").begin()
    before = await _side_by_side(raw, one)
    with psycopg.connect(url, autocommit=True) as db:
        (empty,) = db.execute("SELECT pg_total_relation_size('midrun_runs')").fetchone() or (0,)
        db.execute(PARK, (PARKED,))
        db.execute("VACUUM ANALYZE midrun_runs")  # or the next appends would pay for it
        db.execute("CHECKPOINT")
        (full,) = db.execute("SELECT pg_total_relation_size('midrun_runs')").fetchone() or (0,)
    after = await _side_by_side(raw, one)
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
            name=f"append beside {PARKED:,} parked runs, against none",
            value=after / before,
            at_most=1.5,
            detail=f"{before:.2f} and {after:.2f} raw commits",
        ),
        Figure(
            name="a worker's look for work beside them, once a second",
            value=median(looks) * 1e3,
            unit="ms",
            at_most=50,
        ),
        Figure(name="the 50 newest that need a person", value=median(lists) * 1e3, unit="ms"),
        *await _followed(store, url),
        Figure(name="stored for a parked run's row", value=(full - empty) / PARKED, unit="B"),
    ]


async def _followed(store: PostgresStore, url: str) -> list[Figure]:
    """Measure a follower that comes to all these runs, and one that has told of them all."""
    marks = store.follower_cursors()
    started = perf_counter()
    await marks.acquire_leadership("late", holder="bench", ttl=timedelta(minutes=5))
    came = perf_counter() - started
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT midrun_attend('early', 'bench', 1, NULL)")  # a mark for every run
        db.execute("ANALYZE midrun_marks")  # as autovacuum would within the minute
    looks: dict[str, list[float]] = {"late": [], "early": []}
    for follower in [*looks] * 10:
        started = perf_counter()
        await marks.list_behind(follower, limit=256)
        looks[follower].append(perf_counter() - started)
    return [
        Figure(name="a follower comes to them", value=came * 1e3, unit="ms", at_most=1000),
        Figure(name="its look, every ten s", value=median(looks["late"]) * 1e3, unit="ms"),
        Figure(
            name="… of one that has told of them all",
            value=median(looks["early"]) * 1e3,
            unit="ms",
        ),
    ]


if __name__ == "__main__":
    sys.stdout.write(table(figures()) + "\n")
