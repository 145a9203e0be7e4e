"""What is live reaches watchers in other processes, real ones, on the same file."""

import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import anyio
import httpx2
import pytest

from midrun import Midrun
from midrun.driver.live import Delta
from midrun.runs.run import Run
from midrun.server import app
from midrun.stores.sqlite.relay import get_relay_folder
from tests.scenarios.live.processes import Other, other
from tests.unit.server.conftest import listening
from tests.unit.server.listening import heard

PATIENCE = 60


@pytest.fixture(autouse=True)
async def _bounded() -> AsyncIterator[None]:
    with anyio.fail_after(PATIENCE):
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give the file that both processes have."""
    return tmp_path / "runs.db"


async def told_until(driver: Other, words: str, run: Run) -> list[Delta]:
    """Have the driver's model say `words` over and over until they are heard here."""
    found: list[Delta] = []
    async with anyio.create_task_group() as tasks, aclosing(run.feed()) as feed:
        tasks.start_soon(_repeat, driver, words)
        async for item in feed:
            if isinstance(item, Delta):
                found.append(item)
                if words in item.text:
                    break
        tasks.cancel_scope.cancel()
    return found


async def _repeat(driver: Other, words: str) -> None:
    while True:
        await driver.tell(words)
        await anyio.sleep(0.01)  # it is repeated until a fact is there, not waited for


async def test_a_feed_shows_what_a_model_says_in_another_process(path: Path) -> None:
    """A page is often served by another process than the one that drives."""
    async with other("drive", path) as driver:
        run_id = await driver.hear()
        async with Midrun(f"sqlite:///{path}") as here:
            run = await here.get(run_id)
            deltas = await told_until(driver, "hello", run)
            assert {(delta.run, delta.kind) for delta in deltas} == {(run_id, "text")}
            await driver.tell("end")
            assert "hello" in (await run.until("completed")).output


async def test_notes_and_signs_of_life_come_too(path: Path) -> None:
    """A person who watches from elsewhere must see that a call does not stop."""
    async with other("drive", path) as driver:
        run_id = await driver.hear()
        async with Midrun(f"sqlite:///{path}") as here:
            run = await here.get(run_id)
            await driver.tell("use")
            notes = await told_until(driver, "halfway", run)
            assert notes[-1].kind == "note"
            assert notes[-1].tool == "work"
            async with aclosing(run.feed()) as feed:
                await anext(feed)  # from here on it watches
                await driver.tell("deaf")
                async for item in feed:
                    if isinstance(item, Delta) and item.text == "deaf":
                        await driver.tell("cancel")
                    if isinstance(item, Delta) and item.kind == "not_responding":
                        break


async def test_the_stream_of_a_server_that_does_not_drive_has_them(path: Path) -> None:
    """As they are there for a run that the server drives: without an id."""
    async with other("drive", path) as driver:
        run_id = await driver.hear()
        here = Midrun(f"sqlite:///{path}")
        token = "t" * 43
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            here,
            listening(app(here, token=token)) as port,
            httpx2.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE
            ) as client,
            heard(client, f"/v1/runs/{run_id}/events") as events,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(_repeat, driver, "hello")
            async for event in events:
                if event.event == "model.delta":
                    assert isinstance(event.data, dict)
                    assert "hello" in str(event.data["text"])
                    assert event.id is None
                    break
            tasks.cancel_scope.cancel()


async def test_several_drive_and_several_watch(path: Path) -> None:
    """Each hears of the runs that it watches, from whichever process, and of no other."""
    async with other("drive", path, "one") as one, other("drive", path, "two") as two:
        first, second = await one.hear(), await two.hear()
        async with (
            Midrun(f"sqlite:///{path}") as here,
            other("watch", path, first) as there,
        ):
            assert await there.hear() == "here"
            for driver, run in ((one, first), (two, second)):
                deltas = await told_until(driver, "words", await here.get(run))
                assert {delta.run for delta in deltas} == {run}
            await two.tell("two")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_repeat, one, "three")
                while "three" not in (line := await there.hear()):
                    assert "two" not in line
                tasks.cancel_scope.cancel()


async def test_a_watcher_that_is_frozen_slows_nobody(path: Path) -> None:
    """It takes nothing any more, and loses what it was to be told. Others lose nothing."""
    async with other("drive", path) as driver:
        run_id = await driver.hear()
        async with other("watch", path, run_id) as frozen, Midrun(f"sqlite:///{path}") as here:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_repeat, driver, "x")
                while "text x" not in await frozen.hear():
                    pass
                tasks.cancel_scope.cancel()
            frozen.process.send_signal(signal.SIGSTOP)
            run = await here.get(run_id)
            for _ in range(20):
                await driver.tell("y" * 50_000)
            assert await told_until(driver, "still heard", run)
            await driver.tell("end", "wait")
            assert await driver.hear() == "completed"


async def test_what_a_killed_watcher_leaves_is_removed(path: Path) -> None:
    """By whoever sends to it, and by whoever listens next; the last one takes the folder."""
    async with other("drive", path) as driver:
        run_id = await driver.hear()
        async with other("watch", path, run_id) as watcher:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_repeat, driver, "x")
                while "text x" not in await watcher.hear():
                    pass
                tasks.cancel_scope.cancel()
            left = set(get_relay_folder(path).iterdir())
            assert len(left) == 2  # a socket, and its link to the run
            watcher.process.kill()
            await watcher.process.wait()
        async with Midrun(f"sqlite:///{path}") as here:
            assert await told_until(driver, "hello", await here.get(run_id))
            assert not left & set(get_relay_folder(path).iterdir())
        assert not get_relay_folder(path).exists()
