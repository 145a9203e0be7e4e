"""Live output reaches watchers in other processes that use the same SQLite file."""

import signal
from contextlib import aclosing
from pathlib import Path

import anyio
import httpx2
import pytest

from midrun import Midrun
from midrun.driver.delta import Delta
from midrun.runs.run import Run
from midrun.server import app
from midrun.stores.sqlite.relay import get_relay_folder
from tests.scenarios.live.child_process import ChildProcess, start_child
from tests.unit.server.conftest import serve_on_loopback
from tests.unit.server.sse_stream import open_event_stream

HTTP_TIMEOUT_SECONDS = 60

pytestmark = pytest.mark.usefixtures("_time_limit")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the SQLite file that the processes share."""
    return tmp_path / "runs.db"


async def collect_deltas_until(driver: ChildProcess, text: str, run: Run) -> list[Delta]:
    """Let the driver's model say `text` repeatedly until it arrives in the feed of `run`."""
    found: list[Delta] = []
    async with anyio.create_task_group() as tasks, aclosing(run.feed()) as feed:
        tasks.start_soon(_send_repeatedly, driver, text)
        async for item in feed:
            if isinstance(item, Delta):
                found.append(item)
                if text in item.text:
                    break
        tasks.cancel_scope.cancel()
    return found


async def _send_repeatedly(driver: ChildProcess, text: str) -> None:
    while True:
        await driver.send_lines(text)
        await anyio.sleep(0.01)  # repeated until the watcher has it


async def test_a_feed_shows_the_model_output_of_another_process(path: Path) -> None:
    """A page is often served by a process that does not drive the run."""
    async with start_child("drive", path) as driver:
        run_id = await driver.read_line()
        async with Midrun(f"sqlite:///{path}") as midrun:
            run = await midrun.get(run_id)
            deltas = await collect_deltas_until(driver, "hello", run)
            assert {(delta.run, delta.kind) for delta in deltas} == {(run_id, "text")}
            await driver.send_lines("end")
            assert "hello" in (await run.until("completed")).output


async def test_notes_and_not_responding_reach_a_feed_in_another_process(path: Path) -> None:
    """A person who watches another process must see that a call does not stop."""
    async with start_child("drive", path) as driver:
        run_id = await driver.read_line()
        async with Midrun(f"sqlite:///{path}") as midrun:
            run = await midrun.get(run_id)
            await driver.send_lines("use")
            notes = await collect_deltas_until(driver, "halfway", run)
            assert notes[-1].kind == "note"
            assert notes[-1].tool == "work"
            async with aclosing(run.feed()) as feed:
                await anext(feed)  # from here on the feed is subscribed
                await driver.send_lines("deaf")
                async for item in feed:
                    if isinstance(item, Delta) and item.text == "deaf":
                        await driver.send_lines("cancel")
                    if isinstance(item, Delta) and item.kind == "not_responding":
                        break


async def test_the_event_stream_of_a_server_that_does_not_drive_has_live_output(
    path: Path,
) -> None:
    """Live events have no id, as they have none for a run that the server drives."""
    async with start_child("drive", path) as driver:
        run_id = await driver.read_line()
        midrun = Midrun(f"sqlite:///{path}")
        token = "t" * 43
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            midrun,
            serve_on_loopback(app(midrun, token=token)) as port,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                headers=headers,
                timeout=HTTP_TIMEOUT_SECONDS,
            ) as client,
            open_event_stream(client, f"/v1/runs/{run_id}/events") as events,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_send_repeatedly, driver, "hello")
            async for event in events:
                if event.event == "model.delta":
                    assert isinstance(event.data, dict)
                    assert "hello" in str(event.data["text"])
                    assert event.id is None
                    break
            tasks.cancel_scope.cancel()


async def test_each_watcher_receives_only_the_output_of_its_run(path: Path) -> None:
    """Two processes drive a run each, and two processes watch."""
    async with (
        start_child("drive", path, "one") as one,
        start_child("drive", path, "two") as two,
    ):
        first, second = await one.read_line(), await two.read_line()
        async with (
            Midrun(f"sqlite:///{path}") as midrun,
            start_child("watch", path, first) as watcher,
        ):
            assert await watcher.read_line() == "watching"
            for driver, run in ((one, first), (two, second)):
                deltas = await collect_deltas_until(driver, "words", await midrun.get(run))
                assert {delta.run for delta in deltas} == {run}
            await two.send_lines("two")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_send_repeatedly, one, "three")
                while "three" not in (line := await watcher.read_line()):
                    assert "two" not in line
                tasks.cancel_scope.cancel()


async def test_a_frozen_watcher_slows_neither_the_run_nor_other_watchers(path: Path) -> None:
    """Output for the frozen process is dropped; the run completes."""
    async with start_child("drive", path) as driver:
        run_id = await driver.read_line()
        async with (
            start_child("watch", path, run_id) as frozen,
            Midrun(f"sqlite:///{path}") as midrun,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_send_repeatedly, driver, "x")
                while "text x" not in await frozen.read_line():
                    pass
                tasks.cancel_scope.cancel()
            frozen.process.send_signal(signal.SIGSTOP)
            run = await midrun.get(run_id)
            for _ in range(20):
                await driver.send_lines("y" * 50_000)
            assert await collect_deltas_until(driver, "still heard", run)
            await driver.send_lines("end", "wait")
            assert await driver.read_line() == "completed"


async def test_the_files_of_a_killed_watcher_are_removed(path: Path) -> None:
    """The sender removes its socket and link; the last process removes the folder."""
    async with start_child("drive", path) as driver:
        run_id = await driver.read_line()
        async with start_child("watch", path, run_id) as watcher:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_send_repeatedly, driver, "x")
                while "text x" not in await watcher.read_line():
                    pass
                tasks.cancel_scope.cancel()
            files = set(get_relay_folder(path).iterdir())
            assert len(files) == 2  # a socket, and its link to the run
            watcher.process.kill()
            await watcher.process.wait()
        async with Midrun(f"sqlite:///{path}") as midrun:
            assert await collect_deltas_until(driver, "hello", await midrun.get(run_id))
            assert not files & set(get_relay_folder(path).iterdir())
        assert not get_relay_folder(path).exists()
