"""Cost of a deletion for the appends beside it, in the same process.

    python -m bench.deletion [STORED DELETED [SECONDS]]

By default 2,000 of 20,000 runs are deleted, each with ten entries. Windows with and without
deletion alternate, so that both run under the same load of the machine.

The bound is meant for 100,000 of 1,000,000: `python -m bench.deletion 1000000 100000 120`. The
stock is copied in SQL, from two runs, and needs about 5 GB for each store. A deletion leaves
room for writers, so that this one would take half an hour; SECONDS ends the measurement of each
store before that, and the figure says how many runs were deleted.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Final

import anyio
import anyio.to_thread
import apsw
import psycopg

from bench.figures import Figure, print_figures
from midrun.core.entries import Entry, MessageReceived, RunStarted
from midrun.core.ids import RunId
from midrun.core.run_head import Head
from midrun.core.values import Phase
from midrun.driver import deletion
from midrun.ports.environment import read_wall_clock
from midrun.ports.store import EndedQuery, Store
from midrun.stores.postgres.store import PostgresStore
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.postgres import running

STORED, DELETED = 20_000, 2_000
ENTRIES = 10
BATCH_RUNS = 20_000
STEPS_PER_PAGE = 20  # of the removal of entries, after each page of deleted runs
WINDOW_S = 0.4
APPEND_PAUSE_S = 0.001
TEXT = MessageReceived(text="x" * 400)
STARTED = RunStarted(agent="bench", task="measure")
APPENDED_RUN = RunId("run_appended")
WAIT_AFTER_STEP: Final = deletion.StepPause.wait_after_step

SQLITE_COPIES: Final = (
    """
    INSERT INTO entries (no, seq, line, hash)
    SELECT c.no, e.seq, e.line, e.hash
    FROM runs AS c JOIN runs AS t ON t.run = 'template_' || c.agent
    JOIN entries AS e ON e.no = t.no WHERE c.no > ? ORDER BY c.no, e.seq
    """,
    "INSERT INTO labels (label, no) SELECT 'x', no FROM runs WHERE no > ?",
    """
    INSERT INTO search (rowid, words) SELECT c.no, s.words
    FROM runs AS c JOIN runs AS t ON t.run = 'template_' || c.agent
    JOIN search AS s ON s.rowid = t.no WHERE c.no > ?
    """,
)
POSTGRES_COPIES: Final = (
    """
    INSERT INTO midrun_entries (no, seq, line, hash)
    SELECT c.no, e.seq, e.line, e.hash
    FROM midrun_runs AS c JOIN midrun_runs AS t ON t.run = 'template_' || c.agent
    JOIN midrun_entries AS e ON e.no = t.no WHERE c.no > %s
    """,
    "INSERT INTO midrun_labels (label, no) SELECT 'x', no FROM midrun_runs WHERE no > %s",
    """
    INSERT INTO midrun_search (no, words) SELECT c.no, s.words
    FROM midrun_runs AS c JOIN midrun_runs AS t ON t.run = 'template_' || c.agent
    JOIN midrun_search AS s ON s.no = t.no WHERE c.no > %s
    """,
)
"""Copy the entries, labels and words of the templates to the runs after a number."""


class Gate:
    """Lets the deletion wait between two of its steps."""

    def __init__(self) -> None:
        self.is_open = anyio.Event()

    def install(self) -> None:
        """Add the gate to the pause after each step, in place of an earlier gate."""

        async def rest_and_wait(pause: deletion.StepPause, started: float) -> None:
            await WAIT_AFTER_STEP(pause, started)
            await self.is_open.wait()

        deletion.StepPause.wait_after_step = rest_and_wait  # type: ignore[method-assign,assignment]  # a probe


async def create_templates(store: Store) -> None:
    """Create the two completed runs that are copied: one to delete, and one to keep."""
    entries: list[Entry] = [STARTED, *[TEXT] * (ENTRIES - 1)]
    for agent in ("old", "kept"):
        head = Head(phase=Phase.COMPLETED, agent=agent, owner="ann", labels=("x",))
        await store.create(RunId(f"template_{agent}"), entries, head=head)


def list_batches(stored: int) -> list[tuple[int, int]]:
    """Return the first and the last number of each batch of copies."""
    starts = range(0, stored, BATCH_RUNS)
    return [(first, min(first + BATCH_RUNS, stored) - 1) for first in starts]


def fill_sqlite(path: Path, stored: int, deleted: int) -> None:
    """Store copies of the templates; every so many is one of a run to delete."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(60_000)
    columns = [str(row[1]) for row in db.execute("PRAGMA table_info(runs)")]
    columns.remove("no")
    chosen = ", ".join("'run_' || i" if name == "run" else f"t.{name}" for name in columns)
    for first, last in list_batches(stored):
        db.execute("BEGIN IMMEDIATE")
        end = db.execute("SELECT max(no) FROM runs").get
        db.execute(
            "WITH RECURSIVE n (i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)"  # noqa: S608 - its own columns
            f" INSERT INTO runs ({', '.join(columns)}) SELECT {chosen} FROM n"
            " JOIN runs AS t ON t.run = iif(i % ?3 = 0, 'template_old', 'template_kept')",
            (first, last, stored // deleted),
        )
        for statement in SQLITE_COPIES:
            db.execute(statement, (end,))
        db.execute("COMMIT")
    db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    db.close()


def fill_postgres(url: str, stored: int, deleted: int) -> None:
    """Store copies of the templates, as `fill_sqlite`."""
    with psycopg.connect(url, autocommit=True) as db:
        columns = [
            row[0]
            for row in db.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = 'midrun_runs'::regclass"
                " AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"
                " AND attidentity = ''"
            )
        ]
        chosen = ", ".join("'run_' || i" if name == "run" else f"t.{name}" for name in columns)
        for first, last in list_batches(stored):
            row = db.execute("SELECT max(no) FROM midrun_runs").fetchone()
            assert row is not None
            db.execute(
                f"INSERT INTO midrun_runs ({', '.join(columns)}) SELECT {chosen}"  # noqa: S608 - its own columns
                " FROM generate_series(%s::int, %s::int) AS i JOIN midrun_runs AS t"
                " ON t.run = CASE i %% %s WHEN 0 THEN 'template_old' ELSE 'template_kept' END",
                (first, last, stored // deleted),
            )
            for statement in POSTGRES_COPIES:
                db.execute(statement, row)
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")


async def measure_appends(
    store: Store, gate: Gate, is_running: Callable[[], bool]
) -> dict[bool, list[float]]:
    """Append until the deletion has ended; return the durations without it and with it."""
    head = Head(phase=Phase.QUEUED, agent="bench")
    seq = (await store.create(APPENDED_RUN, [STARTED], head=head)).seq
    took: dict[bool, list[float]] = {False: [], True: []}
    deletes, window_end = False, perf_counter() + WINDOW_S
    while is_running():
        if perf_counter() >= window_end:
            deletes, window_end = not deletes, perf_counter() + WINDOW_S
            if deletes:
                gate.is_open.set()
            else:
                gate.is_open = anyio.Event()
        started = perf_counter()
        appended = await store.append(APPENDED_RUN, [TEXT], after=seq, lease=None, head=head)
        took[deletes].append(perf_counter() - started)
        seq = appended.seq
        await anyio.sleep(APPEND_PAUSE_S)
    return took


async def count_completed(store: Store) -> int:
    """Count the runs that are stored and not deleted."""
    return (await store.count_runs_by_phase())[Phase.COMPLETED]


async def measure(store: Store, name: str, deleted: int, max_s: float) -> Figure:
    """Delete a part of a full store, and compare the appends beside it."""
    await store.record_heartbeat("p_bench", ttl=timedelta(hours=9))  # as if workers were alive
    gate, is_running, before = Gate(), True, await count_completed(store)
    gate.install()

    async def delete() -> None:
        nonlocal is_running
        await gate.is_open.wait()
        query = EndedQuery(before=read_wall_clock(), agent="old")
        with anyio.move_on_after(max_s):
            while await deletion.delete_matching(
                store, query, by="bench", reason="", max_runs=deletion.PAGE_MAX_RUNS
            ):
                # With the entries of these runs, as a worker does it meanwhile.
                await deletion.remove_all_leftovers(store, max_steps=STEPS_PER_PAGE)
            await deletion.remove_all_leftovers(store)
        is_running = False

    started = perf_counter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delete)
        took = await measure_appends(store, gate, lambda: is_running)
    elapsed_s = perf_counter() - started
    count = before - await count_completed(store)
    # With the template; a single batch would mean that the deletion stood still.
    assert deletion.BATCH_MAX_RUNS < count <= deleted + 1, count
    quiet, busy = (_percentile(took[deletes]) for deletes in (False, True))
    detail = (
        f"{count:,} of {deleted:,} runs in {elapsed_s / 2:.0f} s; 95th percentile "
        f"{busy * 1e3:.2f} ms, without deletion {quiet * 1e3:.2f} ms, of "
        f"{len(took[True]):,} and {len(took[False]):,} appends"
    )
    figure = f"append beside a deletion, {name}"
    return Figure(name=figure, value=busy / quiet, at_most=1.2, detail=detail)


def _percentile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) * 95 // 100]


async def _measure_all(stored: int, deleted: int, max_s: float) -> list[Figure]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.db"
        sqlite = SqliteStore(path)
        await create_templates(sqlite)
        await anyio.to_thread.run_sync(fill_sqlite, path, stored, deleted)
        found = [await measure(sqlite, f"SQLite, {stored:,} stored", deleted, max_s)]
        await sqlite.close()
    with running(durable=True) as server:
        url = server.url()
        postgres = await PostgresStore.open(url)
        await create_templates(postgres)
        await anyio.to_thread.run_sync(fill_postgres, url, stored, deleted)
        found.append(await measure(postgres, f"Postgres, {stored:,} stored", deleted, max_s))
        await postgres.close()
    return found


def figures(
    stored: int = STORED, deleted: int = DELETED, max_s: float = inf
) -> Sequence[Figure]:
    """Measure both stores, each for at most `max_s` seconds."""
    return anyio.run(_measure_all, stored, deleted, max_s)


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    sys.exit(print_figures(figures(*sizes)))
