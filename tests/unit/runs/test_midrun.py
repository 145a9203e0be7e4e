"""The `Midrun` handle: opening, closing, its event loop, forks, runs that cannot be read."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio import from_thread

from midrun import Agent, Completed, File, Midrun, Misconfigured, Run, ask_human
from midrun.codec import snapshot
from midrun.core.entries import Record, RunStarted
from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.errors import StoreClosed
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.support.raw_sql import execute_sql, make_replace_sql
from tests.support.run_journal import TIMEOUT_S, read_entries
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

FORK_TIMEOUT_S = 300
FORK_PROGRAM = Path(__file__).with_name("fork_program.py")
REQUESTS: dict[str, Callable[[Midrun, Run], Awaitable[object]]] = {
    "start": lambda mid, _: mid.start("actor", "go"),
    "cancel": lambda _, run: run.cancel(),
    "until": lambda _, run: run.until("completed"),
    "result": lambda _, run: run.result(),
}


@pytest.mark.parametrize("request_name", REQUESTS)
async def test_a_request_from_another_event_loop_is_refused(request_name: str) -> None:
    """A web framework may give each request an event loop of its own, in a thread."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start("actor", "go", request_id="first")
            with pytest.raises(Misconfigured, match="open in another event loop"):
                await anyio.to_thread.run_sync(
                    _run_in_new_loop, lambda: REQUESTS[request_name](midrun, run)
                )
            assert isinstance(await run.result(), Completed)


async def test_a_thread_can_call_the_event_loop_that_midrun_is_open_in() -> None:
    """The refusal recommends `anyio.from_thread.run`."""
    agent = Agent("actor", model=ScriptedModel(["Done."]))
    with anyio.fail_after(TIMEOUT_S):
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start("actor", "go")
            outcome = await anyio.to_thread.run_sync(from_thread.run, run.result)
    assert isinstance(outcome, Completed)


def _run_in_new_loop(request: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await request()

    asyncio.run(main())


def test_midrun_is_refused_without_an_asyncio_event_loop() -> None:
    """Under Trio, for example."""
    opening = Midrun("memory://").__aenter__()
    with pytest.raises(Misconfigured, match="Trio is not supported"):
        opening.send(None)


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "code"), [("raises", 1), ("exits", 7)])
def test_a_forked_process_that_leaves_midrun_exits_and_the_parent_continues(
    tmp_path: Path, ending: str, code: int
) -> None:
    """The threads of the parent do not exist in the fork, which must not wait for them."""
    command = [sys.executable, str(FORK_PROGRAM), f"sqlite:///{tmp_path}/runs.db", ending]
    done = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, timeout=FORK_TIMEOUT_S, check=True
    )
    assert done.stdout.splitlines() == [f"{code} Done."]
    assert "was forked from" in done.stderr
    assert ("ValueError: in the fork" in done.stderr) is (ending == "raises")


async def test_an_error_while_opening_is_raised_unchanged() -> None:
    """It is not wrapped in an exception group, and the same object can be opened again."""
    midrun = Midrun("memory://", agents=[Agent("a", model="nosuch:model")])
    for _ in range(2):
        with pytest.raises(Misconfigured, match="nosuch"):
            await midrun.__aenter__()
    with pytest.raises(Misconfigured, match="it is not open"):
        await midrun.runs()


@pytest.mark.slow
async def test_a_waiter_gets_an_error_when_the_store_is_closed() -> None:
    tools = ControllableTools()
    async with anyio.create_task_group() as tasks:
        error_codes: list[str] = []

        async with Midrun("memory://", agents=[tools.agent(Use("slow", name="a"))]) as midrun:
            run = await midrun.start("actor", "go")

            async def wait() -> None:
                try:
                    await run.until("completed")
                except StoreClosed as error:
                    error_codes.append(error.code)

            tasks.start_soon(wait)
            await tools.start("a").wait()
    assert error_codes == ["store_closed"]


