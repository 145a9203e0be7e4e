"""A store that is locked, full, or does not answer: nothing is lost, and the run goes on."""

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
from midrun.models import ScriptedModel
from midrun.stores.sqlite.store import SqliteStore
from tests.crash.conftest import child
from tests.crash.deeds import deeds
from tests.crash.facts import becomes
from tests.crash.troubled import Watched
from tests.support.store_choice import kept_at
from tests.unit.runs.stage import ControllableTools, Use

pytestmark = pytest.mark.about_sqlite(
    "locks and fills the file; see test_lost_answers.py, test_full_disk.py of stores/postgres"
)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock of the file, as another process may."""
    db = apsw.Connection(str(path))
    db.set_busy_timeout(10_000)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


def stubborn(stage: ControllableTools) -> Tool:
    """Return a tool that does not let itself be stopped."""

    @tool(name="stubborn")
    async def insist(name: str) -> str:
        """Act when the test says so, whatever else is said."""
        stage.called.append(name)
        stage.start(name).set()
        with anyio.CancelScope(shield=True):
            await stage.gate(name).wait()
        stage.completed.append(name)
        return "done all the same"

    return insist


async def entries(store: SqliteStore, run: Run, kind: type) -> int:
    """Return how many entries of that kind there are."""
    return sum(isinstance(r.entry, kind) for r in await store.read(run.id))


async def test_a_result_is_kept_until_the_lock_is_free(path: Path) -> None:
    """The tool has acted: its result is worth waiting for, and the next call waits for it."""
    stage, store = ControllableTools(), Watched(path)
    agent = stage.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await stage.start("a").wait()
        with locked(path):
            stage.gate("a").set()
            await becomes(lambda: store.noes > 0)
            assert stage.called == ["a"]
            assert await entries(store, run, CallDone) == 1  # the model's
        await run.until("completed")
        assert await entries(store, run, LeaseTaken) == 1
    await store.close()
    assert stage.completed == ["a", "b"]
    assert store.noes


async def test_a_control_that_could_not_be_written_was_not_applied(path: Path) -> None:
    """Whoever asked is told so, and asks again."""
    stage, store = ControllableTools(), Watched(path)
    agent = stage.agent(Use("slow", name="a"), "Done.")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await stage.start("a").wait()
        with locked(path), pytest.raises(StoreBusy):
            await run.cancel(request_id="once")
        assert (await run.view()).phase == "running"
        await run.cancel(request_id="once")
        await run.until("cancelled")
    await store.close()


async def test_a_run_that_cannot_be_taken_is_taken_later(path: Path) -> None:
    """A process that comes up while the file is locked drives what there is when it is not."""
    stage = ControllableTools()
    agent = stage.agent(Use("quick", name="a"), "Done.")
    async with Midrun(kept_at(path), agents=[agent], engine=None) as creating:
        run_id = (await creating.start(agent, "go")).id
    store = Watched(path)
    lock = ExitStack()
    lock.enter_context(locked(path))
    async with Midrun(store, agents=[agent]) as midrun:
        await becomes(lambda: store.noes > 0)
        assert not stage.called
        lock.close()
        await (await midrun.get(run_id)).until("completed")
    await store.close()
    assert stage.completed == ["a"]


async def test_an_undo_is_not_forgotten_while_the_lock_is_held(path: Path) -> None:
    """What was undone is said when it can be; until then the run is cancelling."""
    stage, store = ControllableTools(), Watched(path)
    agent = stage.agent(Use("draft", name="a"), Use("slow", name="b"), "never")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await stage.start("b").wait()
        await run.cancel(undo="all")
        with locked(path):
            await becomes(lambda: store.noes > 0)
            assert (await run.view()).phase == "cancelling"
        await run.until("cancelled")
        report = await run.report()
    await store.close()
    assert stage.undone == ["a"]
    assert [deed.tool for deed in report.undone] == ["draft"]


async def test_leaving_while_the_lock_is_held_ends_in_time_and_loses_nothing(
    path: Path,
) -> None:
    """The next process finds the call as an orphan, at worst; here it still gets its end."""
    stage, store = ControllableTools(), Watched(path)
    agent = stage.agent(Use("slow", name="a"), "Done.")
    async with Midrun(store, agents=[agent]) as midrun, anyio.create_task_group() as tasks:
        run = await midrun.start(agent, "go")
        await stage.start("a").wait()
        held = anyio.Event()

        async def hold_for_a_while() -> None:
            with locked(path):
                held.set()
                await becomes(lambda: store.noes > 0)

        tasks.start_soon(hold_for_a_while)
        await held.wait()
        stage.gate("a").set()
    await store.close()
    async with Midrun(kept_at(path), agents=[agent]) as midrun:
        await (await midrun.get(run.id)).until("completed")
    assert (stage.called, stage.completed) == (["a"], ["a"])


@pytest.mark.parametrize(
    "error", [StoreFull("runs.db"), StoreBusy("runs.db", 5)], ids=["full", "busy"]
)
async def test_a_snapshot_that_cannot_be_kept_changes_nothing(
    path: Path, error: StoreError
) -> None:
    """It is a cache: the call that was started along with it is made, under the same lease."""
    stage, store = ControllableTools(), Watched(path)
    store.no_snapshots = error
    uses = [Use("quick", name=f"{n}") for n in range(120)]
    agent = stage.agent(*uses, "Done.")
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start(agent, "go")
        await run.until("completed")
        assert store.noes
        assert await entries(store, run, LeaseTaken) == 1
    await store.close()
    assert stage.completed == [f"{n}" for n in range(120)]


async def test_a_drive_that_is_not_answered_reads_what_became_of_its_append(
    tmp_path: Path,
) -> None:
    """Committed, but nobody said so: each append of a run in turn. It is never stuck."""
    lost = 0
    while True:
        lost += 1
        stage, store = ControllableTools(), Watched(tmp_path / f"{lost}.db")
        store.lost_answer = lost
        agent = stage.agent([Use("read", name="a"), Use("lock", name="b")], "Done.")
        stage.gate("a").set()
        with anyio.fail_after(60):
            async with Midrun(store, agents=[agent]) as midrun:
                run = await midrun.start(agent, "go")
                while isinstance(outcome := await run.result(), Paused):
                    await run.answer("yes" if "b" in stage.completed else "no")
                assert isinstance(outcome, Completed)
                verdict = await midrun.verify(run.id)
                assert verdict, str(verdict)
        await store.close()
        assert stage.completed.count("b") == 1
        if store.answers < lost:
            return


async def test_late_evidence_that_cannot_be_written_ends_nobody_else(path: Path) -> None:
    """A call of one run comes to its end too late while the file is locked: others go on."""
    stage, store = ControllableTools(), Watched(path)
    agent = Agent(
        "actor",
        model=ScriptedModel([Use("stubborn", name="a"), "never"]),
        tools=[stubborn(stage)],
        grace=timedelta(milliseconds=10),
    )
    other = stage.agent(Use("slow", name="b"), "Done.", name="other")
    async with Midrun(store, agents=[agent, other]) as midrun:
        run, second = await midrun.start(agent, "go"), await midrun.start(other, "go")
        await stage.start("a").wait()
        await stage.start("b").wait()
        await run.cancel()
        await run.until("cancelled")
        with locked(path):
            stage.gate("a").set()
            await becomes(lambda: store.noes > 0)
        stage.gate("b").set()
        await second.until("completed")
    await store.close()
    assert stage.completed == ["a", "b"]


async def test_a_full_disk_holds_a_run_up_until_there_is_room(path: Path) -> None:
    """In a process whose files may not grow for a while: its result is not lost with them."""
    with child("full", path.parent) as process:
        run_id = await process.hear()
        assert await process.hear() == "full"
        assert await process.hear() == "completed"
        assert await process.end() == 0
    async with Midrun(kept_at(path)) as midrun:
        run = await midrun.get(run_id)
        records = await midrun.store.read(run.id)
    assert [deed.what for deed in deeds(path.parent)] == ["bulk", "charge"]
    assert sum(isinstance(r.entry, LeaseTaken) for r in records) == 1
    tools = [
        r for r in records if isinstance(r.entry, CallStarted) and r.entry.call_kind == "tool"
    ]
    assert len(tools) == 2
