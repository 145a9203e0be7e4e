"""What a child could not undo is tried again with its parent: once each time somebody asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from midrun import Agent, Midrun, Run
from midrun.core.entries import RunCancelled, UndoFailed, UndoGaveUp, UndoRetried, UndoStarted
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from tests.scenarios.conversation.workshop import child_of
from tests.scenarios.promises.drafts import ATTEMPTS, Drafts, hasty
from tests.scenarios.promises.seen import entries
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import verify_all

OPERATOR = "operator:olga"
PATIENCE = 120


def parent(drafts: Drafts, *children: Agent, before: tuple[Use, ...] = ()) -> Agent:
    """Return an agent that delegates once, and is then held up."""
    turns = [
        *before,
        *(Use(child.name, task="Do") for child in children),
        Use("slow", name="x"),
    ]
    tools = [*drafts.tools(), *drafts.stage.tools(), *(c.as_tool() for c in children)]
    return Agent("parent", model=ScriptedModel(turns), tools=tools)


@asynccontextmanager
async def started(path: Path, agent: Agent) -> AsyncIterator[tuple[Midrun, Run]]:
    """Have a run of `agent` driven, for which no time is long; then verify what it left."""
    with anyio.fail_after(PATIENCE):
        async with Midrun(kept_at(path), agents=[agent], outside=hasty()) as midrun:
            yield midrun, await midrun.start("parent", "go")
        await verify_all(path)


def clumsy(drafts: Drafts, times: int = ATTEMPTS) -> Agent:
    """Return a child whose draft cannot be undone so many times."""
    drafts.fails["inner"] = times
    return drafts.agent(Use("write", name="inner"), "Done.", name="aide")


async def cancelled(run: Run, drafts: Drafts) -> None:
    """Cancel the run where it is held up."""
    await drafts.stage.start("x").wait()
    await run.cancel(undo="all")
    await run.until("cancelled")


async def retried(run: Run) -> None:
    """Have what was given up tried again, to the end."""
    await run.retry_undo(actor=OPERATOR)
    await run.until("cancelled")


async def test_retrying_a_parent_retries_what_its_child_could_not_undo(path: Path) -> None:
    """Then somebody has mended the world: both are clean, each undo under its one key."""
    drafts = Drafts()
    aide = clumsy(drafts)
    agent = parent(drafts, aide, before=(Use("write", name="outer"),))
    async with started(path, agent) as (midrun, run):
        await cancelled(run, drafts)
        child = await child_of(midrun, run, "c4")
        (left,) = (await run.report()).not_undone
        assert (left.tool, left.run) == ("aide", child.id)
        assert drafts.stage.undone == ["outer"]
        await retried(run)
        assert drafts.stage.undone == ["outer", "inner"]
        assert (await run.report()).clean
        assert (await child.report()).clean
        (again,) = await entries(child, UndoRetried)
        assert again.by == f"run:{run.id}"
        assert len({key for name, key, _ in drafts.tries if name == "inner"}) == 1


async def test_a_child_that_was_in_flight_is_retried_with_its_parent(path: Path) -> None:
    """It is its release that failed on the parent, not an undo."""
    drafts = Drafts()
    drafts.fails["cut"] = ATTEMPTS
    aide = drafts.agent(Use("dictate", name="cut"), name="aide")
    async with started(path, parent(drafts, aide)) as (_, run):
        await drafts.stage.start("cut").wait()
        await run.cancel()
        await run.until("cancelled")
        assert [deed.tool for deed in (await run.report()).still_held] == ["aide"]
        await retried(run)
        assert drafts.stage.undone == ["cut"]
        assert (await run.report()).clean


async def test_a_grandchild_is_retried_with_the_eldest(path: Path) -> None:
    """Each passes it on to its own children."""
    drafts = Drafts()
    drafts.fails["deep"] = ATTEMPTS
    inner = drafts.agent(Use("write", name="deep"), "Done.", name="inner")
    turns: list[Line] = [Use("inner", task="deeper"), "Done."]
    middle = Agent("middle", model=ScriptedModel(turns), tools=[inner.as_tool()])
    async with started(path, parent(drafts, middle)) as (midrun, run):
        await cancelled(run, drafts)
        assert drafts.stage.undone == []
        await retried(run)
        assert drafts.stage.undone == ["deep"]
        for view in (await midrun.runs()).items:
            assert (await (await midrun.get(view.run_id)).report()).clean


async def test_a_child_is_retried_once_for_each_time_somebody_asks(path: Path) -> None:
    """Not once for each attempt of its parent: its attempts are bounded as they always are."""
    drafts = Drafts()
    aide = clumsy(drafts, 3 * ATTEMPTS)
    async with started(path, parent(drafts, aide)) as (midrun, run):
        await cancelled(run, drafts)
        child = await child_of(midrun, run)
        for times in (1, 2):
            await retried(run)
            assert len(await entries(child, UndoRetried)) == times
            assert len(await entries(child, UndoGaveUp)) == times + 1
            assert len(await entries(child, UndoStarted)) == (times + 1) * ATTEMPTS
        *_, ended = await entries(run, RunCancelled)
        assert len(ended.residue) == 1
        await retried(run)
        assert (await run.report()).clean


async def test_a_child_that_was_retried_on_its_own_is_clean_for_its_parent(path: Path) -> None:
    """There is nothing left to retry, and the parent's report says so once it is asked."""
    drafts = Drafts()
    aide = clumsy(drafts)
    async with started(path, parent(drafts, aide)) as (midrun, run):
        await cancelled(run, drafts)
        child = await child_of(midrun, run)
        await child.retry_undo(actor=OPERATOR)
        await child.until("cancelled")
        await retried(run)
        assert (await run.report()).clean
        assert len(await entries(child, UndoRetried)) == 1


async def test_a_parent_does_not_wait_for_what_its_child_has_given_up(path: Path) -> None:
    """Its own attempts are counted as all are, but nothing changes between them."""
    drafts = Drafts()
    async with started(path, parent(drafts, clumsy(drafts))) as (_, run):
        await cancelled(run, drafts)
        failed = await entries(run, UndoFailed)
        assert [one.retry_at for one in failed] == [None] * ATTEMPTS
