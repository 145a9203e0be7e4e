"""Cost of a deletion for the appends beside it, in the same process.

    python -m bench.deletion [STORED DELETED]

By default 2,000 of 20,000 runs are deleted, each with ten entries. The bound is meant for
100,000 of 1,000,000. Windows with and without deletion alternate, so that both run under the
same load of the machine.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import anyio

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
CREATORS = 100
WINDOW_S = 0.4
APPEND_PAUSE_S = 0.001
TEXT = MessageReceived(text="x" * 400)
STARTED = RunStarted(agent="bench", task="measure")
APPENDED_RUN = RunId("run_appended")


class Gate:
    """Lets the deletion wait between two of its steps."""

    def __init__(self) -> None:
        self.is_open = anyio.Event()

    def install(self) -> None:
        """Add the gate to the pause after each step."""
        rest_after = deletion.StepPause.rest_after

        async def rest_and_wait(pause: deletion.StepPause, started: float) -> None:
            await rest_after(pause, started)
            await self.is_open.wait()

        deletion.StepPause.rest_after = rest_and_wait  # type: ignore[method-assign,assignment]  # a probe


async def fill(store: Store, stored: int, deleted: int) -> None:
    """Create completed runs; those that are deleted later have another agent."""
    numbers = iter(range(stored))

    async def create() -> None:
        for number in numbers:
            agent = "old" if number % (stored // deleted) == 0 else "kept"
            head = Head(phase=Phase.COMPLETED, agent=agent, owner="ann", labels=("x",))
            entries: list[Entry] = [STARTED, *[TEXT] * (ENTRIES - 1)]
            await store.create(RunId(f"run_{number}"), entries, head=head)

    async with anyio.create_task_group() as tasks:
        for _ in range(CREATORS):
            tasks.start_soon(create)


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


async def measure(store: Store, name: str, stored: int, deleted: int) -> Figure:
    """Fill the store, delete a part of it, and compare the appends."""
    await fill(store, stored, deleted)
    await store.record_heartbeat("p_bench", ttl=timedelta(hours=9))  # as if workers were alive
    gate, is_running, count = Gate(), True, 0
    gate.install()

    async def delete() -> None:
        nonlocal is_running, count
        await gate.is_open.wait()
        query = EndedQuery(before=read_wall_clock(), agent="old")
        count = await deletion.delete_matching(store, query, by="bench", reason="")
        await deletion.remove_all_leftovers(store)
        is_running = False

    started = perf_counter()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(delete)
        took = await measure_appends(store, gate, lambda: is_running)
    elapsed_s = perf_counter() - started
    assert count == deleted, count
    quiet, busy = (_percentile(took[deletes]) for deletes in (False, True))
    detail = (
        f"{deleted:,} of {stored:,} runs in {elapsed_s / 2:.0f} s; 95th percentile "
        f"{busy * 1e3:.2f} ms, without deletion {quiet * 1e3:.2f} ms"
    )
    figure = f"append beside a deletion, {name}"
    return Figure(name=figure, value=busy / quiet, at_most=1.2, detail=detail)


def _percentile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[len(seconds) * 95 // 100]


async def _measure_all(stored: int, deleted: int) -> list[Figure]:
    with TemporaryDirectory() as folder:
        sqlite = SqliteStore(Path(folder) / "runs.db")
        found = [await measure(sqlite, "SQLite", stored, deleted)]
        await sqlite.close()
    with running(durable=True) as server:
        postgres = await PostgresStore.open(server.url())
        found.append(await measure(postgres, "Postgres", stored, deleted))
        await postgres.close()
    return found


def figures(stored: int = STORED, deleted: int = DELETED) -> Sequence[Figure]:
    """Measure both stores."""
    return anyio.run(_measure_all, stored, deleted)


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    sys.exit(print_figures(figures(*sizes)))