async def test_events_after_a_seq_are_read_from_the_snapshot_before_it(
    opened: OpenMidrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they start, they are the same as in the whole run."""
    monkeypatch.setattr(snapshot, "SNAPSHOT_MIN_ENTRIES", 8)
    turns = [Use("quick", name=str(n)) for n in range(8)]
    midrun = await opened(ControllableTools().agent(*turns, "Done."))
    run = await midrun.start("actor", "go")
    await run.result()
    stored = await midrun.store.load_snapshot(run.id)
    assert stored is not None
    every = [event async for event in run.events()]
    for after in (1, stored.seq - 1, stored.seq, stored.seq + 1, every[-1].seq, 2**60):
        later = [event async for event in run.events(after=after)]
        assert later == [event for event in every if event.seq > after]
    read, starts = midrun.store.read, []

    async def record_start(
        run_id: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[Record]:
        starts.append(after)
        return await read(run_id, after=after, limit=limit)

    monkeypatch.setattr(midrun.store, "read", record_start)
    assert [event async for event in run.events(after=stored.seq + 1)]
    assert min(starts) == stored.seq


async def test_an_unreadable_journal_does_not_stop_other_runs(
    opened: OpenMidrun, path: Path
) -> None:
    """The worker skips its run and drives the others."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Done."))
    bad = await midrun.start("actor", "bad")
    await tools.start("a").wait()
    await bad.pause(now=True, hold=timedelta(milliseconds=1))
    execute_sql(path, make_replace_sql("bad", "sad", where="seq = 1"))
    other = await opened(ControllableTools().agent("Fine.", name="other"))
    run = await other.start("other", "go")
    assert isinstance(await run.result(), Completed)
    execute_sql(path, make_replace_sql("sad", "bad", where="seq = 1"))
    tools.gate("a").set()  # the worker calls the tool again, and waits for it when it stops


async def test_an_unreadable_run_is_listed_with_its_error_among_the_others(
    path: Path,
) -> None:
    """Listing runs, listing asks, lifting a halt and continuing its thread still work."""
    agent = Agent("a", model=ScriptedModel([Use("ask_human", question="?")]), tools=[ask_human])
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        broken = await midrun.start(agent, "first", thread="t")
        await broken.until("waiting")
        sound = await midrun.start(agent, "second")
        await sound.until("waiting")
        await midrun.halt("a look", actor="olga")
    execute_sql(path, make_replace_sql("first", "wurst", where="seq = 1"))
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        views = {view.run_id: view for view in (await midrun.runs()).items}
        assert views.keys() == {broken.id, sound.id}
        assert (views[broken.id].status.word, views[sound.id].error) == ("Cannot be read", "")
        assert "corrupt" in views[broken.id].error
        assert [ask.run_id for ask in await midrun.asks()] == [sound.id]
        assert await midrun.lift(actor="olga")
        assert (await (await midrun.get(sound.id)).view()).phase == "waiting"
        third = await midrun.start(agent, "third", thread="t")
        (started,) = await read_entries(third, RunStarted)
        assert broken.id in started.history[0].text
    execute_sql(path, make_replace_sql("wurst", "first", where="seq = 1"))


async def test_a_worker_reads_a_file_once_for_all_model_calls(
    opened: OpenMidrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools, picture = ControllableTools(), File("a.png", "image/png", b"PNG")
    script = [*[Use("quick", name="a")] * 3, Use("slow", name="b"), "Done."]
    midrun = await opened(tools.agent(*script))
    reads, read_file = [], midrun.store.read_file

    async def count_read(run: RunId, file_hash: str) -> bytes:
        reads.append(file_hash)
        return await read_file(run, file_hash)

    monkeypatch.setattr(midrun.store, "read_file", count_read)
    run = await midrun.start("actor", "Look at it", files=[picture])
    tools.gate("b").set()
    await run.until("completed")
    assert reads == [picture.ref.hash]
