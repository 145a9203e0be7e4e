"""Worker processes that are frozen while other workers take over their runs.

SIGSTOP stops the process during a tool call. The worker that takes over has a clock by which
the lease has expired, unless the test is about the lease itself.
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
from tests.crash.child import LONG_LEASE
from tests.crash.conftest import ChildProcess, start_child
from tests.crash.recording_tools import make_waiting_agent, read_actions
from tests.support.conditions import make_clock_ahead, wait_until
from tests.support.store_choice import get_store_url
from tests.unit.driver.subprocess.process_calls import process_exists

SHORT_LEASE = timedelta(seconds=4)
"""For tests that wait for its end; long enough for a slow disk."""

HOUR_AHEAD = Environment(lease=timedelta(hours=6), clock=make_clock_ahead(hours=1))
"""For the second worker: the first lease has expired, its own is valid by both clocks."""


def open_second_worker(path: Path, tool: str, environment: Environment = HOUR_AHEAD) -> Midrun:
    """Return a second `Midrun` with the same agent on the same store."""
    agent = make_waiting_agent(tool, path.parent)
    return Midrun(get_store_url(path), agents=[agent], outside=environment)


class Gates:
    """Pipes at which the first and the second attempt of a blocking call wait."""

    def __init__(self, folder: Path) -> None:
        paths = [folder / f"gate-{attempt}" for attempt in (1, 2)]
        for path in paths:
            os.mkfifo(path)
        self._files = [os.open(path, os.O_RDWR) for path in paths]

    def open(self, attempt: int) -> None:
        """Let the attempt pass, now or when it arrives."""
        os.write(self._files[attempt - 1], b"\n")

    def close(self) -> None:
        for file in self._files:
            os.close(file)


@pytest.fixture
def gates(path: Path) -> Iterator[Gates]:
    """Return the closed gates of the test's folder."""
    gates = Gates(path.parent)
    yield gates
    gates.close()


async def wait_for_actions(path: Path, *names: str) -> None:
    """Wait until the recorded actions have these names."""
    await wait_until(
        lambda: tuple(action.name for action in read_actions(path.parent)) == names
    )


async def wait_for_entry(
    midrun: Midrun, run: Run, condition: Callable[[Record], bool]
) -> Record:
    """Wait for the first entry that fulfils the condition."""
    while True:
        for record in await midrun.store.read(run.id):
            if condition(record):
                return record
        await anyio.sleep(0.005)


async def wait_for_completion(path: Path, run_id: str) -> Sequence[Record]:
    """Wait until the run has completed, without driving it; return its journal."""
    async with Midrun(get_store_url(path)) as midrun:
        run = await midrun.get(run_id)
        await run.until("completed")
        return await midrun.store.read(run.id)


def is_second_lease(record: Record) -> bool:
    """Return whether the entry is the second lease of the run."""
    return isinstance(record.entry, LeaseTaken) and record.entry.epoch == 2


async def shut_down(process: ChildProcess) -> None:
    """Send SIGTERM and check that the process shuts down in order."""
    process.terminate()
    assert await process.read_line() == "left"
    assert await process.wait() == 0


async def test_a_thawed_worker_stops_its_tool_and_starts_no_call(path: Path) -> None:
    """The second worker repeats the call under the same key.

    The result of the first is not used.
    """
    with start_child("drive", path.parent, "linger", LONG_LEASE.total_seconds()) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "linger-begun")
        process.freeze()
        async with open_second_worker(path, "linger") as midrun:
            run = await midrun.get(run_id)
            await wait_for_actions(path, "linger-begun", "linger-begun")
            process.thaw()
            await wait_for_actions(path, "linger-begun", "linger-begun", "linger-stopped")
            await anyio.Path(path.parent / "open").touch()
            await run.until("completed")
            records = await midrun.store.read(run.id)
        await shut_down(process)
    actions = read_actions(path.parent)
    assert {action.key for action in actions if action.name != "charge"} == {actions[0].key}
    assert [action.name for action in actions if action.pid == process.pid] == [
        "linger-begun",
        "linger-stopped",
    ]
    taken_at = next(r.seq for r in records if is_second_lease(r))
    assert {r.epoch for r in records if r.seq > taken_at} <= {2, None}


async def test_a_late_result_settles_an_unknown_call(path: Path, gates: Gates) -> None:
    """The worker was slow, not dead: no person must answer, and the call is not repeated."""
    with start_child("drive", path.parent, "dwell", LONG_LEASE.total_seconds()) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "dwell-begun")
        process.freeze()
        async with open_second_worker(path, "dwell") as midrun:
            run = await midrun.get(run_id)
            view = await run.until("waiting")
            assert [ask.kind for ask in view.asks] == ["unsure"]
        process.thaw()
        gates.open(1)
        records = await wait_for_completion(path, run_id)
        await shut_down(process)
    late = [r.entry for r in records if isinstance(r.entry, LateResult)]
    assert [(entry.attempt, entry.epoch, entry.result) for entry in late] == [(1, 1, "dwelt 1")]
    assert [action.name for action in read_actions(path.parent)] == [
        "dwell-begun",
        "dwell",
        "charge",
    ]


