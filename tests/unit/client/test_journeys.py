"""Whole journeys of a run over a connection that loses the first reply to everything asked."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TypeAlias

import pytest

from midrun import Agent, Midrun, tool
from midrun.core import retries
from midrun.core.ids import RunId
from midrun.models import ScriptedModel, Use
from midrun.runs.protocols import AnyMidrun
from midrun.stops import MaxSteps
from tests.unit.client.conftest import Connected, Serve
from tests.unit.client.proxy import proxied
from tests.unit.runs.stage import ControllableTools

Lose: TypeAlias = Callable[[], None]
"""Has the reply to what is asked next get lost, where there is a way to lose it."""

Journey: TypeAlias = Callable[[AnyMidrun, ControllableTools, Lose], Awaitable[RunId]]
"""Does things to a run, and returns its id."""


async def steered(mid: AnyMidrun, stage: ControllableTools, lose: Lose) -> RunId:
    """Say it, take it back, pause, raise a cap, take over, write, use a tool, hand back."""
    lose()
    run = await mid.start("actor", "Go.")
    await stage.start("a").wait()
    lose()
    left = await run.redirect("Left.")
    lose()
    await run.withdraw(left.seq)
    lose()
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    lose()
    await run.raise_cap(steps=30)
    lose()
    await run.take_over()
    lose()
    await run.write("I looked it up.")
    lose()
    await run.use_tool("quick", {"name": "by hand"})
    await run.until("paused")
    lose()
    await run.hand_back("Go on.")
    await run.until("completed")
    assert stage.completed.count("by hand") == 1
    return run.id


async def decided(mid: AnyMidrun, stage: ControllableTools, lose: Lose) -> RunId:
    """Approve with other arguments, decline, and go on after a failure."""
    run = await mid.start("asks", "Go.")
    await run.until("waiting")
    lose()
    await run.approve(args={"name": "b"})
    await stage.start("b").wait()
    await run.until("waiting")
    lose()
    await run.decline("Not that.")
    await run.until("failed")  # its script is at its end
    lose()
    await run.resume("Once more.")
    await run.until("failed")
    return run.id


async def undone(mid: AnyMidrun, stage: ControllableTools, lose: Lose) -> RunId:
    """Cancel, try again to undo what could not be, and take it as it is."""
    run = await mid.start("stuck", "Go.")
    await stage.start("x").wait()
    lose()
    await run.cancel(undo="all")
    await run.until("cancelled")
    lose()
    await run.retry_undo()
    await run.until("cancelled")
    lose()
    await run.accept_residue()
    for look in (run.view, run.report, run.export, mid.asks):
        lose()
        await look()
    lose()
    assert await mid.verify(run.id)
    lose()
    assert run.id in await mid.named(run.id[:12])
    lose()
    await mid.halt("enough", scope=f"run:{run.id}", actor=None)
    lose()
    assert await mid.lift(scope=f"run:{run.id}", actor=None)
    return run.id


def agents(stage: ControllableTools) -> list[Agent]:
    """Return those that the journeys are made with."""

    async def cannot(*_: object) -> None:
        raise RuntimeError("no")

    @tool(undo=cannot)
    async def draft(name: str) -> str:
        """Write something that stays."""
        stage.completed.append(name)
        return name

    @tool(approve=True)
    async def gated(name: str) -> str:
        """Act, if somebody approves."""
        stage.start(name).set()
        return name

    stuck: list[str | Use] = [Use("draft", name="x"), Use("slow", name="x"), "Done."]
    asks = [Use("gated", name="a"), Use("gated", name="c")]
    tools = stage.tools()
    return [
        stage.agent(Use("slow", name="a"), "Done.", "Done.", stop=MaxSteps(20)),
        Agent("asks", model=ScriptedModel(asks), tools=[gated]),
        Agent("stuck", model=ScriptedModel(stuck), tools=[draft, tools[1]]),
    ]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """An undo that fails is tried again at once: nothing here is about how long that takes."""
    monkeypatch.setattr(retries, "LONGEST_WAIT_S", 0.001)


@pytest.mark.parametrize("journey", [steered, decided, undone])
async def test_a_journey_with_every_reply_lost_once_is_the_same_journey(
    stack: AsyncExitStack,
    serve: Serve,
    connected: Connected,
    stage: ControllableTools,
    journey: Journey,
) -> None:
    """Each thing that was asked is in the journal once, as if nothing had got lost."""
    near = ControllableTools()
    mid = await stack.enter_async_context(Midrun("memory://", agents=agents(near)))
    plain = await journey(mid, near, lambda: None)
    near.open_all_gates()
    served = await serve(*agents(stage))
    proxy = await stack.enter_async_context(proxied(served.port))
    asked = 0

    def lose() -> None:
        nonlocal asked
        asked += 1
        proxy.lose = 1

    remote = await connected(served, port=proxy.port)
    lost = await journey(remote, stage, lose)
    assert proxy.lost == asked
    kinds = [
        Counter(type(record.entry).__name__ for record in await each.store.read(run))
        for each, run in ((mid, plain), (served.mid, lost))
    ]
    assert kinds[0] == kinds[1]
