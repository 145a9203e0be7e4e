"""A store that is locked, full, or loses a reply: nothing is lost, and the run continues."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import apsw
import pytest

from midrun import Agent, Completed, Midrun, Paused, Run, Tool, tool
from midrun.core.entries import CallDone, CallStarted, LeaseTaken
from midrun.errors import StoreBusy, StoreError, StoreFull
from midrun.models import ScriptedModel, Use
from midrun.stores.sqlite.store import SqliteStore
from midrun.testing.controllable_tools import ControllableTools
from tests.crash.conftest import start_child
from tests.crash.faulty_store import FaultyStore
from tests.crash.recording_tools import read_actions
from tests.support.conditions import wait_until
from tests.support.store_choice import get_store_url

pytestmark = pytest.mark.about_sqlite(
    "locks and fills the file; see test_lost_connections.py and test_server_failures.py"
)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the write lock of the file, as another process may."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(10_000)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


def make_stubborn_tool(tools: ControllableTools) -> Tool:
    """Return a tool that ignores cancellation."""

    @tool(name="stubborn")
    async def insist(name: str) -> str:
        """Wait for the gate behind a shield."""
        tools.called.append(name)
        tools.start(name).set()
        with anyio.CancelScope(shield=True):
            await tools.gate(name).wait()
        tools.completed.append(name)
        return "done all the same"

    return insist


async def count_entries(store: SqliteStore, run: Run, kind: type) -> int:
    """Return the number of entries of this kind."""
    return sum(isinstance(r.entry, kind) for r in await store.read(run.id))


async def test_a_result_is_kept_until_the_lock_is_free(path: Path) -> None:
    """The next call waits until the result is appended."""
    tools, store = ControllableTools(), FaultyStore(path)
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await tools.start("a").wait()
        with hold_lock(path):
            tools.gate("a").set()
            await wait_until(lambda: store.refusals > 0)
            assert tools.called == ["a"]
            assert await count_entries(store, run, CallDone) == 1  # the model's
        await run.until("completed")
        assert await count_entries(store, run, LeaseTaken) == 1
    await store.close()
    assert tools.completed == ["a", "b"]
    assert store.refusals


async def test_a_control_that_cannot_be_appended_is_refused_and_not_applied(path: Path) -> None:
    """The caller gets an error and can repeat the request."""
    tools, store = ControllableTools(), FaultyStore(path)
    agent = tools.agent(Use("slow", name="a"), "Done.")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await tools.start("a").wait()
        with hold_lock(path), pytest.raises(StoreBusy):
            await run.cancel(request_id="once")
        assert (await run.view()).phase == "running"
        await run.cancel(request_id="once")
        await run.until("cancelled")
    await store.close()


async def test_a_worker_takes_a_run_once_the_lock_is_free(path: Path) -> None:
    """The worker starts while the file is locked."""
    tools = ControllableTools()
    agent = tools.agent(Use("quick", name="a"), "Done.")
    async with Midrun(get_store_url(path), agents=[agent], engine=None) as creating:
        run_id = (await creating.start(agent, "go")).id
    store = FaultyStore(path)
    lock = ExitStack()
    lock.enter_context(hold_lock(path))
    async with Midrun(store, agents=[agent]) as midrun:
        await wait_until(lambda: store.refusals > 0)
        assert not tools.called
        lock.close()
        await (await midrun.get(run_id)).until("completed")
    await store.close()
    assert tools.completed == ["a"]


async def test_an_undo_is_recorded_once_the_lock_is_free(path: Path) -> None:
    """Until then the run is cancelling."""
    tools, store = ControllableTools(), FaultyStore(path)
    agent = tools.agent(Use("draft", name="a"), Use("slow", name="b"), "never")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await tools.start("b").wait()
        await run.cancel(undo="all")
        with hold_lock(path):
            await wait_until(lambda: store.refusals > 0)
            assert (await run.view()).phase == "cancelling"
        await run.until("cancelled")
        report = await run.report()
    await store.close()
    assert tools.undone == ["a"]
    assert [action.tool for action in report.undone] == ["draft"]


async def test_a_shutdown_while_the_lock_is_held_loses_no_result(
    path: Path,
) -> None:
    """Without its result, the call would be unknown to the next process."""
    tools, store = ControllableTools(), FaultyStore(path)
    agent = tools.agent(Use("slow", name="a"), "Done.")
    async with Midrun(store, agents=[agent]) as midrun, anyio.create_task_group() as tasks:
        run = await midrun.start(agent, "go")
        await tools.start("a").wait()
        is_locked = anyio.Event()

        async def hold_until_refusal() -> None:
            with hold_lock(path):
                is_locked.set()
                await wait_until(lambda: store.refusals > 0)

        tasks.start_soon(hold_until_refusal)
        await is_locked.wait()
        tools.gate("a").set()
    await store.close()
    async with Midrun(get_store_url(path), agents=[agent]) as midrun:
        await (await midrun.get(run.id)).until("completed")
    assert (tools.called, tools.completed) == (["a"], ["a"])


@pytest.mark.parametrize(
    "error", [StoreFull("runs.db"), StoreBusy("runs.db", 5)], ids=["full", "busy"]
)
async def test_a_snapshot_that_cannot_be_saved_does_not_affect_the_run(
    path: Path, error: StoreError
) -> None:
    """A snapshot is a cache. The call that starts with it is made under the same lease."""
    tools, store = ControllableTools(), FaultyStore(path)
    store.snapshot_error = error
    uses = [Use("quick", name=f"{n}") for n in range(120)]
    agent = tools.agent(*uses, "Done.")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await run.until("completed")
        assert store.refusals
        assert await count_entries(store, run, LeaseTaken) == 1
    await store.close()
    assert tools.completed == [f"{n}" for n in range(120)]


async def test_a_run_completes_if_any_one_reply_of_the_store_is_lost(
    tmp_path: Path,
) -> None:
    """The run loop reads the journal to find out whether its append was committed."""
    number = 0
    while True:
        number += 1
        tools, store = ControllableTools(), FaultyStore(tmp_path / f"{number}.db")
        store.lost_reply = number
        agent = tools.agent([Use("read", name="a"), Use("lock", name="b")], "Done.")
        tools.gate("a").set()
        with anyio.fail_after(60):
            async with Midrun(store, agents=[agent]) as midrun:
                run = await midrun.start(agent, "go")
                while isinstance(outcome := await run.result(), Paused):
                    await run.answer("yes" if "b" in tools.completed else "no")
                assert isinstance(outcome, Completed)
                verdict = await midrun.verify(run.id)
                assert verdict, str(verdict)
        await store.close()
        assert tools.completed.count("b") == 1
        if store.leased_replies < number:
            return


async def test_a_late_result_that_cannot_be_appended_does_not_affect_other_runs(
    path: Path,
) -> None:
    """The call of a cancelled run ends while the file is locked."""
    tools, store = ControllableTools(), FaultyStore(path)
    agent = Agent(
        "actor",
        model=ScriptedModel([Use("stubborn", name="a"), "never"]),
        tools=[make_stubborn_tool(tools)],
        grace=timedelta(milliseconds=10),
    )
    other = tools.agent(Use("slow", name="b"), "Done.", name="other")
    async with Midrun(store, agents=[agent, other]) as midrun:
        run, second = await midrun.start(agent, "go"), await midrun.start(other, "go")
        await tools.start("a").wait()
        await tools.start("b").wait()
        await run.cancel()
        await run.until("cancelled")
        with hold_lock(path):
            tools.gate("a").set()
            await wait_until(lambda: store.refusals > 0)
        tools.gate("b").set()
        await second.until("completed")
    await store.close()
    assert tools.completed == ["a", "b"]


async def test_a_run_waits_while_the_disk_is_full(path: Path) -> None:
    """The files of the process cannot grow for a while; the result is kept."""
    with start_child("full", path.parent) as process:
        run_id = await process.read_line()
        assert await process.read_line() == "full"
        assert await process.read_line() == "completed"
        assert await process.wait() == 0
    async with Midrun(get_store_url(path)) as midrun:
        run = await midrun.get(run_id)
        records = await midrun.store.read(run.id)
    assert [action.name for action in read_actions(path.parent)] == ["bulk", "charge"]
    assert sum(isinstance(r.entry, LeaseTaken) for r in records) == 1
    tool_calls = [
        r for r in records if isinstance(r.entry, CallStarted) and r.entry.call_kind == "tool"
    ]
    assert len(tool_calls) == 2