async def test_a_late_result_is_ignored_once_the_call_is_repeated(
    path: Path, gates: Gates
) -> None:
    """The result of the second attempt counts; the first is recorded only."""
    with start_child(
        "drive", path.parent, "dwell_again", LONG_LEASE.total_seconds()
    ) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "dwell-begun")
        process.freeze()
        async with open_second_worker(path, "dwell_again") as midrun:
            run = await midrun.get(run_id)
            await wait_for_actions(path, "dwell-begun", "dwell-begun")
            process.thaw()
            gates.open(1)
            await wait_for_entry(midrun, run, lambda r: isinstance(r.entry, LateResult))
            view = await run.view()
            assert [(call.tool, call.attempt) for call in view.in_flight] == [
                ("dwell_again", 2)
            ]
            gates.open(2)
            await run.until("completed")
            records = await midrun.store.read(run.id)
        await shut_down(process)
    results = [getattr(r.entry, "result", None) for r in records]
    assert results.index("dwelt 1") < results.index("dwelt 2")
    keys = {action.key for action in read_actions(path.parent) if action.name == "dwell"}
    assert len(keys) == 1


async def test_the_result_of_a_blocking_tool_of_a_frozen_worker_is_recorded(
    path: Path, gates: Gates
) -> None:
    """By the real clock the lease is valid, so the zygote lets the tool run."""
    with start_child("drive", path.parent, "labour", LONG_LEASE.total_seconds()) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "labour-begun")
        process.freeze()
        async with open_second_worker(path, "labour") as midrun:
            run = await midrun.get(run_id)
            await run.until("waiting")
        gates.open(1)
        await wait_for_actions(path, "labour-begun", "labour")
        process.thaw()
        records = await wait_for_completion(path, run_id)
        await shut_down(process)
    assert [r.entry.result for r in records if isinstance(r.entry, LateResult)] == ["laboured"]
    assert [action.name for action in read_actions(path.parent)] == [
        "labour-begun",
        "labour",
        "charge",
    ]


@pytest.mark.slow
async def test_a_blocking_tool_of_a_frozen_worker_is_killed_before_its_run_is_cancelled(
    path: Path, gates: Gates
) -> None:
    """The tool's own process is not frozen and could act after *cancelled* is shown."""
    with start_child("drive", path.parent, "labour", SHORT_LEASE.total_seconds()) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "labour-begun")
        (first_action,) = read_actions(path.parent)
        async with open_second_worker(path, "labour", Environment(lease=LONG_LEASE)) as midrun:
            run = await midrun.get(run_id)
            process.freeze()
            await run.cancel()
            await run.until("cancelled")
            assert not process_exists(first_action.pid)
            gates.open(1)
        process.thaw()
        await shut_down(process)
    assert [action.name for action in read_actions(path.parent)] == ["labour-begun"]


async def test_an_answer_settles_the_call_of_a_worker_that_stays_frozen(
    path: Path, gates: Gates
) -> None:
    """The answer is that the call did not happen, so the second worker repeats it."""
    with start_child("drive", path.parent, "dwell", LONG_LEASE.total_seconds()) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "dwell-begun")
        process.freeze()
        async with open_second_worker(path, "dwell") as midrun:
            run = await midrun.get(run_id)
            await run.until("waiting")
            await run.answer("no", actor="ada")
            gates.open(2)
            await run.until("completed")
    assert [action.name for action in read_actions(path.parent)] == [
        *("dwell-begun", "dwell-begun", "dwell", "charge")
    ]


@pytest.mark.slow
async def test_an_expired_lease_is_taken_by_another_worker(path: Path) -> None:
    """The lease expires by the store's clock; no clock is ahead."""
    with start_child("drive", path.parent, "linger", SHORT_LEASE.total_seconds()) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "linger-begun")
        async with open_second_worker(path, "linger", Environment(lease=LONG_LEASE)) as midrun:
            run = await midrun.get(run_id)
            process.freeze()
            second_lease = await wait_for_entry(midrun, run, is_second_lease)
            await wait_for_actions(path, "linger-begun", "linger-begun")
            process.thaw()
            await wait_for_actions(path, "linger-begun", "linger-begun", "linger-stopped")
            await anyio.Path(path.parent / "open").touch()
            await run.until("completed")
            records = await midrun.store.read(run.id)
        await shut_down(process)
    assert [r.entry.call for r in records if isinstance(r.entry, CallUnknown)] == ["c2"]
    assert {action.key for action in read_actions(path.parent)[:4]} == {
        make_call_key(run.id, CallId("c2"))
    }
    assert {r.epoch for r in records if r.seq > second_lease.seq} <= {2, None}


@pytest.mark.slow
async def test_a_worker_that_was_frozen_beyond_its_lease_takes_its_run_again(
    path: Path,
) -> None:
    """No other worker took over, but the worker cannot know that and drops its calls."""
    with start_child("drive", path.parent, "linger", SHORT_LEASE.total_seconds()) as process:
        run_id = await process.read_line()
        await wait_for_actions(path, "linger-begun")
        async with Midrun(get_store_url(path)) as midrun:
            run = await midrun.get(run_id)
            process.freeze()
            while await midrun.store.list_holders():  # noqa: ASYNC110 - only the store's clock decides
                await anyio.sleep(0.01)
            process.thaw()
            await wait_for_actions(path, "linger-begun", "linger-stopped", "linger-begun")
            await anyio.Path(path.parent / "open").touch()
            await run.until("completed")
            records = await midrun.store.read(run.id)
        await shut_down(process)
    assert [r.entry.epoch for r in records if isinstance(r.entry, LeaseTaken)] == [1, 2]
    assert {action.key for action in read_actions(path.parent)[:4]} == {
        read_actions(path.parent)[0].key
    }
