"""Promise 5, of calls whose end is in doubt: what may have happened is undone as well.

A call that was stopped may have taken effect, one that ends behind the cancel has, and a doubt
that came up once is not forgotten because a later attempt was stopped in time. Only an undo
that must know is left to a person.
"""

from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Call, Midrun, pause_here, tool
from midrun.core.entries import CallAborted, CallDone, UndoFailed, UndoStarted
from midrun.models import ScriptedModel
from tests.scenarios.promises.crashing import LATER, child
from tests.scenarios.promises.drafts import Drafts, hasty, names
from tests.scenarios.promises.seen import entries
from tests.scenarios.promises.world import World
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use

SHORT = timedelta(milliseconds=50)


async def test_a_call_that_ends_behind_the_cancel_is_undone_with_its_result(
    opened: Opener,
) -> None:
    """It was in flight when the cancel came: that it made it in time does not save it."""
    drafts = Drafts()

    @tool(undo=drafts.discard)
    async def insist(name: str) -> str:
        """Finish first, whoever wants to stop it."""
        drafts.stage.start(name).set()
        with anyio.CancelScope(shield=True):
            await drafts.stage.gate(name).wait()
        return f"{name} insisted"

    model = ScriptedModel([Use("insist", name="a")])
    midrun = await opened(Agent("actor", model=model, tools=[insist]))
    run = await midrun.start("actor", "go")
    await drafts.stage.start("a").wait()
    await run.cancel()
    drafts.stage.gate("a").set()
    await run.until("cancelled")
    assert [d.result for d in await entries(run, CallDone) if not d.reply] == ["a insisted"]
    assert [(name, result) for name, _, result in drafts.tries] == [("a", "a insisted")]
    assert names((await run.report()).undone) == ["a"]


@pytest.mark.parametrize("script", ["book", "fetch"])
async def test_a_doubt_is_not_forgotten_when_the_next_attempt_is_stopped_in_time(
    path: Path, tmp_path: Path, script: str
) -> None:
    """The first attempt took effect and died, the second was stopped before it did anything."""
    with child("drive", path, tmp_path, script, f"{script}:after") as talk:
        run_id = talk.hear()
        talk.kill()
    world = World(tmp_path, stop_at=f"{script}:before")
    agents = [world.agent(script)]
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=agents, outside=LATER) as midrun:
            run = await midrun.get(run_id)
            await world.reached.wait()
            await run.cancel()
            await run.until("cancelled")
            report = await run.report()
            assert len(await entries(run, CallAborted)) == 1
            assert await midrun.verify(run_id)
    if script == "book":
        assert world.told() == ["book a", "discard a"]
        assert names(report.undone) == ["a"]
        assert report.clean
    else:
        assert world.told() == ["fetch a"]
        assert names(report.unsure) == ["a"]
        assert not report.clean


async def test_an_undo_that_must_know_is_not_tried_on_a_call_that_may_not_have_happened(
    opened: Opener,
) -> None:
    """It is left to a person, by name."""
    stage = ControllableTools()
    tried: list[str] = []

    async def refund(call: Call, args: dict[str, str], result: object) -> None:
        del call, result
        tried.append(args["name"])

    @tool(undo=refund, undo_unknown=False)
    async def charge(call: Call, name: str) -> str:
        """Charge a card when the test says so."""
        del call
        stage.start(name).set()
        await stage.gate(name).wait()
        return "charged"

    model = ScriptedModel([[Use("charge", name="a"), Use("charge", name="b")]])
    midrun = await opened(Agent("actor", model=model, tools=[charge]))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await stage.start("b").wait()
    stage.gate("a").set()
    with anyio.fail_after(60):
        while (await run.view()).effects[0].stage != "done":
            await anyio.lowlevel.checkpoint()
    await run.cancel(undo="all")
    await run.until("cancelled")
    assert tried == ["a"]
    report = await run.report()
    assert (names(report.undone), names(report.not_undone)) == (["a"], ["b"])
    assert "may not have happened" in report.not_undone[0].note


async def test_an_undo_that_hangs_is_given_up_on_and_tried_again(path: Path) -> None:
    """It has the time of its tool; a hanging one must not hold the cancel up for ever."""
    stage, tries = ControllableTools(), []

    async def discard(call: Call, args: dict[str, str], result: object) -> None:
        del args, result
        tries.append(call.key)
        if len(tries) == 1:
            await anyio.sleep_forever()

    @tool(undo=discard, timeout=SHORT)
    async def write(name: str) -> str:
        """Write a draft."""
        return f"{name} written"

    script = [Use("write", name="a"), Use("slow", name="x")]
    agent = Agent("actor", model=ScriptedModel(script), tools=[*stage.tools(), write])
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=hasty()) as midrun:
            run = await midrun.start("actor", "go")
            await stage.start("x").wait()
            await run.cancel(undo="all")
            await run.until("cancelled")
            assert [f.error for f in await entries(run, UndoFailed)] == ["it took too long"]
            assert [s.attempt for s in await entries(run, UndoStarted)] == [1, 2]
            assert len(tries) == 2
            assert len(set(tries)) == 1
            assert (await run.report()).clean


async def test_an_undo_that_asks_a_person_has_failed(path: Path) -> None:
    """Nobody is asked during a cancel; the next attempt may do better."""
    stage = ControllableTools()
    tries: list[int] = []

    async def discard(call: Call, args: dict[str, str], result: object) -> None:
        del call, args, result
        tries.append(len(tries))
        if len(tries) == 1:
            pause_here("Really?")

    @tool(undo=discard)
    async def write(name: str) -> str:
        """Write a draft."""
        return f"{name} written"

    script = [Use("write", name="a"), Use("slow", name="x")]
    agent = Agent("actor", model=ScriptedModel(script), tools=[*stage.tools(), write])
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[agent], outside=hasty()) as midrun:
            run = await midrun.start("actor", "go")
            await stage.start("x").wait()
            await run.cancel(undo="all")
            view = await run.until("cancelled")
            assert view.asks == ()
            assert len(tries) == 2
            assert len(await entries(run, UndoFailed)) == 1
