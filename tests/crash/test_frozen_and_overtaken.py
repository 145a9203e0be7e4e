"""A process that was frozen does not know it. Others take over; it must add nothing then.

The frozen ones are real processes, stopped by SIGSTOP in the middle of a tool. Who takes over
has a clock by which the lease is over, unless the test is about the lease itself.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Midrun, Run
from midrun.core.entries import CallUnknown, LateResult, LeaseTaken, Record
from midrun.core.ids import CallId, make_call_key
from midrun.ports.environment import Environment
from tests.crash.conftest import Process, child
from tests.crash.deeds import deeds, waiting
from tests.crash.facts import becomes, later
from tests.support.store_choice import kept_at
from tests.unit.driver.subprocess.scene import is_there

LONG = timedelta(seconds=60)
SHORT = timedelta(seconds=4)
"""For tests that wait for its end; nobody loses it before because the disk is slow."""

AN_HOUR_LATER = Environment(lease=timedelta(hours=6), clock=later(hours=1))
"""For whoever takes over: the frozen one's lease is over, its own is good by both clocks."""


def overtaking(path: Path, tool: str, outside: Environment = AN_HOUR_LATER) -> Midrun:
    """Return another process's worth of the same agent on the same file."""
    agent = waiting(tool, path.parent)
    return Midrun(kept_at(path), agents=[agent], outside=outside)


class Gates:
    """Where the first and the second attempt at a blocking call wait to be let on."""

    def __init__(self, folder: Path) -> None:
        paths = [folder / f"gate-{attempt}" for attempt in (1, 2)]
        for path in paths:
            os.mkfifo(path)
        self._files = [os.open(path, os.O_RDWR) for path in paths]

    def open(self, attempt: int) -> None:
        """Let it pass, now or as soon as it comes there."""
        os.write(self._files[attempt - 1], b"\n")

    def close(self) -> None:
        """Let go of them."""
        for file in self._files:
            os.close(file)


@pytest.fixture
def gates(path: Path) -> Iterator[Gates]:
    """Give the gates of the test's folder, all shut."""
    gates = Gates(path.parent)
    yield gates
    gates.close()


async def happened(path: Path, *whats: str) -> None:
    """Wait until the deeds are these."""
    await becomes(lambda: tuple(deed.what for deed in deeds(path.parent)) == whats)


async def until(midrun: Midrun, run: Run, fact: Callable[[Record], bool]) -> Record:
    """Wait for an entry."""
    while True:
        for record in await midrun.store.read(run.id):
            if fact(record):
                return record
        await anyio.sleep(0.005)


async def completed(path: Path, run_id: str) -> Sequence[Record]:
    """Wait until the run has completed, without driving it, and return its journal."""
    async with Midrun(kept_at(path)) as watching:
        run = await watching.get(run_id)
        await run.until("completed")
        return await watching.store.read(run.id)


def second_epoch(record: Record) -> bool:
    """Tell whether this is where somebody took over."""
    return isinstance(record.entry, LeaseTaken) and record.entry.epoch == 2


async def left(process: Process) -> None:
    """Have the process leave, and see that it does so in good order."""
    process.terminate()
    assert await process.hear() == "left"
    assert await process.end() == 0


async def test_a_zombie_stops_its_tool_and_starts_nothing_more(path: Path) -> None:
    """The call is made again elsewhere under its key; the zombie's own end says nothing."""
    with child("drive", path.parent, "linger", LONG.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "linger-begun")
        process.freeze()
        async with overtaking(path, "linger") as midrun:
            run = await midrun.get(run_id)
            await happened(path, "linger-begun", "linger-begun")
            process.thaw()
            await happened(path, "linger-begun", "linger-begun", "linger-stopped")
            await anyio.Path(path.parent / "open").touch()
            await run.until("completed")
            records = await midrun.store.read(run.id)
        await left(process)
    done = deeds(path.parent)
    assert {deed.key for deed in done if deed.what != "charge"} == {done[0].key}
    assert [d.what for d in done if d.pid == process.pid] == ["linger-begun", "linger-stopped"]
    taken = next(r.seq for r in records if second_epoch(r))
    assert {r.epoch for r in records if r.seq > taken} <= {2, None}


async def test_a_late_result_settles_what_nobody_knew(path: Path, gates: Gates) -> None:
    """Slow, not dead: nobody needs to answer, and nobody makes the call again."""
    with child("drive", path.parent, "dwell", LONG.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "dwell-begun")
        process.freeze()
        async with overtaking(path, "dwell") as midrun:
            run = await midrun.get(run_id)
            view = await run.until("waiting")
            assert [ask.kind for ask in view.asks] == ["unsure"]
        process.thaw()
        gates.open(1)
        records = await completed(path, run_id)
        await left(process)
    late = [r.entry for r in records if isinstance(r.entry, LateResult)]
    assert [(entry.attempt, entry.epoch, entry.result) for entry in late] == [(1, 1, "dwelt 1")]
    assert [deed.what for deed in deeds(path.parent)] == ["dwell-begun", "dwell", "charge"]


async def test_a_late_result_changes_nothing_once_the_call_is_made_again(
    path: Path, gates: Gates
) -> None:
    """The second attempt is what counts; the first is kept as evidence and no more."""
    with child("drive", path.parent, "dwell_again", LONG.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "dwell-begun")
        process.freeze()
        async with overtaking(path, "dwell_again") as midrun:
            run = await midrun.get(run_id)
            await happened(path, "dwell-begun", "dwell-begun")
            process.thaw()
            gates.open(1)
            await until(midrun, run, lambda r: isinstance(r.entry, LateResult))
            view = await run.view()
            assert [(call.tool, call.attempt) for call in view.in_flight] == [
                ("dwell_again", 2)
            ]
            gates.open(2)
            await run.until("completed")
            records = await midrun.store.read(run.id)
        await left(process)
    results = [getattr(r.entry, "result", None) for r in records]
    assert results.index("dwelt 1") < results.index("dwelt 2")
    keys = {deed.key for deed in deeds(path.parent) if deed.what == "dwell"}
    assert len(keys) == 1


async def test_a_blocking_tool_of_a_frozen_process_is_heard_of_in_the_end(
    path: Path, gates: Gates
) -> None:
    """The worker that takes over has a clock an hour ahead; by the lease the tool may go on."""
    with child("drive", path.parent, "labour", LONG.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "labour-begun")
        process.freeze()
        async with overtaking(path, "labour") as midrun:
            run = await midrun.get(run_id)
            await run.until("waiting")
        gates.open(1)
        await happened(path, "labour-begun", "labour")
        process.thaw()
        records = await completed(path, run_id)
        await left(process)
    assert [r.entry.result for r in records if isinstance(r.entry, LateResult)] == ["laboured"]
    assert [deed.what for deed in deeds(path.parent)] == ["labour-begun", "labour", "charge"]


@pytest.mark.slow
async def test_a_blocking_tool_of_a_frozen_process_is_dead_before_its_run_is_cancelled(
    path: Path, gates: Gates
) -> None:
    """Only the worker is frozen. The tool's own process could act after *cancelled* is said."""
    with child("drive", path.parent, "labour", SHORT.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "labour-begun")
        (begun,) = deeds(path.parent)
        async with overtaking(path, "labour", Environment(lease=LONG)) as midrun:
            run = await midrun.get(run_id)
            process.freeze()
            await run.cancel()
            await run.until("cancelled")
            assert not is_there(begun.pid)
            gates.open(1)
        process.thaw()
        await left(process)
    assert [deed.what for deed in deeds(path.parent)] == ["labour-begun"]


async def test_an_answer_counts_even_if_the_zombie_never_wakes(
    path: Path, gates: Gates
) -> None:
    """A person says that it did not happen: it is made again, and is not the zombie's."""
    with child("drive", path.parent, "dwell", LONG.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "dwell-begun")
        process.freeze()
        async with overtaking(path, "dwell") as midrun:
            run = await midrun.get(run_id)
            await run.until("waiting")
            await run.answer("no", actor="ada")
            gates.open(2)
            await run.until("completed")
    assert [deed.what for deed in deeds(path.parent)] == [
        *("dwell-begun", "dwell-begun", "dwell", "charge")
    ]


@pytest.mark.slow
async def test_a_lease_that_runs_out_is_taken_by_whoever_is_alive(path: Path) -> None:
    """By the store's clock, without any help: a real freeze, a real lease."""
    with child("drive", path.parent, "linger", SHORT.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "linger-begun")
        async with overtaking(path, "linger", Environment(lease=LONG)) as midrun:
            run = await midrun.get(run_id)
            process.freeze()
            taken = await until(midrun, run, second_epoch)
            await happened(path, "linger-begun", "linger-begun")
            process.thaw()
            await happened(path, "linger-begun", "linger-begun", "linger-stopped")
            await anyio.Path(path.parent / "open").touch()
            await run.until("completed")
            records = await midrun.store.read(run.id)
        await left(process)
    assert [r.entry.call for r in records if isinstance(r.entry, CallUnknown)] == ["c2"]
    assert {deed.key for deed in deeds(path.parent)[:4]} == {
        make_call_key(run.id, CallId("c2"))
    }
    assert {r.epoch for r in records if r.seq > taken.seq} <= {2, None}


@pytest.mark.slow
async def test_a_process_frozen_past_its_lease_drops_everything_and_takes_it_anew(
    path: Path,
) -> None:
    """Nobody else was there to take over, but it cannot know that."""
    with child("drive", path.parent, "linger", SHORT.total_seconds()) as process:
        run_id = await process.hear()
        await happened(path, "linger-begun")
        async with Midrun(kept_at(path)) as watching:
            run = await watching.get(run_id)
            process.freeze()
            while await watching.store.list_holders():  # noqa: ASYNC110 - only its clock tells
                await anyio.sleep(0.01)
            process.thaw()
            await happened(path, "linger-begun", "linger-stopped", "linger-begun")
            await anyio.Path(path.parent / "open").touch()
            await run.until("completed")
            records = await watching.store.read(run.id)
        await left(process)
    assert [r.entry.epoch for r in records if isinstance(r.entry, LeaseTaken)] == [1, 2]
    assert {deed.key for deed in deeds(path.parent)[:4]} == {deeds(path.parent)[0].key}
